//! The one task that owns the index and the engine. A turn takes in what changed, decides, hands decisions to writers and tells why
//! others wait. Between turns it learns what came of the writes, and takes changes in as they come, so that a turn finds few of them.
//! It never waits for a write, and nobody else waits for a turn.

use std::sync::Arc;

use kai_api::{Object, ObjectKey, ObjectReference};
use kai_cluster::Severity;
use kai_engine::model::{BindInFlight, GangKey, Millis};
use kai_engine::report::{Decision, Placed, Report};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::HEALTH_NAME;
use super::apart::apart;
use super::evictions::Evictions;
use super::fair_shares::FairShares;
use super::sources::Sources;
use super::watch::Watch;
use crate::Settings;
use crate::explain::{Rota, explain, note};
use crate::http::{Answer, JobOrder, Question};
use crate::metrics::{Metrics, Parts};
use crate::writers::{Annotation, Bind, Board, Evict, Lanes, NotScheduled, Order, Outcome, Writer, time};
use kai_mirror::{Assumed, ClusterMirror, Mark, group_key};

/// Shares and laws are looked at so often: it costs a look at every node.
const LOOK_PERIOD: std::time::Duration = std::time::Duration::from_secs(5);

/// Changes between turns are taken in so long after the first of them: one at a time they would cost more to wake up for than to take
/// in, and all at once they would make the turn late.
const TAKE_IN_PERIOD: std::time::Duration = std::time::Duration::from_millis(4);

pub(super) struct Driver {
    context: kai_cluster::Context,
    settings: Arc<Settings>,
    metrics: Arc<Metrics>,
    board: Board,
    writer: Writer,
    wake: Arc<Notify>,
    sources: Sources,
    index: ClusterMirror,
    engine: kai_engine::Cluster,
    rota: Rota,
    orders: JoinSet<Outcome>,
    asked: Vec<Question>,
    looked: Option<Instant>,
    fair_shares: FairShares,
}

impl Driver {
    pub(super) fn new(
        context: &kai_cluster::Context,
        settings: &Arc<Settings>,
        metrics: &Arc<Metrics>,
        board: &Board,
        lanes: &Arc<Lanes>,
    ) -> Driver {
        let wake = Arc::default();
        Driver {
            sources: Sources::new(context, &wake),
            index: ClusterMirror::new(&settings.mirror()),
            writer: Writer::new(context, settings, lanes),
            context: context.clone(),
            settings: Arc::clone(settings),
            metrics: Arc::clone(metrics),
            board: board.clone(),
            wake,
            engine: kai_engine::Cluster::new(),
            rota: Rota::default(),
            orders: JoinSet::new(),
            asked: Vec::new(),
            looked: None,
            fair_shares: FairShares::default(),
        }
    }

    /// Runs until our credentials are refused.
    pub(super) async fn run(mut self, questions: &mut mpsc::Receiver<Question>) -> kai_cluster::Error {
        self.sources.synced().await;
        self.index.tick(self.now());
        apart(|| self.sources.take_into(&mut self.index, &mut self.engine));
        self.index.complete();
        loop {
            let started = Instant::now();
            apart(|| self.turn());
            self.context.health.alive(HEALTH_NAME);
            if let Err(error) = self.wait(started + self.settings.schedule_period, questions).await {
                return error;
            }
        }
    }

    /// Until the next turn is due: the period is over, something changed, or somebody asks.
    async fn wait(
        &mut self,
        mut due: Instant,
        questions: &mut mpsc::Receiver<Question>,
    ) -> Result<(), kai_cluster::Error> {
        let mut changed = false;
        let mut take_in: Option<Instant> = None;
        loop {
            let gathered = || Instant::now() + self.settings.gather_period;
            let next = take_in.map_or(due, |at| at.min(due));
            tokio::select! {
                biased;
                Some(outcome) = self.orders.join_next(), if !self.orders.is_empty() => {
                    // A panic is one write's; what it was about runs into its deadline.
                    match outcome.map(|outcome| self.absorb(outcome)) {
                        Ok(failed) => if failed? { due = due.min(Instant::now() + self.settings.gather_period) },
                        Err(error) => tracing::error!(%error, "a write panicked"),
                    }
                }
                Some(question) = questions.recv() => {
                    self.asked.push(question);
                    due = due.min(gathered());
                }
                () = self.wake.notified(), if take_in.is_none() => {
                    take_in = Some(Instant::now() + TAKE_IN_PERIOD);
                    if !std::mem::replace(&mut changed, true) {
                        due = due.min(gathered());
                    }
                }
                () = tokio::time::sleep_until(next) => {
                    if next == due {
                        return Ok(());
                    }
                    take_in = None;
                    apart(|| self.take_in(self.now()));
                }
            }
        }
    }

