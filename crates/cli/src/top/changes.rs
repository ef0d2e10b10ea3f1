//! What has changed, from the difference of two views: pods that were placed, promised a place, evicted, or have ended. Views come from a cycle
//! of this process: where the scheduler's Events can be read, they are shown instead.

use std::collections::VecDeque;

use kai_view::{ClusterView, Pod, PodStatus, Text, Time};
use rustc_hash::FxHashMap;

/// Entries that are kept.
const KEPT_MAX: usize = 1_000;

/// A change of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Counts all changes since the start.
    pub(super) number: u64,
    /// The time of the view that has it.
    pub(super) time: Time,
    pub(super) what: What,
    pub(super) namespace: Text,
    pub(super) pod: Text,
    pub(super) node: Option<Text>,
    pub(super) reason: Option<Text>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The pod has got its node.
    Bound,
    /// The pod gets the place of pods that are being evicted.
    Promised,
    /// The pod is being deleted.
    Releasing,
    /// The pod is gone, or has ended.
    Ended,
    /// The pod has come, and waits.
    Waits,
}

impl What {
    pub(super) fn word(self) -> &'static str {
        match self {
            What::Bound => "bound",
            What::Promised => "promised",
            What::Releasing => "deleted",
            What::Ended => "ended",
            What::Waits => "waits",
        }
    }
}

/// The latest changes, the newest first.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) newest_first: VecDeque<Change>,
    count: u64,
}

impl Changes {
    /// Adds the differences between two views.
    pub(super) fn add(&mut self, before: &ClusterView, after: &ClusterView) {
        let (Some(old), Some(new)) = (&before.pods, &after.pods) else {
            return;
        };
        let mut known: FxHashMap<&str, &Pod> = old.iter().map(|pod| (pod.uid.as_str(), pod)).collect();
        for pod in new {
            let earlier = known.remove(pod.uid.as_str());
            if let Some(what) = change(earlier, pod) {
                self.push(after, pod, what);
            }
        }
        // In the order of the view, not of the map.
        for pod in old.iter().filter(|pod| known.contains_key(pod.uid.as_str())) {
            if stage(pod) != Stage::Ended {
                self.push(after, pod, What::Ended);
            }
        }
    }

    fn push(&mut self, view: &ClusterView, pod: &Pod, what: What) {
        self.count += 1;
        self.newest_first.push_front(Change {
            number: self.count,
            time: view.time,
            what,
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            node: pod.node.clone(),
            reason: pod.reason.clone(),
        });
        self.newest_first.truncate(KEPT_MAX);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Promised,
    Placed,
    Releasing,
    Ended,
}

fn stage(pod: &Pod) -> Stage {
    match pod.status {
        PodStatus::Pending | PodStatus::Gated => Stage::Waiting,
        PodStatus::Pipelined => Stage::Promised,
        PodStatus::Releasing | PodStatus::StuckInReleasing => Stage::Releasing,
        PodStatus::Succeeded | PodStatus::Failed => Stage::Ended,
        _ => Stage::Placed,
    }
}

fn change(before: Option<&Pod>, after: &Pod) -> Option<What> {
    let now = stage(after);
    if before.map(stage) == Some(now) {
        return None;
    }
    match now {
        Stage::Waiting if before.is_none() => Some(What::Waits),
        // The promise of an earlier cycle was not kept; the pod waits as before.
        Stage::Waiting => None,
        Stage::Promised => Some(What::Promised),
        Stage::Placed => Some(What::Bound),
        Stage::Releasing => Some(What::Releasing),
        Stage::Ended => before.map(|_| What::Ended),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::tables::tests::{pod, view_of};

    #[test]
    fn changes_tell_what_happened_to_each_pod() {
        let mut changes = Changes::default();
        let first = view_of(vec![
            pod("a", PodStatus::Pending),
            pod("b", PodStatus::Running),
            pod("c", PodStatus::Pending),
        ]);
        let second = view_of(vec![
            pod("a", PodStatus::Binding),
            pod("b", PodStatus::Releasing),
            pod("c", PodStatus::Pipelined),
            pod("d", PodStatus::Pending),
        ]);
        let third = view_of(vec![
            pod("a", PodStatus::Running),
            pod("c", PodStatus::Pending),
            pod("d", PodStatus::Pending),
        ]);
        changes.add(&first, &second);
        changes.add(&second, &third);
        let told: Vec<(&str, &str)> = changes
            .newest_first
            .iter()
            .map(|change| (change.pod.as_str(), change.what.word()))
            .collect();
        assert_eq!(
            told,
            [
                ("b", "ended"),
                ("d", "waits"),
                ("c", "promised"),
                ("b", "deleted"),
                ("a", "bound")
            ]
        );
    }

    #[test]
    fn a_day_of_changes_takes_bounded_memory() {
        let mut changes = Changes::default();
        let waiting: Vec<_> = (0..KEPT_MAX + 7)
            .map(|at| pod(&format!("p{at}"), PodStatus::Pending))
            .collect();
        changes.add(&view_of(Vec::new()), &view_of(waiting));
        assert_eq!(changes.newest_first.len(), KEPT_MAX);
        assert_eq!(changes.newest_first[0].number, KEPT_MAX as u64 + 7);
    }
}
