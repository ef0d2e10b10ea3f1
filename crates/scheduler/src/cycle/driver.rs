//! The task that owns the mirror and the engine. A cycle applies changes, lets the engine decide, starts the writes and explains pending
//! pods. Between cycles the driver handles results of writes and applies changes as they come, so that a cycle starts with few of them.
//! The driver never waits for a write, and no other task waits for a cycle.

mod answers;

use std::sync::Arc;

use kai_api::{Object, ObjectKey, ObjectReference};
use kai_cluster::{ObjectEvent, Severity};
use kai_engine::model::{BindInFlight, GangKey, Millis};
use kai_engine::report::{Decision, Placed, Report};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::HEALTH_NAME;
use super::blocking::run_blocking;
use super::cycle_timer::CycleTimer;
use super::evictions::Evictions;
use super::fair_shares::FairShares;
use super::sources::Sources;
use crate::Settings;
use crate::debug_endpoints::{DebugRequest, RunningFlag};
use crate::decision_log::{AfterCycle, DecisionLog};
use crate::explain::{ExplainQueue, event, explain};
use crate::metrics::{CycleTimes, Metrics};
use crate::usage::UsageFeed;
use crate::writers::{
    Annotation, Bind, Evict, NotScheduled, StatusQueue, WriteCommand, WriteLimiter, WriteResult, Writer, rfc3339,
};
use kai_mirror::{Assumed, ClusterMirror, GangTimestamp, pod_group_key};

/// The time between two checks of fair shares and invariants. A check visits every node.
const CHECK_PERIOD: std::time::Duration = std::time::Duration::from_secs(5);

/// Between cycles the driver applies changes this long after the first of them. A wake-up per change would cost more than the change, and
/// to apply all of them at the start of a cycle would delay its decisions.
const APPLY_DELAY: std::time::Duration = std::time::Duration::from_millis(4);

pub(super) struct Driver {
    context: kai_cluster::Context,
    settings: Arc<Settings>,
    metrics: Arc<Metrics>,
    status_queue: StatusQueue,
    writer: Writer,
    wake: Arc<Notify>,
    sources: Sources,
    mirror: ClusterMirror,
    engine: kai_engine::Cluster,
    explain_queue: ExplainQueue,
    writes: JoinSet<WriteResult>,
    /// Answered at the end of the next cycle.
    debug_requests: Vec<DebugRequest>,
    views: answers::Views,
    decisions: DecisionLog,
    /// The time of the last cycle.
    cycle_time: Millis,
    running: RunningFlag,
    last_check: Option<Instant>,
    fair_shares: FairShares,
    usage: UsageFeed,
}

impl Driver {
    pub(super) fn new(
        context: &kai_cluster::Context,
        settings: &Arc<Settings>,
        metrics: &Arc<Metrics>,
        status_queue: &StatusQueue,
        write_limiter: &Arc<WriteLimiter>,
        running: RunningFlag,
        usage: UsageFeed,
    ) -> Driver {
        let wake = Arc::default();
        Driver {
            sources: Sources::new(&context.informers, &wake, &settings.mirror()),
            mirror: ClusterMirror::new(&settings.mirror()),
            writer: Writer::new(context, settings, write_limiter),
            context: context.clone(),
            settings: Arc::clone(settings),
            metrics: Arc::clone(metrics),
            status_queue: status_queue.clone(),
            wake,
            engine: kai_engine::Cluster::new(),
            explain_queue: ExplainQueue::default(),
            writes: JoinSet::new(),
            debug_requests: Vec::new(),
            views: answers::Views::default(),
            decisions: DecisionLog::default(),
            cycle_time: Millis(0),
            running,
            last_check: None,
            fair_shares: FairShares::default(),
            usage,
        }
    }

    /// Runs cycles until the API server rejects our credentials.
    pub(super) async fn run(mut self, debug_requests: &mut mpsc::Receiver<DebugRequest>) -> kai_cluster::Error {
        self.sources.synced().await;
        self.usage.started().await;
        self.usage.update(self.now(), &mut self.engine, &self.metrics);
        self.mirror.tick(self.now());
        run_blocking(|| self.sources.apply_changes(&mut self.mirror, &mut self.engine));
        self.mirror.mark_synced();
        loop {
            let started = Instant::now();
            let decided = run_blocking(|| self.run_cycle());
            self.running.set();
            self.context.health.alive(HEALTH_NAME);
            let due = started + self.settings.schedule_period;
            if let Err(error) = self.wait(due, decided, debug_requests).await {
                return error;
            }
        }
    }

