//! What to do next about a group's reservation pod, for a bind that needs it. Pure.

use std::time::Duration;

use kai_api::{Pod, keys};
use kai_engine::model::PodPhase;

use crate::{GroupKey, reservation_name};

/// A reservation pod as it was just read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    /// The node it is on; empty if none, which can't come from us.
    pub(crate) node: String,
    /// The group that its label names.
    pub(crate) group: String,
    pub(crate) name: String,
    /// Whether it runs or may still.
    pub(crate) alive: bool,
    pub(crate) terminating: bool,
    /// The GPU it holds, once known.
    pub(crate) gpu: Option<String>,
    /// Whether the kubelet refused it because the node has no CPU or memory for it.
    pub(crate) short_of_room: bool,
}

/// The words of a kubelet that refuses a pod for want of CPU or memory.
const SHORT_OF_ROOM: [&str; 2] = ["OutOfcpu", "OutOfmemory"];

impl Reservation {
    /// What the pod says. Whether it is a reservation is known from where it was read.
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
            short_of_room: false,
        }
    }

    /// The same, with what the pod's status says of its end.
    pub(crate) fn read(pod: &serde_json::Value) -> Reservation {
        let slim: Pod = serde_json::from_value(pod.clone()).unwrap_or_default();
        let reason = pod["status"]["reason"].as_str().unwrap_or_default();
        Reservation {
            short_of_room: SHORT_OF_ROOM.contains(&reason),
            ..Reservation::of(&slim)
        }
    }

    /// The group it holds a GPU for.
    pub(crate) fn key(&self) -> GroupKey {
        GroupKey::new(&self.node, &self.group)
    }

    /// Whether name, node and group agree. What does not was not made by a binder.
    pub(crate) fn is_genuine(&self) -> bool {
        !self.node.is_empty() && !self.group.is_empty() && self.name == reservation_name(&self.key())
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is none: create it.
    Create,
    /// It holds this GPU.
    Ready {
        /// UUID of the GPU.
        gpu: String,
    },
    /// It will say which GPU it holds.
    Wait,
    /// It has to be gone before there can be another.
    WaitForEnd,
    /// It is of no use and was not made for this bind: remove it, then look again.
    Replace,
    /// The kubelet or the node did not do it; the bind fails.
    Fail(Failure),
}

/// Why there is no GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The node refused or ended the pod.
    Ended,
    /// It did not say in time which GPU it holds.
    Late,
    /// Its predecessor does not end.
    Stuck,
}

impl Failure {
    /// For people.
    pub(crate) fn text(self, key: &GroupKey, limit: Duration) -> String {
        let (node, name, seconds) = (&key.node, reservation_name(key), limit.as_secs());
        match self {
            Failure::Ended => {
                format!("node {node} refused or ended the reservation pod {name}: it may have no free GPU")
            }
            Failure::Late => {
                format!("reservation pod {name} on node {node} did not get a GPU within {seconds} s")
            }
            Failure::Stuck => {
                format!("the former reservation pod {name} on node {node} does not end since {seconds} s")
            }
        }
    }
}

/// How long the pod as found has been waited for, if at all, and how long is too long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) waited: Option<Duration>,
    pub(crate) limit: Duration,
}

impl Patience {
    fn is_over(&self) -> bool {
        self.waited.is_some_and(|waited| waited >= self.limit)
    }
}

/// What to do next about the group's reservation pod.
pub(crate) fn step(key: &GroupKey, found: Option<&Reservation>, patience: Patience) -> Step {
    let Some(found) = found else { return Step::Create };
    if found.terminating {
        return match patience.is_over() {
            true => Step::Fail(Failure::Stuck),
            false => Step::WaitForEnd,
        };
    }
    if !found.alive {
        // One that was waited for shows that the node can't do it now: making another at once would go on for ever.
        return match patience.waited {
            Some(_) => Step::Fail(Failure::Ended),
            None => Step::Replace,
        };
    }
    if found.key() != *key {
        return Step::Replace;
    }
    match &found.gpu {
        Some(gpu) => Step::Ready { gpu: gpu.clone() },
        None if patience.is_over() => Step::Fail(Failure::Late),
        None => Step::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Reservation {
        let key = GroupKey::new("n", "g");
        Reservation {
            uid: "1".into(),
            resource_version: "7".into(),
            node: "n".into(),
            group: "g".into(),
            name: reservation_name(&key),
            alive: true,
            terminating: false,
            gpu: None,
            short_of_room: false,
        }
    }

    fn check(found: Option<Reservation>, waited_seconds: Option<u64>, expect: Step) {
        let patience = Patience {
            waited: waited_seconds.map(Duration::from_secs),
            limit: Duration::from_secs(40),
        };
        assert_eq!(
            step(&GroupKey::new("n", "g"), found.as_ref(), patience),
            expect,
            "{found:?} {waited_seconds:?}"
        );
    }

    #[test]
    fn every_state_has_its_step() {
        check(None, None, Step::Create);
        check(Some(found()), None, Step::Wait);
        check(Some(found()), Some(39), Step::Wait);
        check(Some(found()), Some(40), Step::Fail(Failure::Late));
        let ready = Reservation {
            gpu: Some("GPU-1".into()),
            ..found()
        };
        check(Some(ready.clone()), Some(100), Step::Ready { gpu: "GPU-1".into() });
        let ending = Reservation {
            terminating: true,
            ..ready.clone()
        };
        check(Some(ending.clone()), None, Step::WaitForEnd);
        check(Some(ending), Some(40), Step::Fail(Failure::Stuck));
        let ended = Reservation {
            alive: false,
            ..ready.clone()
        };
        check(Some(ended.clone()), None, Step::Replace);
        check(Some(ended), Some(1), Step::Fail(Failure::Ended));
        let elsewhere = Reservation {
            node: "m".into(),
            ..ready.clone()
        };
        check(Some(elsewhere), None, Step::Replace);
        let other = Reservation {
            group: "h".into(),
            ..ready
        };
        check(Some(other), None, Step::Replace);
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
