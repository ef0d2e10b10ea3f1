//! One attempt to carry out a BindRequest. The steps and their order are in the documentation of the parent module.

use std::time::Duration;

use kai_api::{BindPhase, BindRequest, GpuSharingMode, ObjectKey, Pod, keys};
use kai_cluster::{Deletion, Part, Patch, Target, WorkResult};
use serde_json::{Map, Value, json};

use crate::GpuGroupKey;
use crate::bind::failure::BindFailure;
use crate::bind::final_check::{CheckResult, RequestedShare, final_check};
use crate::bind::gpu_share::{GpuShare, config_maps, manifest};
use crate::bind::limits::{AskedShare, Promise, is_written_by_binder};
use crate::bind::plan::{BindPlan, bind_plan};
use crate::bind::report::count_attempt;
use crate::bind::reserve::RESERVATION_POLL;
use crate::bind::rollback::RollbackResult;
use crate::error::{NotBound, is_transient};
use crate::node::allocations::requested_mib;
use crate::node::facts::{NodeFacts, annotated_devices, visible_devices};
use crate::reservation::locks::LockOwner;
use crate::shell::metrics::BindResult;
use crate::shell::run::Binder;

/// Pause before the next attempt after another writer changed an object of this one.
pub(crate) const RETRY_SOON: Duration = Duration::from_millis(100);
/// Pause of a bind whose groups are locked. The lock requeues the bind when it is released; this is a safeguard.
const LOCKED_PAUSE: Duration = Duration::from_secs(5);
/// How often a Binding is retried because the pod changed after the last write. Beyond that the attempt starts over.
const BINDING_TRIES_MAX: u32 = 5;
/// Failed calls in a row before a bind counts as failed. A restart of the API server causes a few.
const FAILED_CALLS_MAX: u32 = 6;

impl Binder {
    /// One attempt to carry out a BindRequest.
    pub(crate) async fn reconcile_request(&self, key: ObjectKey) -> WorkResult {
        let result = match self.try_bind(&key).await {
            Ok(result) => result,
            Err(error) => {
                tracing::warn!(request = %key, %error, "an attempt to bind a pod failed; it is tried again");
                WorkResult::Retry
            }
        };
        if result == WorkResult::Done {
            self.progress.forget(&key);
        }
        self.health.alive(crate::shell::run::HEALTH_COMPONENT);
        self.metrics
            .queue_length
            .set(i64::try_from(self.bind_queue.len()).unwrap_or(i64::MAX));
        result
    }

    async fn try_bind(&self, key: &ObjectKey) -> Result<WorkResult, kai_cluster::Error> {
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
        let read = pod.as_ref().zip(slim.as_ref());
        let plan = bind_plan(&request, read, &self.settings.identity.scheduler_name);
        let (bound, _guard) = match (plan, &pod, &slim) {
            (BindPlan::AlreadyBound, _, Some(slim)) => return self.succeed(&request, slim).await,
            (BindPlan::DeleteRequest, ..) => return self.delete_request(&request).await,
            (BindPlan::Unbindable(failure), ..) => {
                let unbound = slim.as_ref().filter(|pod| pod.node_name().is_none());
                return self.fail_for_good(&request, unbound, &failure.to_string()).await;
            }
            (BindPlan::BindWithoutShare, Some(pod), _) => (self.bind_without_share(&request, pod).await, None),
            (BindPlan::BindShare(groups, asked), Some(pod), Some(slim)) => {
                let Some(guard) = self.locks.try_lock(&groups, LockOwner::Bind(key.clone())) else {
                    return Ok(WorkResult::RequeueAfter(LOCKED_PAUSE));
                };
                (self.bind_share(&request, pod, slim, &groups, &asked).await, Some(guard))
            }
            (BindPlan::AlreadyBound | BindPlan::BindWithoutShare | BindPlan::BindShare(..), ..) => {
                return Ok(WorkResult::Done);
            }
        };
        match (bound, &slim) {
            (Ok(()), Some(slim)) => self.succeed(&request, slim).await,
            (Err(cause), Some(slim)) => self.handle_not_bound(&request, slim, cause).await,
            (_, None) => Ok(WorkResult::Done),
        }
    }

