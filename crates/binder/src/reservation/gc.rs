//! Garbage collection of reservation pods: decides whether a group's reservation pod is kept, deleted or recreated while no bind works on
//! the group. Pure. It never ends a workload because of its reservation.

use crate::GpuGroupKey;
use crate::node::allocations::NodeAllocations;
use crate::reservation::state::Reservation;

/// What to do about a group's reservation pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GcAction {
    /// The reservation pod is in order, or a bind handles it.
    Keep,
    /// The reservation pod has no users, or is unusable: delete it.
    Delete {
        /// Whether running pods need another reservation pod.
        retry: bool,
    },
    /// Pods run on a GPU without a reservation pod: create it again.
    Recreate,
    /// The reservation pod is terminating, or its GPU is not known yet: check again later.
    Wait,
    /// The reservation pod holds another GPU than the pods of the group use: warn the pods, delete it, try again.
    Mismatch {
        /// The GPU of the reservation pod.
        gpu: String,
    },
}

/// Decides for a group. `needed_by_cache`: whether the informers' caches show a user. A cache can't prove that a group has no users, but it
/// may know one that the reads missed.
pub(crate) fn gc_action(
    key: &GpuGroupKey,
    found: Option<&Reservation>,
    allocations: &NodeAllocations,
    needed_by_cache: bool,
) -> GcAction {
    let has_active_members = allocations.active_members(&key.group).next().is_some();
    let needed =
        allocations.has_members(&key.group) || allocations.has_pending_request(&key.group, None) || needed_by_cache;
    let Some(found) = found else {
        return if has_active_members {
            GcAction::Recreate
        } else {
            GcAction::Keep
        };
    };
    if found.terminating {
        return if has_active_members {
            GcAction::Wait
        } else {
            GcAction::Keep
        };
    }
    // The bind that waits for the pod has to see that it ended, and deletes it. If members run, binds leave that to this function.
    if !found.alive && !has_active_members && allocations.has_pending_request(&key.group, None) {
        return GcAction::Wait;
    }
    if !found.alive || found.key() != *key {
        return GcAction::Delete {
            retry: has_active_members,
        };
    }
    if !needed {
        return GcAction::Delete { retry: false };
    }
    match &found.gpu {
        Some(gpu) if allocations.member_on_other_gpu(&key.group, gpu).is_some() => {
            GcAction::Mismatch { gpu: gpu.clone() }
        }
        None if has_active_members => GcAction::Wait,
        Some(_) | None => GcAction::Keep,
    }
}

#[cfg(test)]
mod tests {

    use kai_api::{ComputeMode, ObjectKey};

    use super::*;
    use crate::node::allocations::SharingPod;
    use crate::reservation_name;

    fn member(terminating: bool, gpus: &[&str]) -> SharingPod {
        SharingPod {
            key: ObjectKey::new("ns", "p"),
            uid: "u".into(),
            groups: vec!["g".into()],
            groups_in_gpu_order: true,
            requested_mib: 1,
            terminating,
            gpus: gpus.iter().map(|gpu| (*gpu).to_owned()).collect(),
            compute_mode: ComputeMode::TimeSlicing,
        }
    }

    fn live() -> Reservation {
        Reservation {
            uid: "1".into(),
            resource_version: "1".into(),
            node: "n".into(),
            group: "g".into(),
            name: reservation_name(&GpuGroupKey::new("n", "g")),
            alive: true,
            terminating: false,
            gpu: Some("GPU-1".into()),
            compute_mode: Some(ComputeMode::TimeSlicing),
            out_of_cpu_or_memory: false,
        }
    }

    fn check(found: Option<Reservation>, bound: Vec<SharingPod>, awaited: bool, cached: bool, expect: GcAction) {
        let active_requests = if awaited {
            vec![(ObjectKey::new("ns", "q"), vec!["g".to_owned()])]
        } else {
            vec![]
        };
        let allocations = NodeAllocations {
            memory_mib: 100,
            bound,
            active_requests,
            ..NodeAllocations::default()
        };
        let told = format!("{found:?} {allocations:?}");
        assert_eq!(
            gc_action(&GpuGroupKey::new("n", "g"), found.as_ref(), &allocations, cached),
            expect,
            "{told}"
        );
    }

    #[test]
    fn every_state_has_its_care() {
        check(None, vec![], false, false, GcAction::Keep);
        check(None, vec![], true, true, GcAction::Keep);
        check(None, vec![member(false, &[])], false, false, GcAction::Recreate);
        check(None, vec![member(true, &[])], false, false, GcAction::Keep);
        check(Some(live()), vec![], false, false, GcAction::Delete { retry: false });
        check(Some(live()), vec![], true, false, GcAction::Keep);
        check(Some(live()), vec![], false, true, GcAction::Keep);
        check(
            Some(live()),
            vec![member(true, &["GPU-1"])],
            false,
            false,
            GcAction::Keep,
        );
        check(
            Some(live()),
            vec![member(false, &["GPU-1"])],
            false,
            false,
            GcAction::Keep,
        );
        check(Some(live()), vec![member(false, &[])], false, false, GcAction::Keep);
        check(
            Some(live()),
            vec![member(false, &["GPU-2"])],
            false,
            false,
            GcAction::Mismatch { gpu: "GPU-1".into() },
        );
        let unknown = Reservation { gpu: None, ..live() };
        check(
            Some(unknown.clone()),
            vec![member(false, &["GPU-2"])],
            false,
            false,
            GcAction::Wait,
        );
        check(Some(unknown), vec![], true, false, GcAction::Keep);
        let ending = Reservation {
            terminating: true,
            ..live()
        };
        check(
            Some(ending.clone()),
            vec![member(false, &[])],
            false,
            false,
            GcAction::Wait,
        );
        check(Some(ending), vec![], false, false, GcAction::Keep);
        let ended = Reservation { alive: false, ..live() };
        check(
            Some(ended.clone()),
            vec![],
            false,
            false,
            GcAction::Delete { retry: false },
        );
        check(
            Some(ended.clone()),
            vec![member(false, &[])],
            false,
            false,
            GcAction::Delete { retry: true },
        );
        check(
            Some(ended.clone()),
            vec![member(false, &[])],
            true,
            false,
            GcAction::Delete { retry: true },
        );
        check(Some(ended), vec![], true, false, GcAction::Wait);
        let elsewhere = Reservation {
            node: "m".into(),
            ..live()
        };
        check(
            Some(elsewhere),
            vec![member(false, &[])],
            false,
            false,
            GcAction::Delete { retry: true },
        );
    }
}
