//! Deployments: each pod serves on its own, so each is a group of its own that ends with the pod.

use kai_api::keys;

use super::super::base;
use super::super::plan::Plan;
use super::super::workload::{Owner, Workload};

pub(super) fn plan(workload: &Workload<'_>, top: &Owner) -> Plan {
    let pod = Owner::of_pod(workload.pod);
    let owners = std::slice::from_ref(top);
    Plan {
        name: base::name_of(&pod),
        owner: base::owned_by(&pod),
        ..base::plan(workload, top, owners, keys::PRIORITY_INFERENCE)
    }
}