    async fn handle_not_bound(
        &self,
        request: &BindRequest,
        pod: &Pod,
        cause: NotBound,
    ) -> Result<WorkResult, kai_cluster::Error> {
        let key = ObjectKey::of(request);
        let reason = match cause {
            NotBound::RetryAfter(pause) if self.progress.elapsed(&key) < self.wait_limit(request) => {
                return Ok(WorkResult::RequeueAfter(pause));
            }
            NotBound::RetryAfter(_) => BindFailure::TimedOut.to_string(),
            NotBound::Failed(failure) => failure.to_string(),
            NotBound::Call(error)
                if is_transient(&error) && self.progress.count_failed_call(&key) < FAILED_CALLS_MAX =>
            {
                return Err(error);
            }
            NotBound::Call(error) => error.to_string(),
        };
        self.fail(request, pod, &reason).await
    }

    /// How long a bind may wait in all: for volumes, for an old reservation pod to terminate, and for a new one to get its GPU.
    fn wait_limit(&self, request: &BindRequest) -> Duration {
        let for_volumes = match request.selected_volumes() {
            [] => Duration::ZERO,
            [_, ..] => self.settings.volume_binding_timeout,
        };
        for_volumes + self.settings.allocation_timeout * 3
    }

    async fn succeed(&self, request: &BindRequest, pod: &Pod) -> Result<WorkResult, kai_cluster::Error> {
        self.report_bound(request, pod).await?;
        self.metrics.bind(BindResult::Bound);
        Ok(WorkResult::Done)
    }

    /// The attempt failed: rolls back, then reports the failure. In this order, because the scheduler may place the pod again as soon as
    /// it reads `Failed`.
    async fn fail(&self, request: &BindRequest, pod: &Pod, reason: &str) -> Result<WorkResult, kai_cluster::Error> {
        if self.roll_back(request).await? == RollbackResult::AlreadyBound {
            return self.succeed(request, pod).await;
        }
        self.roll_back_volumes(request).await?;
        let attempts = count_attempt(request, false);
        self.report_failed(request, Some(pod), reason, attempts).await?;
        self.metrics.bind(BindResult::Failed);
        self.queue_groups_for_gc(request);
        self.progress.forget(&ObjectKey::of(request));
        Ok(if attempts.another {
            WorkResult::Retry
        } else {
            WorkResult::Done
        })
    }

    /// The pod can never be bound by this request: reports the failure and spends all remaining attempts.
    async fn fail_for_good(
        &self,
        request: &BindRequest,
        pod: Option<&Pod>,
        reason: &str,
    ) -> Result<WorkResult, kai_cluster::Error> {
        self.roll_back_volumes(request).await?;
        self.report_failed(request, pod, reason, count_attempt(request, true))
            .await?;
        self.metrics.bind(BindResult::Failed);
        self.queue_groups_for_gc(request);
        Ok(WorkResult::Done)
    }

