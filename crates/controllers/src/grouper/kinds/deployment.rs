//! Deployments: one pod group for all pods, of which one pod has to start. A Deployment whose pods have pod groups of their own, which
//! earlier versions created, keeps them: a new version moves no running pod to another pod group.

use kai_api::{PodGroup, keys};

use super::super::default_rules;
use super::super::desired_pod_group::DesiredPodGroup;
use super::super::workload::{GroupingError, Owner, Workload};
use super::{min_member_of, min_member_origin};

pub(super) fn desired(workload: &Workload<'_>, top: &Owner) -> Result<DesiredPodGroup, GroupingError> {
    let owners = std::slice::from_ref(top);
    let mut desired = default_rules::desired(workload, top, owners, keys::PRIORITY_INFERENCE);
    if has_group_per_pod(workload, top) {
        let pod = Owner::of_pod(workload.pod);
        desired.name = default_rules::name_of(&pod);
        desired.owner = default_rules::owned_by(&pod);
    } else if let Some(min) = min_member_of(workload, top, 1)? {
        desired.min_member(min, min_member_origin(top));
    }
    Ok(desired)
}

/// Whether the pod has a pod group of its own. A pod stays in the pod group that it has; a pod without one gets its own if the
/// administrator says so, or if another pod of the Deployment has its own.
fn has_group_per_pod(workload: &Workload<'_>, top: &Owner) -> bool {
    let own = Owner::of_pod(workload.pod);
    match workload.pod.pod_group() {
        Some(name) if name == default_rules::name_of(top) => false,
        Some(name) if name == default_rules::name_of(&own) => true,
        Some(_) | None => {
            let is_of_one_pod =
                |group: &PodGroup| is_owned_by_a_pod(group) && group.top_owner_uid().as_deref() == Some(&*top.uid);
            !workload.options.deployment_gang || workload.cluster.has_pod_group(workload.namespace(), &is_of_one_pod)
        }
    }
}

fn is_owned_by_a_pod(group: &PodGroup) -> bool {
    let owner = group.metadata.owner_references.first();
    owner.is_some_and(|owner| &*owner.kind == "Pod")
}