    /// Waits until the next cycle is due: after the schedule period, or sooner after a change, a failed write or a debug request.
    ///
    /// A change may come while the driver answers a request, since `decided` or later. The time of the answer counts as gathering: somebody
    /// who looks delays no decision, as long as an answer takes less than the gather period.
    async fn wait(
        &mut self,
        mut due: Instant,
        decided: Instant,
        debug_requests: &mut mpsc::Receiver<DebugRequest>,
    ) -> Result<(), kai_cluster::Error> {
        let mut changed = false;
        let mut apply_at: Option<Instant> = None;
        let gather_period = self.settings.gather_period;
        if has_woken(&self.wake).await {
            changed = true;
            apply_at = Some(decided + APPLY_DELAY);
            due = due.min(decided + gather_period);
        }
        loop {
            let next = apply_at.map_or(due, |at| at.min(due));
            tokio::select! {
                biased;
                Some(joined) = self.writes.join_next(), if !self.writes.is_empty() => {
                    // A panic fails one write only.
                    match joined.map(|result| self.handle_write_result(result)) {
                        Ok(failed) => if failed? { due = due.min(Instant::now() + gather_period) },
                        Err(error) => tracing::error!(%error, "a write panicked"),
                    }
                }
                Some(request) = debug_requests.recv() => {
                    let asked = Instant::now();
                    if run_blocking(|| self.accept_debug_request(request)) {
                        due = due.min(asked + gather_period);
                    }
                    if apply_at.is_none() && has_woken(&self.wake).await {
                        apply_at = Some(asked + APPLY_DELAY);
                        if !std::mem::replace(&mut changed, true) {
                            due = due.min(asked + gather_period);
                        }
                    }
                }
                () = self.wake.notified(), if apply_at.is_none() => {
                    apply_at = Some(Instant::now() + APPLY_DELAY);
                    if !std::mem::replace(&mut changed, true) {
                        due = due.min(Instant::now() + gather_period);
                    }
                }
                () = tokio::time::sleep_until(next) => {
                    if next == due {
                        return Ok(());
                    }
                    apply_at = None;
                    self.views.engine_changed();
                    run_blocking(|| self.apply_changes(self.now()));
                }
            }
        }
    }

    /// Returns when the cycle's own work was done: answers come after it.
    fn run_cycle(&mut self) -> Instant {
        let (now, start) = (self.now(), Instant::now());
        self.cycle_time = now;
        self.usage.update(now, &mut self.engine, &self.metrics);
        self.apply_changes(now);
        let applied = Instant::now();
        let mut timer = CycleTimer::default();
        let observe = &mut |moment| timer.record(moment);
        let report = self.engine.cycle_observed(now, &self.settings.config, observe);
        let decided = Instant::now();
        self.execute(&report, now);
        explain(
            &self.engine,
            &self.mirror,
            &mut self.explain_queue,
            &self.status_queue,
            self.settings.partition.name(),
            now,
        );
        self.check_shares_and_invariants(now);
        let times = CycleTimes {
            apply: applied - start,
            decide: decided - applied,
            execute: decided.elapsed(),
            actions: timer.action_durations(decided),
            searches: timer.searches,
        };
        self.metrics.cycle(&times);
        self.metrics.report(&report);
        self.metrics.set_backlogs(
            self.explain_queue.len(),
            self.mirror.assumed_count(),
            self.status_queue.len(),
        );
        // After the cycle's times are taken: its decisions are on their way, and an answer delays none of them.
        let done = Instant::now();
        if !self.views.cycle_ended() {
            self.decisions.drop_shown();
        }
        self.answer_debug_requests();
        done
    }

    fn apply_changes(&mut self, now: Millis) {
        let started = Instant::now();
        self.apply_changes_untimed(now);
        self.metrics.changes_applied(started.elapsed());
    }

    fn apply_changes_untimed(&mut self, now: Millis) {
        for (pod, node) in self.mirror.tick(now) {
            self.metrics.write_failed("unseen");
            tracing::warn!(%pod, node, "the watch did not show a binding in time; the pod is scheduled again");
        }
        self.sources.apply_changes(&mut self.mirror, &mut self.engine);
        let outbox = self.mirror.take_outbox();
        for event in outbox.events {
            self.engine.apply(event);
        }
        for found in outbox.problems {
            tracing::warn!("{}", found.problem);
            let message = found.problem.to_string();
            self.status_queue
                .add_event(event(found.object, Severity::Warning, "Invalid", message));
        }
        for request in outbox.stale_bind_requests {
            tracing::info!(request = %request.key, why = request.reason, "deleting a bind request");
            self.start_write(WriteCommand::DeleteBindRequest(request));
        }
        for uid in outbox.pending_pods {
            self.explain_queue.add(&uid);
        }
        for gang in outbox.changed_pod_groups {
            if !self.mirror.has_unbound_pods(&gang) {
                self.explain_queue.remove_gang(&gang);
                let pod_group = self.mirror.pod_group(&gang);
                if pod_group.is_some_and(|pod_group| !pod_group.scheduling_conditions().is_empty()) {
                    self.status_queue.set_pod_group_condition(&gang, None);
                }
            }
        }
    }

