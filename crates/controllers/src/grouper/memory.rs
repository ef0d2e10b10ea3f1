//! What the grouper remembers of a pod, so that changes which can't matter (a phase, a condition) cost no calls.

use std::hash::{Hash, Hasher};

use kai_api::{Pod, keys};
use rustc_hash::FxHasher;

use super::plan::Plan;

/// How a pod was grouped. There is one for every pod, hence digests instead of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Grouped {
    /// It was left alone.
    Left { looks: u64 },
    /// It was put here.
    Put { looks: u64, place: u64 },
}

impl Grouped {
    pub(super) fn left(pod: &Pod) -> Grouped {
        Grouped::Left { looks: looks(pod) }
    }

    pub(super) fn put(pod: &Pod, plan: &Plan) -> Grouped {
        Grouped::Put {
            looks: looks(pod),
            place: place(&plan.name, plan.sub_group.as_deref()),
        }
    }

    /// Whether the pod has nothing new to say, and still says what was written.
    pub(super) fn holds_for(&self, pod: &Pod) -> bool {
        match self {
            Grouped::Left { looks: before } => *before == looks(pod),
            Grouped::Put {
                looks: before,
                place: put,
            } => {
                let sub_group = pod.metadata.labels.text(keys::SUB_GROUP_NAME);
                // A pod that was put into no subgroup may name one of its own.
                let is_there = |group| {
                    [None, sub_group]
                        .iter()
                        .any(|sub_group| place(group, *sub_group) == *put)
                };
                *before == looks(pod) && pod.pod_group().is_some_and(is_there)
            }
        }
    }
}

fn place(group: &str, sub_group: Option<&str>) -> u64 {
    let mut hasher = FxHasher::default();
    (group, sub_group).hash(&mut hasher);
    hasher.finish()
}

/// All that grouping reads of a pod, but what it writes itself and what the scheduler does.
fn looks(pod: &Pod) -> u64 {
    let mut hasher = FxHasher::default();
    let metadata = &pod.metadata;
    metadata.uid.hash(&mut hasher);
    let ours = |key: &str| keys::is_scheduler_owned(key) || key == keys::POD_GROUP_NAME || key == keys::SUB_GROUP_NAME;
    for map in [&metadata.labels, &metadata.annotations] {
        for (key, value) in map.iter().filter(|(key, _)| !ours(key)) {
            (key, value).hash(&mut hasher);
        }
        0xff_u8.hash(&mut hasher);
    }
    for owner in &metadata.owner_references {
        owner.uid.hash(&mut hasher);
    }
    // Which node does not matter; that a leader has one does.
    pod.node_name().is_some().hash(&mut hasher);
    pod.is_terminating().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(group: &str, sub_group: &str, phase: &str, owner: &str) -> Pod {
        let pod = json!({
            "metadata": {
                "name": "p", "annotations": { "pod-group-name": group }, "labels": { "kai.scheduler/subgroup-name": sub_group },
                "ownerReferences": [{ "uid": owner }],
            },
            "status": { "phase": phase },
        });
        serde_json::from_value(pod).unwrap()
    }

    fn put(pod: &Pod, group: &str, sub_group: Option<&str>) -> Grouped {
        Grouped::Put {
            looks: looks(pod),
            place: place(group, sub_group),
        }
    }

    #[test]
    fn what_was_written_holds_until_somebody_changes_it() {
        let grouped = put(&pod("g", "workers", "Pending", "job"), "g", Some("workers"));
        assert!(grouped.holds_for(&pod("g", "workers", "Running", "job")));
        for other in [
            pod("other", "workers", "Running", "job"),
            pod("g", "other", "Running", "job"),
            pod("g", "workers", "Running", "another job"),
        ] {
            assert!(!grouped.holds_for(&other), "{other:?}");
        }
    }

    #[test]
    fn a_pod_without_a_subgroup_of_ours_may_name_its_own() {
        let grouped = put(&pod("g", "own", "Pending", "job"), "g", None);
        assert!(grouped.holds_for(&pod("g", "own", "Running", "job")));
        assert!(grouped.holds_for(&pod("g", "another", "Running", "job")));
    }
}