    fn turn(&mut self) {
        let (now, start) = (self.now(), Instant::now());
        self.take_in(now);
        let taken_in = Instant::now();
        let mut watch = Watch::default();
        let observe = &mut |moment| watch.note(moment);
        let report = self.engine.cycle_observed(now, &self.settings.config, observe);
        let decided = Instant::now();
        self.carry_out(&report, now);
        explain(
            &self.engine,
            &self.index,
            &mut self.rota,
            &self.board,
            self.settings.partition.name(),
            now,
        );
        self.look();
        self.answer();
        let parts = Parts {
            gather: taken_in - start,
            decide: decided - taken_in,
            carry: decided.elapsed(),
            actions: watch.actions(decided),
            searches: watch.searches,
        };
        self.metrics.cycle(&parts);
        self.metrics.report(&report);
        self.metrics
            .under_way(self.rota.len(), self.index.assumed(), self.board.len());
    }

    fn take_in(&mut self, now: Millis) {
        let started = Instant::now();
        self.take_changes(now);
        self.metrics.taken_in(started.elapsed());
    }

    fn take_changes(&mut self, now: Millis) {
        for (pod, node) in self.index.tick(now) {
            self.metrics.failed("unseen");
            tracing::warn!(%pod, node, "a binding was not seen in time; the pod is placed anew");
        }
        self.sources.take_into(&mut self.index, &mut self.engine);
        let outbox = self.index.take_outbox();
        for event in outbox.events {
            self.engine.apply(event);
        }
        for told in outbox.problems {
            tracing::warn!("{}", told.problem);
            let message = told.problem.to_string();
            self.board.note(note(told.about, Severity::Warning, "Invalid", message));
        }
        for request in outbox.to_delete {
            tracing::info!(request = %request.key, why = request.why, "deleting a bind request");
            self.order(Order::CleanUp(request));
        }
        for uid in outbox.waiting {
            self.rota.add(&uid);
        }
        for gang in outbox.touched_gangs {
            if self.index.is_settled(&gang) {
                self.rota.forget_gang(&gang);
                let group = self.index.group(&gang);
                if group.is_some_and(|group| !group.scheduling_conditions().is_empty()) {
                    self.board.group(&gang, None);
                }
            }
        }
    }

    fn carry_out(&mut self, report: &Report, now: Millis) {
        let mut evictions = Evictions::default();
        for decision in &report.decisions {
            match decision {
                Decision::Bind(placed) => self.bind(placed, now),
                // Decided anew each cycle; what is told of it is the rota's matter.
                Decision::Pipeline(_) => {}
                Decision::Evict { pod, reason } => {
                    let Some((key, _)) = self.index.pod_by_uid(pod) else {
                        continue;
                    };
                    let name = |gang: &GangKey| self.index.workload(gang);
                    let order = Evict {
                        pod: key.clone(),
                        uid: pod.to_string(),
                        message: reason.told(&name).to_string(),
                    };
                    if let Some(gang) = self.index.gang_of(pod) {
                        evictions.add(&gang, reason);
                    }
                    self.index.assume(pod, Assumed::Leaving(now));
                    self.order(Order::Evict(order));
                }
                Decision::Started(gang) => self.mark(&group_key(gang), Mark::Started(now)),
                Decision::Evicted(gang) => self.mark(&group_key(gang), Mark::Evicted(now)),
                Decision::Stale { gang, since } => self.mark(&group_key(gang), Mark::Stale(Some(*since))),
                Decision::Recovered(gang) => self.mark(&group_key(gang), Mark::Stale(None)),
            }
        }
        evictions.tell(&self.index, &self.board, &self.metrics, self.settings.partition.name());
    }

    fn bind(&mut self, placed: &Placed, now: Millis) {
        let Some((key, pod)) = self.index.pod_by_uid(&placed.pod) else {
            return;
        };
        let key = key.clone();
        let created = pod.metadata().creation_timestamp.as_deref();
        if let Some(created) = created.and_then(|text| kai_api::parse_time(text).ok()) {
            self.metrics.decided_after((now - created).0);
        }
        let bind = BindInFlight {
            node: placed.node.to_string(),
            gpu_groups: placed.gpu_groups.clone(),
        };
        self.index.assume(&placed.pod, Assumed::Bound(bind));
        self.rota.forget(&placed.pod);
        self.board.retract_pod(&key);
        self.order(Order::Bind(Bind {
            pod: key,
            placed: placed.clone(),
            decided: Instant::now(),
        }));
    }

    fn mark(&mut self, gang: &ObjectKey, mark: Mark) {
        let (key, value) = match mark {
            Mark::Started(at) => (kai_api::keys::LAST_START, Some(at)),
            Mark::Evicted(at) => (kai_api::keys::LAST_EVICTION, Some(at)),
            Mark::Stale(since) => (kai_api::keys::STALE_SINCE, since),
        };
        if !self.index.note(gang, mark) {
            return;
        }
        let value = value.map(time);
        self.board.annotate(gang, Annotation { key, value });
        if let (Mark::Stale(Some(_)), Some(group)) = (mark, self.index.group(gang)) {
            let message = "the gang runs below its minimum; it is evicted unless it recovers".to_owned();
            self.board.note(note(
                ObjectReference::of(&**group),
                Severity::Normal,
                "StaleJob",
                message,
            ));
        }
    }

