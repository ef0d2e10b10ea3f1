//! Reconciles the reservation pod of a group that no bind works on: deletes it if it has no users, recreates it if it is lost.

use std::time::Duration;

use kai_api::{ComputeMode, ObjectReference, keys};
use kai_cluster::WorkResult;

use crate::GpuGroupKey;
use crate::node::facts::NodeFacts;
use crate::reservation::gc::{GcAction, gc_action};
use crate::reservation::locks::LockOwner;
use crate::reservation::state::Reservation;
use crate::shell::metrics::Operation;
use crate::shell::run::Binder;

/// Pause after the creation or deletion of a placeholder: about the time that a kubelet needs.
const PLACEHOLDER_PAUSE: Duration = Duration::from_secs(1);

impl Binder {
    /// Reconciles one group.
    pub(crate) async fn reconcile_group(&self, key: GpuGroupKey) -> WorkResult {
        let Some(_guard) = self
            .locks
            .try_lock(std::slice::from_ref(&key), LockOwner::Gc(key.clone()))
        else {
            return WorkResult::Done;
        };
        match self.try_reconcile_group(&key).await {
            Ok(result) => result,
            // The reservation pod changed since it was read; it may have a user now.
            Err(error) if error.is_conflict() => WorkResult::Retry,
            Err(error) => {
                tracing::warn!(group = %key, %error, "reconciling the reservation of a GPU group failed; it is tried again");
                WorkResult::Retry
            }
        }
    }

    /// Returns `Retry` while the reservation is not in order, so that the backoff grows: a node that can't give the GPU back is tried
    /// once a minute in the end.
    async fn try_reconcile_group(&self, key: &GpuGroupKey) -> Result<WorkResult, kai_cluster::Error> {
        // The reservation pod is read before its users, and deleted only in the version read: a bind marks it before it relies on it.
        let found = self.read_reservation(key).await?;
        let allocations = self.node_allocations(&key.node, None, &[]).await?;
        let needed_by_cache = self.has_pending_request_in_cache(key) || self.placeholders.is_needed(key);
        let action = gc_action(key, found.as_ref(), &allocations, needed_by_cache);
        match (action, found) {
            (GcAction::Keep, found) => {
                if found.is_none() {
                    self.pending.finish(key);
                }
                self.release_placeholders(self.placeholders.clear(key));
                Ok(WorkResult::Done)
            }
            (GcAction::Wait, _) => Ok(WorkResult::Retry),
            (GcAction::Delete { retry }, Some(found)) => {
                self.delete_reservation(&found).await?;
                // The node had no GPU left for the pod: the placeholders hold all other GPUs, and another pod has the group's own.
                self.release_placeholders(self.placeholders.start_cooldown(key));
                Ok(if retry { WorkResult::Retry } else { WorkResult::Done })
            }
            (GcAction::Recreate, _) => {
                let own: Vec<String> = allocations.gpus_of_members(&key.group).map(str::to_owned).collect();
                let mode = allocations.compute_mode(&key.group).unwrap_or_default();
                self.recreate_reservation(key, &own, allocations.unreserved_gpu(&key.group), mode)
                    .await
            }
            (GcAction::Mismatch { gpu }, Some(found)) => {
                // The pods were warned, and another attempt would fail, too. The reservation pod stays: with any GPU held, the scheduler
                // does not overcommit the node.
                if let Some(left) = self.placeholders.cooldown_left(key) {
                    return Ok(WorkResult::RequeueAfter(left));
                }
                let pods = allocations
                    .active_members(&key.group)
                    .map(|pod| (reference_to(pod), pod.gpus.join(",")))
                    .collect();
                self.handle_mismatch(key, &found, &gpu, pods).await
            }
            (GcAction::Delete { .. } | GcAction::Mismatch { .. }, None) => Ok(WorkResult::Done),
        }
    }

    /// Creates a lost reservation pod again, annotated with the wanted GPU, which the node agent makes the kubelet prefer. If an earlier
    /// try got another GPU, placeholders leave the kubelet no choice.
    async fn recreate_reservation(
        &self,
        key: &GpuGroupKey,
        own_gpus: &[String],
        wanted: Option<&str>,
        mode: ComputeMode,
    ) -> Result<WorkResult, kai_cluster::Error> {
        let Some(facts) = self.node_facts(&key.node).await? else {
            // The node is gone, and its pods will be deleted.
            return Ok(WorkResult::Done);
        };
        if let Some(result) = self.hold_placeholders(key, &facts, own_gpus).await? {
            return Ok(result);
        }
        tracing::warn!(group = %key, "running pods share a GPU without a reservation pod; it is created again");
        let mut pod = self.new_reservation(key, &facts, mode);
        if let Some(gpu) = wanted {
            pod["metadata"]["annotations"][keys::RESERVATION_WANTED_GPU] = gpu.into();
        }
        self.create_reservation(key, pod, Operation::Restored).await?;
        Ok(WorkResult::Retry)
    }

    /// Occupies the GPUs that the kubelet chose instead of the group's own, one placeholder per call. `None` once all are in place.
    async fn hold_placeholders(
        &self,
        key: &GpuGroupKey,
        facts: &NodeFacts,
        own_gpus: &[String],
    ) -> Result<Option<WorkResult>, kai_cluster::Error> {
        for (number, placeholder) in (0_u32..).zip(self.placeholders.needed_for(key)) {
            let Some(held) = self.read_reservation(&placeholder).await? else {
                let pod = self.new_reservation(&placeholder, facts, ComputeMode::default());
                self.create_reservation(&placeholder, pod, Operation::Created).await?;
                return Ok(Some(WorkResult::RequeueAfter(PLACEHOLDER_PAUSE)));
            };
            if held.terminating {
                return Ok(Some(WorkResult::Retry));
            }
            // The placeholder got the wanted GPU itself, so the earlier placeholders hold the others; or the node had no GPU left for it.
            let is_own = held.gpu.as_ref().is_some_and(|gpu| own_gpus.contains(gpu));
            if is_own || !held.alive {
                self.placeholders.limit(key, number);
                self.delete_reservation(&held).await?;
                return Ok(Some(WorkResult::RequeueAfter(PLACEHOLDER_PAUSE)));
            }
            if held.gpu.is_none() {
                return Ok(Some(WorkResult::Retry));
            }
        }
        Ok(None)
    }

    /// Queues placeholders that are no longer needed: the garbage collection deletes them.
    fn release_placeholders(&self, placeholders: Vec<GpuGroupKey>) {
        placeholders.into_iter().for_each(|key| self.gc_queue.add(key));
    }

    async fn handle_mismatch(
        &self,
        key: &GpuGroupKey,
        found: &Reservation,
        gpu: &str,
        pods: Vec<(ObjectReference, String)>,
    ) -> Result<WorkResult, kai_cluster::Error> {
        tracing::error!(group = %key, gpu, "the new reservation pod holds another GPU than the pods of its group use");
        self.metrics.reservation(Operation::Mismatched);
        for (pod, own) in pods {
            let message = format!(
                "GPU {own} is no longer held for this pod: its reservation was lost, and the node gave {gpu} to the new one. \
                 Others may be given {own} too; no further pod joins the group until this is repaired"
            );
            Binder::warn_pod(&self.events, pod, message).await;
        }
        self.delete_reservation(found).await?;
        self.placeholders.add_blocker(key);
        Ok(WorkResult::Retry)
    }
}

fn reference_to(pod: &crate::node::allocations::SharingPod) -> ObjectReference {
    ObjectReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        namespace: pod.key.namespace.to_string(),
        name: pod.key.name.to_string(),
        uid: pod.uid.clone(),
    }
}
