//! Gets the reservation pods of a bind: one per GPU group, each with a known GPU.

use std::time::Duration;

use kai_api::{BindRequest, ComputeMode, ObjectKey, Pod, keys};
use kai_cluster::{Part, Patch, Target};
use serde_json::{Value, json};

use crate::GpuGroupKey;
use crate::bind::attempt::{RETRY_SOON, target_of};
use crate::bind::failure::BindFailure;
use crate::error::NotBound;
use crate::node::facts::NodeFacts;
use crate::reservation::manifest::PodRequests;
use crate::reservation::state::{Reservation, ReservationFailure, ReservationState, WaitTime, reservation_state};
use crate::shell::metrics::Operation;
use crate::shell::run::Binder;

/// How often a bind polls a reservation pod that it waits for. The watch usually requeues the bind sooner.
pub(crate) const RESERVATION_POLL: Duration = Duration::from_secs(2);
impl Binder {
    /// The reservations of all groups; `None` while the GPU of one of them is unknown.
    pub(crate) async fn reserve_all(
        &self,
        request: &BindRequest,
        groups: &[GpuGroupKey],
        facts: &NodeFacts,
        mode: ComputeMode,
    ) -> Result<Option<Vec<Reservation>>, NotBound> {
        let mut held = Vec::with_capacity(groups.len());
        for key in groups {
            held.push(self.reserve(request, key, facts, mode).await?);
        }
        Ok(held.into_iter().collect())
    }

    async fn reserve(
        &self,
        request: &BindRequest,
        key: &GpuGroupKey,
        facts: &NodeFacts,
        mode: ComputeMode,
    ) -> Result<Option<Reservation>, NotBound> {
        let bind = ObjectKey::of(request);
        let found = self.read_reservation(key).await?;
        let limit = self.settings.allocation_timeout;
        let waited = found
            .as_ref()
            .and_then(|found| self.pending.waited(key, &found.uid, found.terminating));
        let state = reservation_state(key, found.as_ref(), WaitTime { waited, limit });
        let needs_new_pod = matches!(
            state,
            ReservationState::Missing
                | ReservationState::Unusable
                | ReservationState::Failed(ReservationFailure::Ended)
        );
        if needs_new_pod && self.has_lost_reservation(key).await? {
            self.gc_queue.add(key.clone());
            return Err(NotBound::RetryAfter(RESERVATION_POLL));
        }
        if let (ReservationState::Ready { .. } | ReservationState::WaitingForGpu, Some(found)) = (&state, &found)
            && let Some(held) = self.held_mode(key, found).await?.filter(|held| *held != mode)
        {
            let (key, pod) = (key.clone(), mode);
            return Err(BindFailure::OtherComputeMode { key, held, pod }.into());
        }
        match (state, found) {
            (ReservationState::Missing, _) => {
                // The scheduler chose the node before it was known to leave.
                if facts.leaving {
                    let node = key.node.to_string();
                    return Err(BindFailure::NodeLeaving { node }.into());
                }
                let pod = bind.beside(&request.pod_name().into());
                if self.is_scaling_up(&pod).await? {
                    return Err(BindFailure::ScalingUp.into());
                }
                let pod = self.new_reservation(key, facts, mode);
                let uid = self.create_reservation(key, pod, Operation::Created).await?;
                self.pending.add(key, &uid, false, Some(&bind));
                Ok(None)
            }
            (ReservationState::Ready { .. }, Some(found)) => {
                self.finish_wait(key, &bind);
                Ok(Some(found))
            }
            (ReservationState::WaitingForGpu | ReservationState::Terminating, Some(found)) => {
                self.pending.add(key, &found.uid, found.terminating, Some(&bind));
                Ok(None)
            }
            (ReservationState::Unusable, Some(found)) => {
                self.delete_reservation(&found).await?;
                Err(NotBound::RetryAfter(RETRY_SOON))
            }
            // The node has no CPU or memory left for the reservation pod: the next pod requests the GPU only.
            (ReservationState::Failed(ReservationFailure::Ended), Some(found))
                if found.out_of_cpu_or_memory && self.full_nodes.requests_for(&key.node) == PodRequests::Full =>
            {
                self.delete_reservation(&found).await?;
                Err(NotBound::RetryAfter(RETRY_SOON))
            }
            (ReservationState::Failed(failure), Some(found)) => {
                self.delete_failed_reservation(key, &found, failure, &bind).await?;
                let key = key.clone();
                Err(BindFailure::NotReserved { key, failure, limit }.into())
            }
            (_, None) => Err(NotBound::RetryAfter(RETRY_SOON)),
        }
    }

