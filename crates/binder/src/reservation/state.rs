//! The state of a group's reservation pod, for a bind that needs it. Pure.

use std::time::Duration;

use kai_api::{ComputeMode, Pod, keys};
use kai_engine::model::PodPhase;

use crate::{GpuGroupKey, reservation_name};

/// A reservation pod as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    /// Node of the pod. A reservation pod made by a binder has one from the start.
    pub(crate) node: String,
    /// Group in the pod's label.
    pub(crate) group: String,
    pub(crate) name: String,
    /// Whether the pod has not ended.
    pub(crate) alive: bool,
    pub(crate) terminating: bool,
    /// UUID of the GPU that the pod holds, once it is annotated.
    pub(crate) gpu: Option<String>,
    /// The compute mode of the group's pods; `None` in pods of KAI's binder and of earlier versions.
    pub(crate) compute_mode: Option<ComputeMode>,
    /// Whether the kubelet rejected the pod because the node has no CPU or memory left for it.
    pub(crate) out_of_cpu_or_memory: bool,
}

/// Reasons of a kubelet that rejects a pod for lack of CPU or memory.
const OUT_OF_CPU_OR_MEMORY: [&str; 2] = ["OutOfcpu", "OutOfmemory"];

impl Reservation {
    /// From a slim pod, without `out_of_cpu_or_memory`. The caller knows that it is a reservation pod.
    pub(crate) fn of(pod: &Pod) -> Reservation {
        let text = |text: &Option<kai_api::Text>| text.as_deref().unwrap_or_default().to_owned();
        Reservation {
            uid: text(&pod.metadata.uid),
            resource_version: text(&pod.metadata.resource_version),
            node: pod.node_name().unwrap_or_default().to_owned(),
            group: pod.metadata.labels.text(keys::GPU_GROUP).unwrap_or_default().to_owned(),
            name: text(&pod.metadata.name),
            alive: !matches!(pod.phase(), PodPhase::Succeeded | PodPhase::Failed),
            terminating: pod.is_terminating(),
            gpu: pod
                .metadata
                .annotations
                .text(keys::RESERVED_GPU)
                .filter(|gpu| !gpu.is_empty())
                .map(str::to_owned),
            compute_mode: pod
                .metadata
                .annotations
                .text(keys::RESERVATION_COMPUTE_MODE)
                .and_then(ComputeMode::from_name),
            out_of_cpu_or_memory: false,
        }
    }

    /// From a pod with all its fields.
    pub(crate) fn read(pod: &serde_json::Value) -> Reservation {
        let slim: Pod = serde_json::from_value(pod.clone()).unwrap_or_default();
        let reason = pod["status"]["reason"].as_str().unwrap_or_default();
        Reservation {
            out_of_cpu_or_memory: OUT_OF_CPU_OR_MEMORY.contains(&reason),
            ..Reservation::of(&slim)
        }
    }

    /// The group that the pod holds a GPU for.
    pub(crate) fn key(&self) -> GpuGroupKey {
        GpuGroupKey::new(&self.node, &self.group)
    }

    /// Whether the pod's name is the digest of its node and group. No binder makes a pod with another name.
    pub(crate) fn is_genuine(&self) -> bool {
        !self.node.is_empty() && !self.group.is_empty() && self.name == reservation_name(&self.key())
    }
}

/// State of a group's reservation pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReservationState {
    /// The pod does not exist: create it.
    Missing,
    /// The pod holds this GPU.
    Ready {
        /// UUID of the GPU.
        gpu: String,
    },
    /// The pod is not yet annotated with its GPU: wait.
    WaitingForGpu,
    /// The pod is being deleted: wait, then create another.
    Terminating,
    /// The pod has ended before this bind, or belongs to another group: delete it, then read again.
    Unusable,
    /// The pod got no GPU: the bind fails.
    Failed(ReservationFailure),
}

/// Why a reservation pod got no GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReservationFailure {
    /// The kubelet rejected or ended the pod.
    Ended,
    /// The pod was not annotated with its GPU in time.
    TimedOut,
    /// The former reservation pod does not terminate.
    StuckTerminating,
}

