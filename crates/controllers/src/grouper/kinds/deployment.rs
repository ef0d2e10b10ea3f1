//! Deployments: each pod serves requests independently, so each pod has its own pod group, which the pod owns.

use kai_api::keys;

use super::super::default_rules;
use super::super::desired_pod_group::DesiredPodGroup;
use super::super::workload::{Owner, Workload};

pub(super) fn desired(workload: &Workload<'_>, top: &Owner) -> DesiredPodGroup {
    let pod = Owner::of_pod(workload.pod);
    let owners = std::slice::from_ref(top);
    DesiredPodGroup {
        name: default_rules::name_of(&pod),
        owner: default_rules::owned_by(&pod),
        ..default_rules::desired(workload, top, owners, keys::PRIORITY_INFERENCE)
    }
}