    /// The compute mode of the group; `None` if neither its reservation pod nor a pod of the group has one yet.
    async fn held_mode(
        &self,
        key: &GpuGroupKey,
        found: &Reservation,
    ) -> Result<Option<ComputeMode>, kai_cluster::Error> {
        if found.compute_mode.is_some() {
            return Ok(found.compute_mode);
        }
        let allocations = self.node_allocations(&key.node, None, &[]).await?;
        Ok(allocations.compute_mode(&key.group))
    }

    /// Whether pods of the group are running. Then the new reservation must get exactly their GPU, which only the garbage collection of
    /// the group can arrange: a reservation created by a bind could get any GPU.
    async fn has_lost_reservation(&self, key: &GpuGroupKey) -> Result<bool, kai_cluster::Error> {
        let allocations = self.node_allocations(&key.node, None, &[]).await?;
        Ok(allocations.active_members(&key.group).next().is_some())
    }

    fn finish_wait(&self, key: &GpuGroupKey, bind: &ObjectKey) {
        let Some((took, binds)) = self.pending.finish(key) else {
            return;
        };
        self.metrics.wait_seconds.observe(took.as_secs_f64());
        binds
            .into_iter()
            .filter(|other| other != bind)
            .for_each(|other| self.bind_queue.add(other));
    }

    /// Deletes a failed reservation, unless other pods or binds need it.
    async fn delete_failed_reservation(
        &self,
        key: &GpuGroupKey,
        found: &Reservation,
        failure: ReservationFailure,
        bind: &ObjectKey,
    ) -> Result<(), NotBound> {
        let remove = match failure {
            ReservationFailure::StuckTerminating => false,
            ReservationFailure::Ended => true,
            ReservationFailure::TimedOut => {
                let allocations = self.node_allocations(&key.node, None, &[]).await?;
                !allocations.has_members(&key.group) && !allocations.has_pending_request(&key.group, Some(bind))
            }
        };
        if remove {
            self.delete_reservation(found).await?;
        }
        Ok(())
    }

    /// Annotates the reservation pod with its latest user. This changes its resource version, so a deletion that was decided before
    /// fails.
    pub(crate) async fn mark_reservation_used(&self, reservation: &Reservation, pod: &Value) -> Result<(), NotBound> {
        let target = Target::of::<Pod>(self.settings.reservation_namespace(), &reservation.name);
        let target_pod = target_of(pod);
        let user = format!("{}/{}", target_pod.namespace, target_pod.name);
        let body = json!({ "metadata": {
            "uid": reservation.uid, "annotations": { keys::RESERVATION_LAST_USER: user },
        } });
        let marked = match self.client.patch(target, Part::Status, Patch::Merge(body)).await {
            Ok(marked) => serde_json::from_value::<Pod>(marked).unwrap_or_default(),
            Err(error) if error.is_not_found() || error.is_conflict() => return Err(NotBound::RetryAfter(RETRY_SOON)),
            Err(error) => return Err(error.into()),
        };
        let now = Reservation::of(&marked);
        let intact = now.alive && !now.terminating && now.uid == reservation.uid && now.gpu == reservation.gpu;
        if intact {
            Ok(())
        } else {
            Err(NotBound::RetryAfter(RETRY_SOON))
        }
    }
}
