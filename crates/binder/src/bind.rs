//! Carrying out a bind request. Each pass reads what is there and goes on from it; where it has to wait it ends, and another pass
//! follows, so no bind holds up another.
//!
//! Order of writes for a pod that shares GPUs: reservation pods; labels and annotations of the pod, which announce it to other binds;
//! a mark on the reservations, which a removal under way stumbles over; ConfigMaps; the binding. The check of room comes after the
//! announcement: of two binds that compete for it at least one sees the other.

use std::time::Duration;

use kai_api::{BindPhase, BindRequest, ObjectKey, Pod, keys};
use kai_cluster::{Deletion, Part, Patch, Target, WorkResult};
use serde_json::{Map, Value, json};

use crate::GroupKey;
use crate::admit::{Admission, Applicant, admit};
use crate::books::need_mib;
use crate::devices::{NodeFacts, visible_devices};
use crate::error::{Stop, is_passing};
use crate::intent::{Intent, intent};
use crate::locks::Worker;
use crate::metrics::{BindResult, Deed};
use crate::notices::attempts;
use crate::reservation_pod::Room;
use crate::rollback::Undone;
use crate::run::Binder;
use crate::sharing::{Share, config_maps, manifest};
use crate::step::{Failure, Patience, Reservation, Step, step};

/// How often a reservation pod is looked at while it is waited for. The watch tells sooner, unless it lags.
const LOOK_PAUSE: Duration = Duration::from_secs(2);
/// Pause before another pass after something changed under this one.
pub(crate) const SOON: Duration = Duration::from_millis(100);
/// A bind that finds its groups busy is called when they are free; this is for the case that the call is lost.
const BUSY_PAUSE: Duration = Duration::from_secs(5);
/// The pod may change between the last write and the binding; more often than this in a row is a reason to start over.
const BINDING_TRIES_MAX: u32 = 5;
/// Calls that failed in a row before a bind counts as failed. An API server that restarts takes a few.
const TROUBLES_MAX: u32 = 6;

impl Binder {
    /// One pass over a bind request.
    pub(crate) async fn work_on(&self, key: ObjectKey) -> WorkResult {
        let outcome = match self.pass(&key).await {
            Ok(outcome) => outcome,
            Err(error) => {
                tracing::warn!(request = %key, %error, "a bind is tried again");
                WorkResult::Retry
            }
        };
        if outcome == WorkResult::Done {
            self.progress.forget(&key);
        }
        self.health.alive(crate::run::PART);
        self.metrics
            .queue_length
            .set(i64::try_from(self.binds.len()).unwrap_or(i64::MAX));
        outcome
    }

    async fn pass(&self, key: &ObjectKey) -> Result<WorkResult, kai_cluster::Error> {
        let Some(request) = self.client.get::<BindRequest>(&key.namespace, &key.name).await? else {
            return Ok(WorkResult::Done);
        };
        let settled = request.phase() == BindPhase::Succeeded || request.failed_for_good();
        if settled || request.metadata.is_terminating() {
            return Ok(WorkResult::Done);
        }
        let pod = self
            .client
            .get_value(Target::of::<Pod>(&key.namespace, request.pod_name()))
            .await?;
        let slim: Option<Pod> = pod
            .as_ref()
            .map(|pod| serde_json::from_value(pod.clone()).unwrap_or_default());
        let wanted = intent(&request, slim.as_ref(), &self.settings.scheduler_name);
        let (done, _hold) = match (wanted, &pod, &slim) {
            (Intent::Bound, _, Some(slim)) => return self.succeed(&request, slim).await,
            (Intent::Corrupt, ..) => return self.discard(&request).await,
            (Intent::Void(reason), ..) => {
                let unbound = slim.as_ref().filter(|pod| pod.node_name().is_none());
                return self.give_up(&request, unbound, &reason).await;
            }
            (Intent::Plain, Some(pod), _) => (self.bind_plain(&request, pod).await, None),
            (Intent::Share(groups), Some(pod), Some(slim)) => {
                let Some(hold) = self.locks.take(&groups, Worker::Bind(key.clone())) else {
                    return Ok(WorkResult::RequeueAfter(BUSY_PAUSE));
                };
                (self.bind_share(&request, pod, slim, &groups).await, Some(hold))
            }
            (Intent::Bound | Intent::Plain | Intent::Share(_), ..) => return Ok(WorkResult::Done),
        };
        match (done, &slim) {
            (Ok(()), Some(slim)) => self.succeed(&request, slim).await,
            (Err(stop), Some(slim)) => self.stopped(&request, slim, stop).await,
            (_, None) => Ok(WorkResult::Done),
        }
    }

