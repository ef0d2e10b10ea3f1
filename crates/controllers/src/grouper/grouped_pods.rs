//! The grouper's cache of grouped pods. A pod update that changes no input of the grouping rules (a phase, a condition) costs no API
//! call.

use std::hash::{Hash, Hasher};

use kai_api::{Pod, keys};
use rustc_hash::FxHasher;

use super::desired_pod_group::DesiredPodGroup;

/// The last result for one pod. The cache has an entry for every pod of the cluster, so an entry holds digests instead of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GroupedPod {
    /// The grouper skipped the pod.
    Skipped { inputs: u64 },
    /// The grouper wrote the pod's group and subgroup.
    Assigned { inputs: u64, assignment: u64 },
}

impl GroupedPod {
    pub(super) fn skipped(pod: &Pod) -> GroupedPod {
        GroupedPod::Skipped {
            inputs: digest_of_inputs(pod),
        }
    }

    pub(super) fn assigned(pod: &Pod, desired: &DesiredPodGroup) -> GroupedPod {
        GroupedPod::Assigned {
            inputs: digest_of_inputs(pod),
            assignment: digest_of_assignment(&desired.name, desired.sub_group.as_deref()),
        }
    }

    /// Whether the pod's inputs are unchanged and the pod still has the assignment that the grouper wrote.
    pub(super) fn holds_for(&self, pod: &Pod) -> bool {
        match self {
            GroupedPod::Skipped { inputs } => *inputs == digest_of_inputs(pod),
            GroupedPod::Assigned { inputs, assignment } => {
                let sub_group = pod.metadata.labels.text(keys::SUB_GROUP_NAME);
                // A pod that the grouper assigned to no subgroup may carry a subgroup label of its own.
                let is_assigned = |group| {
                    [None, sub_group]
                        .iter()
                        .any(|sub_group| digest_of_assignment(group, *sub_group) == *assignment)
                };
                *inputs == digest_of_inputs(pod) && pod.pod_group().is_some_and(is_assigned)
            }
        }
    }
}

fn digest_of_assignment(group: &str, sub_group: Option<&str>) -> u64 {
    let mut hasher = FxHasher::default();
    (group, sub_group).hash(&mut hasher);
    hasher.finish()
}

/// Covers every field of the pod that the grouping rules read, except the keys that the grouper and the scheduler write.
fn digest_of_inputs(pod: &Pod) -> u64 {
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
    // The LeaderWorkerSet rule asks whether a leader has a node; no rule asks which node.
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

    fn put(pod: &Pod, group: &str, sub_group: Option<&str>) -> GroupedPod {
        GroupedPod::Assigned {
            inputs: digest_of_inputs(pod),
            assignment: digest_of_assignment(group, sub_group),
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