    /// Starts the writes of a cycle's decisions and assumes them in the mirror.
    fn execute(&mut self, report: &Report, now: Millis) {
        let mut evictions = Evictions::default();
        for decision in &report.decisions {
            match decision {
                Decision::Bind(placed) => {
                    let after = AfterCycle::new(&self.mirror, &self.engine, now);
                    self.decisions.bind(placed, after);
                    self.bind(placed, now);
                }
                // The engine decides these anew in each cycle; `explain` reports them.
                Decision::Pipeline(placed) => {
                    let after = AfterCycle::new(&self.mirror, &self.engine, now);
                    self.decisions.promise(placed, after);
                }
                Decision::Evict { pod, reason } => {
                    let after = AfterCycle::new(&self.mirror, &self.engine, now);
                    self.decisions.evict(pod, reason, after);
                    let Some((key, _)) = self.mirror.pod_by_uid(pod) else {
                        continue;
                    };
                    let name = |gang: &GangKey| self.mirror.workload(gang);
                    let evict = Evict {
                        pod: key.clone(),
                        uid: pod.to_string(),
                        message: reason.with_names(&name).to_string(),
                    };
                    if let Some(gang) = self.mirror.gang_of(pod) {
                        evictions.add(&gang, &evict.pod.name, reason);
                    }
                    self.mirror.assume(pod, Assumed::Evicting(now));
                    self.start_write(WriteCommand::Evict(evict));
                }
                Decision::Started(gang) => self.set_timestamp(&pod_group_key(gang), GangTimestamp::Started(now)),
                Decision::Evicted(gang) => self.set_timestamp(&pod_group_key(gang), GangTimestamp::Evicted(now)),
                Decision::Stale { gang, since } => {
                    self.set_timestamp(&pod_group_key(gang), GangTimestamp::Stale(Some(*since)))
                }
                Decision::Recovered(gang) => self.set_timestamp(&pod_group_key(gang), GangTimestamp::Stale(None)),
            }
        }
        self.decisions.end_cycle(&self.mirror);
        let pool = self.settings.partition.name();
        evictions.emit(&self.mirror, &self.status_queue, &self.metrics, pool);
    }

    fn bind(&mut self, placed: &Placed, now: Millis) {
        let Some((key, pod)) = self.mirror.pod_by_uid(&placed.pod) else {
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
            volumes: placed.volumes.clone(),
        };
        self.mirror.assume(&placed.pod, Assumed::Bound(bind));
        self.explain_queue.remove(&placed.pod);
        self.status_queue.drop_pod_condition(&key);
        self.start_write(WriteCommand::Bind(Bind {
            pod: key,
            placed: placed.clone(),
            decided: Instant::now(),
        }));
    }

    /// Records a timestamp of the gang and writes its annotation.
    fn set_timestamp(&mut self, gang: &ObjectKey, timestamp: GangTimestamp) {
        let (key, value) = match timestamp {
            GangTimestamp::Started(at) => (kai_api::keys::LAST_START, Some(at)),
            GangTimestamp::Evicted(at) => (kai_api::keys::LAST_EVICTION, Some(at)),
            GangTimestamp::Stale(since) => (kai_api::keys::STALE_SINCE, since),
        };
        if !self.mirror.record_timestamp(gang, timestamp) {
            return;
        }
        let value = value.map(rfc3339);
        self.status_queue.annotate(gang, Annotation { key, value });
        if let (GangTimestamp::Stale(Some(_)), Some(pod_group)) = (timestamp, self.mirror.pod_group(gang)) {
            let message = "the gang runs below its minimum; it is evicted unless it recovers".to_owned();
            self.status_queue.add_event(event(
                ObjectReference::of(&**pod_group),
                Severity::Normal,
                "StaleJob",
                message,
            ));
        }
    }

    fn start_write(&mut self, command: WriteCommand) {
        self.writes.spawn(self.writer.clone().execute(command));
    }