    async fn stopped(&self, request: &BindRequest, pod: &Pod, stop: Stop) -> Result<WorkResult, kai_cluster::Error> {
        let key = ObjectKey::of(request);
        let reason = match stop {
            Stop::Later(pause) if self.progress.age(&key) < self.patience() => {
                return Ok(WorkResult::RequeueAfter(pause));
            }
            Stop::Later(_) => "what it waits for does not come about".to_owned(),
            Stop::Refused(reason) => reason,
            Stop::Call(error) if is_passing(&error) && self.progress.trouble(&key) < TROUBLES_MAX => return Err(error),
            Stop::Call(error) => error.to_string(),
        };
        self.fail(request, pod, &reason).await
    }

    /// A bind may wait for an old reservation to end and for a new one to get its GPU; what takes longer is stuck.
    fn patience(&self) -> Duration {
        self.settings.allocation_timeout * 3
    }

    async fn succeed(&self, request: &BindRequest, pod: &Pod) -> Result<WorkResult, kai_cluster::Error> {
        self.say_bound(request, pod).await?;
        self.metrics.bind(BindResult::Bound);
        Ok(WorkResult::Done)
    }

    /// The attempt failed: takes back what it wrote, then says so. In this order: whoever reads `Failed` may plan the pod anew.
    async fn fail(&self, request: &BindRequest, pod: &Pod, reason: &str) -> Result<WorkResult, kai_cluster::Error> {
        if self.roll_back(request).await? == Undone::Bound {
            return self.succeed(request, pod).await;
        }
        let attempts = attempts(request, false);
        self.say_failed(request, Some(pod), reason, attempts).await?;
        self.metrics.bind(BindResult::Failed);
        self.care_for_groups_of(request);
        self.progress.forget(&ObjectKey::of(request));
        Ok(if attempts.another {
            WorkResult::Retry
        } else {
            WorkResult::Done
        })
    }

    /// There is nothing to bind and there never will be.
    async fn give_up(
        &self,
        request: &BindRequest,
        pod: Option<&Pod>,
        reason: &str,
    ) -> Result<WorkResult, kai_cluster::Error> {
        self.say_failed(request, pod, reason, attempts(request, true)).await?;
        self.metrics.bind(BindResult::Failed);
        self.care_for_groups_of(request);
        Ok(WorkResult::Done)
    }

    async fn discard(&self, request: &BindRequest) -> Result<WorkResult, kai_cluster::Error> {
        tracing::warn!(request = %ObjectKey::of(request), "a bind request without node or GPU group is deleted");
        let target = Target::of::<BindRequest>(request.metadata.namespace(), request.metadata.plain_name());
        let only_this = Deletion {
            uid: request.metadata.uid.as_deref().map(str::to_owned),
            ..Deletion::default()
        };
        match self.client.delete(target, &only_this).await {
            Err(error) if !error.is_conflict() => Err(error),
            _ => Ok(WorkResult::Done),
        }
    }

    fn care_for_groups_of(&self, request: &BindRequest) {
        for group in request.gpu_groups() {
            self.care.add(GroupKey::new(request.selected_node(), group));
        }
    }