    fn order(&mut self, order: Order) {
        self.orders.spawn(self.writer.clone().carry_out(order));
    }

    /// Learns what came of an order; whether it failed, so that something has to be decided anew.
    fn absorb(&mut self, outcome: Outcome) -> Result<bool, kai_cluster::Error> {
        let Outcome { order, result } = outcome;
        let error = match result {
            Ok(()) => {
                self.succeeded(&order);
                return Ok(false);
            }
            Err(error) if error.is_unauthorized() => return Err(error),
            Err(error) => error,
        };
        self.index.tick_clock(self.now());
        match order {
            Order::Bind(bind) => {
                self.metrics.failed("bind");
                tracing::warn!(pod = %bind.pod, node = &*bind.placed.node, %error, "binding failed");
                self.tell_failed_binding(&bind, &error);
                let failed = Some((&*bind.placed.node, error.to_string()));
                self.index.failed(&bind.placed.pod, failed);
                self.rota.add(&bind.placed.pod);
            }
            Order::Evict(evict) => {
                self.metrics.failed("evict");
                tracing::warn!(pod = %evict.pod, %error, "eviction failed; it is decided anew");
                self.index.failed(&evict.uid, None);
            }
            Order::CleanUp(request) => {
                self.metrics.failed("clean-up");
                tracing::warn!(request = %request.key, %error, "a bind request was not deleted; it is tried again");
                self.index.clean_up_failed(&request);
            }
        }
        Ok(true)
    }

    fn succeeded(&mut self, order: &Order) {
        match order {
            Order::Bind(bind) => {
                self.index.tick_clock(self.now());
                self.index.written(&bind.placed.pod);
                self.metrics.bound_after(bind.decided.elapsed());
                if let Some(pod) = self.index.pod(&bind.pod) {
                    let pool = self.settings.partition.name();
                    let message = format!(
                        "{} is assigned to node {} of node pool {pool}",
                        bind.pod, bind.placed.node
                    );
                    self.board.note(note(
                        ObjectReference::of(&**pod),
                        Severity::Normal,
                        "Scheduled",
                        message,
                    ));
                }
            }
            Order::Evict(evict) => {
                self.index.tick_clock(self.now());
                self.index.written(&evict.uid);
            }
            Order::CleanUp(_) => {}
        }
    }

    fn tell_failed_binding(&self, bind: &Bind, error: &kai_cluster::Error) {
        let Some(pod) = self.index.pod(&bind.pod) else { return };
        let message = format!("{} could not be bound to node {}: {error}", bind.pod, bind.placed.node);
        let event = note(
            ObjectReference::of(&**pod),
            Severity::Warning,
            "FailedBinding",
            message.clone(),
        );
        self.board.note(event);
        let condition = NotScheduled {
            uid: bind.placed.pod.to_string(),
            reason: "BindingError",
            message,
            since: self.now(),
        };
        self.board.pod(&bind.pod, condition);
    }

    fn answer(&mut self) {
        let mut orders = Vec::new();
        // Who asked may have gone.
        for question in std::mem::take(&mut self.asked) {
            match question {
                Question::Pod(pod, reply) => {
                    let answer = self.index.pod(&pod).map(|object| {
                        let uid = object.metadata().uid.as_deref().unwrap_or_default();
                        Answer::about(&pod, &self.engine, &self.index, uid)
                    });
                    let _ = reply.send(answer);
                }
                Question::JobOrder(reply) => orders.push(reply),
            }
        }
        // Last, since it takes back the promises that the other answers tell of.
        for reply in orders {
            let order = self.engine.serving_order(&self.settings.config);
            let _ = reply.send(JobOrder::of(order));
        }
    }

    fn look(&mut self) {
        if self.looked.is_some_and(|at| at.elapsed() < LOOK_PERIOD) {
            return;
        }
        self.looked = Some(Instant::now());
        let queues = self.context.informers.queues();
        let display_name = |name: &str| {
            let queue = queues.get(&ObjectKey::new("", name))?;
            queue.own_display_name().map(str::to_owned)
        };
        self.metrics
            .look(&self.engine, display_name, |node| self.index.exceeds_gpus(node));
        let present = |name: &str| {
            let queue = queues.get(&ObjectKey::new("", name))?;
            Some(queue.status().fair_share.clone())
        };
        for (queue, share) in self.fair_shares.due(&self.engine.queues(), present, Instant::now()) {
            self.board.fair_share(queue, share);
        }
    }

    fn now(&self) -> Millis {
        Millis(self.context.clock.now().as_millisecond())
    }
}