    /// Updates the mirror with the result of a write. Returns whether the write failed, so that a new cycle is needed.
    fn handle_write_result(&mut self, write: WriteResult) -> Result<bool, kai_cluster::Error> {
        let WriteResult { command, result } = write;
        let error = match result {
            Ok(()) => {
                self.write_succeeded(&command);
                return Ok(false);
            }
            Err(error) if error.is_unauthorized() => return Err(error),
            Err(error) => error,
        };
        self.mirror.set_time(self.now());
        match command {
            WriteCommand::Bind(bind) => {
                self.metrics.write_failed("bind");
                tracing::warn!(pod = %bind.pod, node = &*bind.placed.node, %error, "binding failed");
                self.report_failed_binding(&bind, &error);
                let failed = Some((&*bind.placed.node, error.to_string()));
                self.mirror.write_failed(&bind.placed.pod, failed);
                self.explain_queue.add(&bind.placed.pod);
            }
            WriteCommand::Evict(evict) => {
                self.metrics.write_failed("evict");
                tracing::warn!(pod = %evict.pod, %error, "eviction failed; the next cycle decides again");
                self.mirror.write_failed(&evict.uid, None);
            }
            WriteCommand::DeleteBindRequest(request) => {
                self.metrics.write_failed("clean-up");
                tracing::warn!(request = %request.key, %error, "a bind request was not deleted; it is tried again");
                self.mirror.deletion_failed(&request);
            }
        }
        Ok(true)
    }

    fn write_succeeded(&mut self, command: &WriteCommand) {
        match command {
            WriteCommand::Bind(bind) => {
                self.mirror.set_time(self.now());
                self.mirror.write_succeeded(&bind.placed.pod);
                self.metrics.bound_after(bind.decided.elapsed());
                if let Some(pod) = self.mirror.pod(&bind.pod) {
                    let pool = self.settings.partition.name();
                    let message = format!(
                        "{} is assigned to node {} of node pool {pool}",
                        bind.pod, bind.placed.node
                    );
                    let action = bind.placed.action.name().to_owned();
                    self.status_queue.add_event(ObjectEvent {
                        annotations: vec![(kai_api::keys::EVENT_PLACED_BY, action)],
                        ..event(ObjectReference::of(&**pod), Severity::Normal, "Scheduled", message)
                    });
                }
            }
            WriteCommand::Evict(evict) => {
                self.mirror.set_time(self.now());
                self.mirror.write_succeeded(&evict.uid);
            }
            WriteCommand::DeleteBindRequest(_) => {}
        }
    }

    fn report_failed_binding(&self, bind: &Bind, error: &kai_cluster::Error) {
        let Some(pod) = self.mirror.pod(&bind.pod) else { return };
        let message = format!("{} could not be bound to node {}: {error}", bind.pod, bind.placed.node);
        let event = event(
            ObjectReference::of(&**pod),
            Severity::Warning,
            "FailedBinding",
            message.clone(),
        );
        self.status_queue.add_event(event);
        let condition = NotScheduled {
            uid: bind.placed.pod.to_string(),
            reason: "BindingError",
            message,
            since: self.now(),
        };
        self.status_queue.set_pod_condition(&bind.pod, condition);
    }

    /// Updates the metrics of queues, nodes and invariants, and writes changed fair shares. Runs once per `CHECK_PERIOD`.
    fn check_shares_and_invariants(&mut self, now: Millis) {
        if self.last_check.is_some_and(|at| at.elapsed() < CHECK_PERIOD) {
            return;
        }
        self.last_check = Some(Instant::now());
        self.usage.observe(now, &self.engine);
        let queues = self.context.informers.queues();
        let display_name = |name: &str| {
            let queue = queues.get(&ObjectKey::new("", name))?;
            queue.own_display_name().map(str::to_owned)
        };
        self.metrics.check_cluster(&self.engine, now, display_name, |node| {
            self.mirror.overcommits_gpus(node)
        });
        let present = |name: &str| {
            let queue = queues.get(&ObjectKey::new("", name))?;
            Some(queue.status().fair_share.clone())
        };
        for (queue, share) in self.fair_shares.due(&self.engine.queues(), present, Instant::now()) {
            self.status_queue.set_fair_share(queue, share);
        }
    }

    fn now(&self) -> Millis {
        Millis(self.context.clock.now().as_millisecond())
    }
}

/// Whether a change has come since the last one that was waited for.
async fn has_woken(wake: &Notify) -> bool {
    tokio::select! {
        biased;
        () = wake.notified() => true,
        () = std::future::ready(()) => false,
    }
}