    async fn bind_plain(&self, request: &BindRequest, pod: &Value) -> Result<(), Stop> {
        let node = request.selected_node();
        let known = self.informers.nodes().get(&ObjectKey::new("", node)).is_some();
        if !known && self.node_facts(node).await?.is_none() {
            return Err(Stop::Refused(format!("node {node} is gone")));
        }
        let received = Map::from_iter([(
            keys::RECEIVED_RESOURCE_TYPE.to_owned(),
            Value::from(request.received_resource_type()),
        )]);
        let pod = self.announce(pod, &Map::new(), &received).await?;
        self.post_binding(&pod, node).await
    }

    async fn bind_share(
        &self,
        request: &BindRequest,
        pod: &Value,
        slim: &Pod,
        groups: &[GroupKey],
    ) -> Result<(), Stop> {
        let node = request.selected_node();
        let Some(facts) = self.node_facts(node).await? else {
            return Err(Stop::Refused(format!("node {node} is gone")));
        };
        let Some(held) = self.reserve_all(request, groups, &facts).await? else {
            return Err(Stop::Later(LOOK_PAUSE));
        };
        let gpus: Vec<String> = held.iter().map(|held| held.gpu.clone().unwrap_or_default()).collect();
        let labels = group_labels(groups);
        let annotations = Map::from_iter([
            (keys::RECEIVED_RESOURCE_TYPE.to_owned(), keys::RECEIVED_FRACTION.into()),
            (keys::RECEIVED_GPUS.to_owned(), gpus.join(",").into()),
        ]);
        let pod = self.announce(pod, &labels, &annotations).await?;
        for reservation in &held {
            self.mark(reservation, &pod).await?;
        }
        self.check_room(request, slim, groups, &gpus, &facts).await?;
        let naming = facts.naming(&self.settings, self.operator_cdi(&facts).await?);
        let share = Share {
            visible_devices: visible_devices(&gpus, naming),
            portion: request.received_gpu().1.to_owned(),
            memory_limit: self.memory_limit(request, &facts),
        };
        for (name, data) in config_maps(&pod, &share).map_err(Stop::Refused)? {
            self.put_config_map(&pod, &name, &manifest(&pod, &name, &data)).await?;
        }
        self.post_binding(&pod, node).await
    }

    /// The reservations of all groups with their GPUs; `None` while one of them does not know its GPU.
    async fn reserve_all(
        &self,
        request: &BindRequest,
        groups: &[GroupKey],
        facts: &NodeFacts,
    ) -> Result<Option<Vec<Reservation>>, Stop> {
        let mut held = Vec::with_capacity(groups.len());
        for key in groups {
            held.push(self.reserve(request, key, facts).await?);
        }
        Ok(held.into_iter().collect())
    }

    async fn reserve(
        &self,
        request: &BindRequest,
        key: &GroupKey,
        facts: &NodeFacts,
    ) -> Result<Option<Reservation>, Stop> {
        let bind = ObjectKey::of(request);
        let found = self.reservation(key).await?;
        let limit = self.settings.allocation_timeout;
        let waited = found
            .as_ref()
            .and_then(|found| self.waits.waited(key, &found.uid, found.terminating));
        let next = step(key, found.as_ref(), Patience { waited, limit });
        let anew = matches!(next, Step::Create | Step::Replace | Step::Fail(Failure::Ended));
        if anew && self.is_lost(key).await? {
            self.care.add(key.clone());
            return Err(Stop::Later(LOOK_PAUSE));
        }
        match (next, found) {
            (Step::Create, _) => {
                if self.is_scaling_up().await? {
                    return Err(Stop::Refused(
                        "nodes are being added for other pods; no GPU is reserved meanwhile".into(),
                    ));
                }
                let pod = self.new_reservation(key, facts);
                let uid = self.create_reservation(key, pod, Deed::Created).await?;
                self.waits.wait(key, &uid, false, Some(&bind));
                Ok(None)
            }
            (Step::Ready { .. }, Some(found)) => {
                self.end_wait(key, &bind);
                Ok(Some(found))
            }
            (Step::Wait | Step::WaitForEnd, Some(found)) => {
                self.waits.wait(key, &found.uid, found.terminating, Some(&bind));
                Ok(None)
            }
            (Step::Replace, Some(found)) => {
                self.remove_reservation(&found).await?;
                Err(Stop::Later(SOON))
            }
            // The node has a GPU, but no CPU or memory for who holds it: another try asks for the GPU alone.
            (Step::Fail(Failure::Ended), Some(found))
                if found.short_of_room && self.crowded.room(&key.node) == Room::Full =>
            {
                self.remove_reservation(&found).await?;
                Err(Stop::Later(SOON))
            }
            (Step::Fail(failure), Some(found)) => {
                self.drop_useless(key, &found, failure, &bind).await?;
                Err(Stop::Refused(failure.text(key, limit)))
            }
            (_, None) => Err(Stop::Later(SOON)),
        }
    }