    async fn delete_request(&self, request: &BindRequest) -> Result<WorkResult, kai_cluster::Error> {
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

    fn queue_groups_for_gc(&self, request: &BindRequest) {
        for group in request.gpu_groups() {
            self.gc_queue.add(GpuGroupKey::new(request.selected_node(), group));
        }
    }

    async fn bind_without_share(&self, request: &BindRequest, pod: &Value) -> Result<(), NotBound> {
        let node = request.selected_node();
        let known = self.informers.nodes().get(&ObjectKey::new("", node)).is_some();
        if !known && self.node_facts(node).await?.is_none() {
            return Err(BindFailure::NodeGone { node: node.to_owned() }.into());
        }
        self.bind_volumes(request).await?;
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
        groups: &[GpuGroupKey],
        asked: &AskedShare,
    ) -> Result<(), NotBound> {
        let node = request.selected_node();
        let Some(facts) = self.node_facts(node).await? else {
            return Err(BindFailure::NodeGone { node: node.to_owned() }.into());
        };
        self.bind_volumes(request).await?;
        let promise = asked.promise(node, &facts, self.settings.gpu_sharing)?;
        let memory_limit = self.memory_limit(request, asked, promise.as_ref(), &facts)?;
        let Some(held) = self
            .reserve_all(request, groups, &facts, asked.terms.compute_mode)
            .await?
        else {
            return Err(NotBound::RetryAfter(RESERVATION_POLL));
        };
        let gpus: Vec<String> = held.iter().map(|held| held.gpu.clone().unwrap_or_default()).collect();
        let naming = facts.naming(&self.settings, self.operator_cdi(&facts).await?);
        let labels = group_labels(groups);
        let devices = annotated_devices(&gpus, naming);
        let mut annotations = asked.annotations(pod, promise.as_ref(), facts.tier, &devices);
        annotations.extend([
            (keys::RECEIVED_RESOURCE_TYPE.to_owned(), keys::RECEIVED_FRACTION.into()),
            (keys::RECEIVED_GPUS.to_owned(), gpus.join(",").into()),
        ]);
        let pod = self.announce(pod, &labels, &annotations).await?;
        for reservation in &held {
            self.mark_reservation_used(reservation, &pod).await?;
        }
        self.run_final_check(request, slim, groups, &gpus, &facts).await?;
        let share = GpuShare {
            visible_devices: visible_devices(&gpus, naming),
            portion: request.portion(),
            memory_limit,
        };
        // Whatever the mode of GPU sharing was when the pod was created: what it refers to must exist, and its GPU comes one way or the other.
        if refers_to_config_maps(&pod) || !asked.has_share_device {
            for (name, data) in config_maps(&pod, &share)? {
                self.put_config_map(&pod, &name, &manifest(&pod, &name, &data)).await?;
            }
        }
        self.post_binding(&pod, node).await?;
        if let Some(warning) = asked.warning(slim, node, &facts) {
            self.warn_of_missing_limit(slim, warning).await;
        }
        Ok(())
    }

    /// Writes labels and annotations on the pod, and removes the other labels and annotations of binders: only a binder may write them.
    async fn announce(
        &self,
        pod: &Value,
        labels: &Map<String, Value>,
        annotations: &Map<String, Value>,
    ) -> Result<Value, NotBound> {
        let mut changed = labels.clone();
        for (key, _) in pod["metadata"]["labels"].as_object().into_iter().flatten() {
            if keys::is_gpu_group_label(key) && !labels.contains_key(key) {
                changed.insert(key.clone(), Value::Null);
            }
        }
        let mut annotations = annotations.clone();
        for (key, _) in pod["metadata"]["annotations"].as_object().into_iter().flatten() {
            if is_written_by_binder(pod, key) && !annotations.contains_key(key) {
                annotations.insert(key.clone(), Value::Null);
            }
        }
        let body =
            json!({ "metadata": { "uid": pod["metadata"]["uid"], "labels": changed, "annotations": annotations } });
        Ok(self
            .client
            .patch(target_of(pod), Part::Status, Patch::Merge(body))
            .await?)
    }

    async fn run_final_check(
        &self,
        request: &BindRequest,
        pod: &Pod,
        groups: &[GpuGroupKey],
        gpus: &[String],
        facts: &NodeFacts,
    ) -> Result<(), NotBound> {
        let allocations = self
            .node_allocations(request.selected_node(), facts.memory_mib, groups)
            .await?;
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        for (key, gpu) in groups.iter().zip(gpus) {
            let requested_mib = requested_mib(pod, Some(request), allocations.memory_mib);
            match final_check(
                key,
                &allocations,
                RequestedShare {
                    uid,
                    requested_mib,
                    gpu,
                },
            ) {
                CheckResult::Passed => {}
                CheckResult::Wait => return Err(NotBound::RetryAfter(RESERVATION_POLL)),
                CheckResult::Failed(failure) => return Err(failure.into()),
            }
        }
        Ok(())
    }

    /// The limit for HAMi's library, where it is in use: KAI's amount, or the limit that the pod gave. Without an amount the bind fails,
    /// because the container would run without a limit.
    fn memory_limit(
        &self,
        request: &BindRequest,
        asked: &AskedShare,
        promise: Option<&Promise>,
        facts: &NodeFacts,
    ) -> Result<Option<String>, BindFailure> {
        if self.settings.gpu_sharing != GpuSharingMode::HamiCore {
            return Ok(None);
        }
        let promise = promise.ok_or_else(|| BindFailure::GpuMemoryUnknown {
            node: request.selected_node().to_owned(),
        })?;
        let of_request = request.portion().filter(|_| asked.terms.limit.is_none());
        let of_request = of_request.zip(facts.memory_label_mib);
        let of_request = of_request.and_then(|(portion, memory_mib)| u64::try_from(portion.of_mib(memory_mib)).ok());
        let limit_mib = of_request.filter(|mib| *mib > 0).unwrap_or(promise.limits.memory_mib);
        Ok(Some(format!("{limit_mib}m")))
    }

    /// Creates the Binding for the pod as announced. After a conflict or a lost response a read of the pod shows the result.
    async fn post_binding(&self, announced: &Value, node: &str) -> Result<(), NotBound> {
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
            if !is_transient(&error) {
                return Err(error.into());
            }
            let Some(now) = self.client.get_value(target).await? else {
                return Err(BindFailure::PodGone.into());
            };
            if now["metadata"]["uid"] != announced["metadata"]["uid"] {
                return Err(BindFailure::PodGone.into());
            }
            match now["spec"]["nodeName"].as_str().filter(|bound| !bound.is_empty()) {
                Some(bound) if bound == node => return Ok(()),
                Some(bound) => return Err(BindFailure::BoundElsewhere { node: bound.to_owned() }.into()),
                None => {}
            }
            let changed = now["metadata"]["resourceVersion"] != version.as_str();
            if !error.is_conflict() || !changed || group_labels_of(&now) != group_labels_of(announced) {
                return Err(error.into());
            }
            version = now["metadata"]["resourceVersion"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
        }
        Err(NotBound::RetryAfter(RETRY_SOON))
    }
}

/// Whether the pod refers to ConfigMaps for its devices. In the mode `NvFractions` admission lets pods do without.
fn refers_to_config_maps(pod: &Value) -> bool {
    pod["metadata"]["annotations"][keys::SHARED_GPU_CONFIG_MAP].is_string()
}

/// The group labels of a pod: one fixed key for a single GPU, one key per group for several.
fn group_labels(groups: &[GpuGroupKey]) -> Map<String, Value> {
    match groups {
        [only] => Map::from_iter([(keys::GPU_GROUP.to_owned(), Value::from(&*only.group))]),
        several => {
            let label = |key: &GpuGroupKey| {
                (
                    format!("{}{}", keys::GPU_GROUP_PREFIX, key.group),
                    Value::from(&*key.group),
                )
            };
            several.iter().map(label).collect()
        }
    }
}

fn group_labels_of(pod: &Value) -> Vec<(String, Value)> {
    let labels = pod["metadata"]["labels"].as_object().into_iter().flatten();
    let groups = labels.filter(|(key, _)| keys::is_gpu_group_label(key));
    groups.map(|(key, value)| (key.clone(), value.clone())).collect()
}

pub(crate) fn target_of(pod: &Value) -> Target<'_> {
    let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
    Target::of::<Pod>(text("namespace"), text("name"))
}