/// How long binds have waited for the pod in its present state (`None` = not yet), and the limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitTime {
    pub(crate) waited: Option<Duration>,
    pub(crate) limit: Duration,
}

impl WaitTime {
    fn is_exceeded(&self) -> bool {
        self.waited.is_some_and(|waited| waited >= self.limit)
    }
}

/// The state of the group's reservation pod, as read.
pub(crate) fn reservation_state(key: &GpuGroupKey, found: Option<&Reservation>, wait: WaitTime) -> ReservationState {
    let Some(found) = found else {
        return ReservationState::Missing;
    };
    if found.terminating {
        return match wait.is_exceeded() {
            true => ReservationState::Failed(ReservationFailure::StuckTerminating),
            false => ReservationState::Terminating,
        };
    }
    if !found.alive {
        // If binds waited for this very pod, the node can't provide a GPU now, and a replacement would end the same way.
        return match wait.waited {
            Some(_) => ReservationState::Failed(ReservationFailure::Ended),
            None => ReservationState::Unusable,
        };
    }
    if found.key() != *key {
        return ReservationState::Unusable;
    }
    match &found.gpu {
        Some(gpu) => ReservationState::Ready { gpu: gpu.clone() },
        None if wait.is_exceeded() => ReservationState::Failed(ReservationFailure::TimedOut),
        None => ReservationState::WaitingForGpu,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Reservation {
        let key = GpuGroupKey::new("n", "g");
        Reservation {
            uid: "1".into(),
            resource_version: "7".into(),
            node: "n".into(),
            group: "g".into(),
            name: reservation_name(&key),
            alive: true,
            terminating: false,
            gpu: None,
            compute_mode: Some(ComputeMode::TimeSlicing),
            out_of_cpu_or_memory: false,
        }
    }

    fn check(found: Option<Reservation>, waited_seconds: Option<u64>, expect: ReservationState) {
        let wait = WaitTime {
            waited: waited_seconds.map(Duration::from_secs),
            limit: Duration::from_secs(40),
        };
        assert_eq!(
            reservation_state(&GpuGroupKey::new("n", "g"), found.as_ref(), wait),
            expect,
            "{found:?} {waited_seconds:?}"
        );
    }

    #[test]
    fn every_state_has_its_step() {
        check(None, None, ReservationState::Missing);
        check(Some(found()), None, ReservationState::WaitingForGpu);
        check(Some(found()), Some(39), ReservationState::WaitingForGpu);
        check(
            Some(found()),
            Some(40),
            ReservationState::Failed(ReservationFailure::TimedOut),
        );
        let ready = Reservation {
            gpu: Some("GPU-1".into()),
            ..found()
        };
        check(
            Some(ready.clone()),
            Some(100),
            ReservationState::Ready { gpu: "GPU-1".into() },
        );
        let ending = Reservation {
            terminating: true,
            ..ready.clone()
        };
        check(Some(ending.clone()), None, ReservationState::Terminating);
        check(
            Some(ending),
            Some(40),
            ReservationState::Failed(ReservationFailure::StuckTerminating),
        );
        let ended = Reservation {
            alive: false,
            ..ready.clone()
        };
        check(Some(ended.clone()), None, ReservationState::Unusable);
        check(
            Some(ended),
            Some(1),
            ReservationState::Failed(ReservationFailure::Ended),
        );
        let elsewhere = Reservation {
            node: "m".into(),
            ..ready.clone()
        };
        check(Some(elsewhere), None, ReservationState::Unusable);
        let other = Reservation {
            group: "h".into(),
            ..ready
        };
        check(Some(other), None, ReservationState::Unusable);
    }

    #[test]
    fn a_pod_with_a_made_up_name_is_no_reservation() {
        assert!(found().is_genuine());
        assert!(
            !Reservation {
                name: "gpu-reservation-0".into(),
                ..found()
            }
            .is_genuine()
        );
        assert!(
            !Reservation {
                group: "h".into(),
                ..found()
            }
            .is_genuine()
        );
        assert!(
            !Reservation {
                node: String::new(),
                ..found()
            }
            .is_genuine()
        );
    }
}