    /// Whether pods run on the group's GPU, so that only this very GPU will do for its reservation. The care for the group sees to that;
    /// a bind that made one would take whichever GPU comes, again and again.
    async fn is_lost(&self, key: &GroupKey) -> Result<bool, kai_cluster::Error> {
        let books = self.books(&key.node, None, &[]).await?;
        Ok(books.staying(&key.group).next().is_some())
    }

    fn end_wait(&self, key: &GroupKey, bind: &ObjectKey) {
        let Some((took, binds)) = self.waits.end(key) else {
            return;
        };
        self.metrics.wait_seconds.observe(took.as_secs_f64());
        binds
            .into_iter()
            .filter(|other| other != bind)
            .for_each(|other| self.binds.add(other));
    }

    /// A reservation that did not work out goes, unless somebody else counts on it.
    async fn drop_useless(
        &self,
        key: &GroupKey,
        found: &Reservation,
        failure: Failure,
        bind: &ObjectKey,
    ) -> Result<(), Stop> {
        let remove = match failure {
            Failure::Stuck => false,
            Failure::Ended => true,
            Failure::Late => {
                let books = self.books(&key.node, None, &[]).await?;
                !books.is_used(&key.group) && !books.is_awaited(&key.group, Some(bind))
            }
        };
        if remove {
            self.remove_reservation(found).await?;
        }
        Ok(())
    }

    /// Writes labels and annotations on the pod. Group labels that are not in `labels` go: nobody but a binder may write them.
    async fn announce(
        &self,
        pod: &Value,
        labels: &Map<String, Value>,
        annotations: &Map<String, Value>,
    ) -> Result<Value, Stop> {
        let mut changed = labels.clone();
        for (key, _) in pod["metadata"]["labels"].as_object().into_iter().flatten() {
            let is_group = key == keys::GPU_GROUP || key.starts_with(keys::GPU_GROUP_PREFIX);
            if is_group && !labels.contains_key(key) {
                changed.insert(key.clone(), Value::Null);
            }
        }
        let body =
            json!({ "metadata": { "uid": pod["metadata"]["uid"], "labels": changed, "annotations": annotations } });
        Ok(self
            .client
            .patch(target_of(pod), Part::Status, Patch::Merge(body))
            .await?)
    }

    /// Marks the reservation as used, so that a removal that was decided before fails.
    async fn mark(&self, reservation: &Reservation, pod: &Value) -> Result<(), Stop> {
        let target = Target::of::<Pod>(&self.settings.reservation_namespace, &reservation.name);
        let target_pod = target_of(pod);
        let user = format!("{}/{}", target_pod.namespace, target_pod.name);
        let body = json!({ "metadata": {
            "uid": reservation.uid, "annotations": { keys::RESERVATION_LAST_USER: user },
        } });
        let marked = match self.client.patch(target, Part::Status, Patch::Merge(body)).await {
            Ok(marked) => serde_json::from_value::<Pod>(marked).unwrap_or_default(),
            Err(error) if error.is_not_found() || error.is_conflict() => return Err(Stop::Later(SOON)),
            Err(error) => return Err(error.into()),
        };
        let now = Reservation::of(&marked);
        let intact = now.alive && !now.terminating && now.uid == reservation.uid && now.gpu == reservation.gpu;
        if intact { Ok(()) } else { Err(Stop::Later(SOON)) }
    }

