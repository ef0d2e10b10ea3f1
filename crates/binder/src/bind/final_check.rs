//! The final check before a Binding: the share fits on the GPU, and the GPU belongs to this group alone. Pure.

use crate::GpuGroupKey;
use crate::bind::failure::BindFailure;
use crate::node::allocations::NodeAllocations;

/// Result of the final check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CheckResult {
    /// The pod may be bound.
    Passed,
    /// A reservation pod that still holds the GPU is terminating: check again later.
    Wait,
    /// The pod must not be bound.
    Failed(BindFailure),
}

/// The share of a group's GPU that a pod requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestedShare<'a> {
    /// UID of the pod.
    pub(crate) uid: &'a str,
    /// MiB on this GPU.
    pub(crate) requested_mib: i64,
    /// The GPU that the group's reservation holds.
    pub(crate) gpu: &'a str,
}

/// Whether the pod may have its share of the group's GPU.
pub(crate) fn final_check(
    key: &GpuGroupKey,
    allocations: &NodeAllocations,
    requested: RequestedShare<'_>,
) -> CheckResult {
    let (group, gpu) = (&*key.group, requested.gpu);
    let fail = CheckResult::Failed;
    match allocations.conflicting_reservation(group, gpu) {
        // The kubelet has given us the GPU, so the terminating pod does not use it any more and will soon be gone.
        Some(other) if other.terminating => return CheckResult::Wait,
        Some(other) => {
            return fail(BindFailure::GpuHeldTwice {
                key: key.clone(),
                gpu: gpu.to_owned(),
                other: other.group.clone(),
            });
        }
        None => {}
    }
    if let Some(pod) = allocations.gpu_in_use_by(group, gpu) {
        return fail(BindFailure::GpuInUse {
            key: key.clone(),
            gpu: gpu.to_owned(),
            pod: pod.key.clone(),
        });
    }
    if let Some(pod) = allocations.member_on_other_gpu(group, gpu) {
        return fail(BindFailure::MemberOnOtherGpu {
            key: key.clone(),
            gpu: gpu.to_owned(),
            pod: pod.key.clone(),
            pod_gpus: pod.gpus.clone(),
        });
    }
    let promised_mib = allocations.allocated_mib(group, requested.uid);
    if promised_mib.saturating_add(requested.requested_mib) > allocations.memory_mib {
        return fail(BindFailure::GpuFull {
            key: key.clone(),
            promised_mib,
            memory_mib: allocations.memory_mib,
            requested_mib: requested.requested_mib,
        });
    }
    CheckResult::Passed
}

#[cfg(test)]
mod tests {

    use kai_api::{ComputeMode, ObjectKey};

    use super::*;
    use crate::node::allocations::SharingPod;
    use crate::reservation::state::Reservation;
    use crate::reservation_name;

    fn member(uid: &str, requested_mib: i64) -> SharingPod {
        SharingPod {
            key: ObjectKey::new("ns", uid),
            uid: uid.into(),
            groups: vec!["g".into()],
            groups_in_gpu_order: true,
            requested_mib,
            terminating: false,
            gpus: vec!["GPU-1".into()],
            compute_mode: ComputeMode::TimeSlicing,
        }
    }

    fn reservation(group: &str, gpu: &str) -> Reservation {
        Reservation {
            uid: "1".into(),
            resource_version: "1".into(),
            node: "n".into(),
            group: group.into(),
            name: reservation_name(&GpuGroupKey::new("n", group)),
            alive: true,
            terminating: false,
            gpu: Some(gpu.into()),
            compute_mode: Some(ComputeMode::TimeSlicing),
            out_of_cpu_or_memory: false,
        }
    }

    fn allocations() -> NodeAllocations {
        NodeAllocations {
            memory_mib: 1000,
            bound: vec![member("a", 500)],
            reservations: vec![reservation("g", "GPU-1"), reservation("h", "GPU-2")],
            ..NodeAllocations::default()
        }
    }

    fn answer(allocations: &NodeAllocations, uid: &str, requested_mib: i64, gpu: &str) -> CheckResult {
        final_check(
            &GpuGroupKey::new("n", "g"),
            allocations,
            RequestedShare {
                uid,
                requested_mib,
                gpu,
            },
        )
    }

    fn failed(result: &CheckResult) -> bool {
        matches!(result, CheckResult::Failed(_))
    }

    #[test]
    fn no_gpu_is_promised_beyond_its_memory() {
        assert_eq!(answer(&allocations(), "b", 500, "GPU-1"), CheckResult::Passed);
        assert!(failed(&answer(&allocations(), "b", 501, "GPU-1")));
        assert_eq!(
            answer(&allocations(), "a", 1000, "GPU-1"),
            CheckResult::Passed,
            "its own share is not in its way"
        );
        let mut announced = allocations();
        announced.announced.push(member("c", 400));
        assert_eq!(answer(&announced, "b", 100, "GPU-1"), CheckResult::Passed);
        assert!(failed(&answer(&announced, "b", 101, "GPU-1")));
        let mut leaving = allocations();
        leaving.bound[0].terminating = true;
        assert!(
            failed(&answer(&leaving, "b", 501, "GPU-1")),
            "a pod holds its share until it is gone"
        );
    }

    #[test]
    fn a_gpu_belongs_to_one_group() {
        let mut both = allocations();
        both.bound.clear();
        assert!(failed(&answer(&both, "b", 1, "GPU-2")));
        both.reservations[1].terminating = true;
        assert_eq!(answer(&both, "b", 1, "GPU-2"), CheckResult::Wait);
        both.reservations[1].alive = false;
        assert_eq!(answer(&both, "b", 1, "GPU-2"), CheckResult::Passed);
    }

    #[test]
    fn a_gpu_that_pods_of_another_group_run_on_is_not_free() {
        let mut lost = allocations();
        lost.bound[0].groups = vec!["x".into()];
        assert!(failed(&answer(&lost, "b", 1, "GPU-1")));
        assert_eq!(answer(&lost, "b", 1, "GPU-3"), CheckResult::Passed);
    }

    #[test]
    fn a_group_whose_gpu_changed_takes_nobody_in() {
        assert!(failed(&answer(&allocations(), "b", 1, "GPU-3")));
    }
}