    async fn check_room(
        &self,
        request: &BindRequest,
        pod: &Pod,
        groups: &[GroupKey],
        gpus: &[String],
        facts: &NodeFacts,
    ) -> Result<(), Stop> {
        let books = self.books(request.selected_node(), facts.memory_mib, groups).await?;
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        for (key, gpu) in groups.iter().zip(gpus) {
            let need_mib = need_mib(pod, Some(request), books.memory_mib);
            match admit(key, &books, Applicant { uid, need_mib, gpu }) {
                Admission::Granted => {}
                Admission::Later => return Err(Stop::Later(LOOK_PAUSE)),
                Admission::Refused(reason) => return Err(Stop::Refused(reason)),
            }
        }
        Ok(())
    }

    fn memory_limit(&self, request: &BindRequest, facts: &NodeFacts) -> Option<String> {
        if !self.settings.hami_core {
            return None;
        }
        let portion: f64 = request.received_gpu().1.parse().ok()?;
        let limit_mib = (facts.memory_label_mib? as f64 * portion) as i64;
        (limit_mib > 0).then(|| format!("{limit_mib}m"))
    }

    /// Binds the pod as announced. A conflict or a lost answer is settled by a look at the pod.
    async fn post_binding(&self, announced: &Value, node: &str) -> Result<(), Stop> {
        let target = target_of(announced);
        let uid = announced["metadata"]["uid"].as_str().unwrap_or_default();
        let mut version = announced["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        for _ in 0..BINDING_TRIES_MAX {
            let Err(error) = self.client.bind_unchanged(target, uid, &version, node).await else {
                return Ok(());
            };
            if !is_passing(&error) {
                return Err(error.into());
            }
            let Some(now) = self.client.get_value(target).await? else {
                return Err(Stop::Refused("the pod is gone".into()));
            };
            if now["metadata"]["uid"] != announced["metadata"]["uid"] {
                return Err(Stop::Refused("the pod is gone".into()));
            }
            match now["spec"]["nodeName"].as_str().filter(|bound| !bound.is_empty()) {
                Some(bound) if bound == node => return Ok(()),
                Some(bound) => return Err(Stop::Refused(format!("the pod is bound to node {bound} already"))),
                None => {}
            }
            let changed = now["metadata"]["resourceVersion"] != version.as_str();
            if !error.is_conflict() || !changed || groups_in(&now) != groups_in(announced) {
                return Err(error.into());
            }
            version = now["metadata"]["resourceVersion"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
        }
        Err(Stop::Later(SOON))
    }
}

/// One label for a single GPU, one per group for several.
fn group_labels(groups: &[GroupKey]) -> Map<String, Value> {
    match groups {
        [only] => Map::from_iter([(keys::GPU_GROUP.to_owned(), Value::from(&*only.group))]),
        several => {
            let label = |key: &GroupKey| {
                (
                    format!("{}{}", keys::GPU_GROUP_PREFIX, key.group),
                    Value::from(&*key.group),
                )
            };
            several.iter().map(label).collect()
        }
    }
}

fn groups_in(pod: &Value) -> Vec<(String, Value)> {
    let labels = pod["metadata"]["labels"].as_object().into_iter().flatten();
    let groups = labels.filter(|(key, _)| *key == keys::GPU_GROUP || key.starts_with(keys::GPU_GROUP_PREFIX));
    groups.map(|(key, value)| (key.clone(), value.clone())).collect()
}

pub(crate) fn target_of(pod: &Value) -> Target<'_> {
    let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
    Target::of::<Pod>(text("namespace"), text("name"))
}
