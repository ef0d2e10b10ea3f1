//! Run:ai jobs: grouped by what the names of their pods begin with.

use kai_api::keys;

use super::super::plan::Plan;
use super::super::workload::{Owner, Workload};
use super::begin;

pub(super) fn plan(workload: &Workload<'_>, top: &Owner) -> Plan {
    let mut plan = begin(workload, top);
    // A group of the plain name is one of an older version and is kept.
    let legacy = workload.rules.search_legacy && workload.view.pod_group(workload.namespace(), &plan.name).is_some();
    if !legacy {
        let pod = workload.pod_name();
        let begins = pod.rsplit_once('-').map_or(pod, |(begins, _)| begins);
        plan.name = format!("{}-{begins}-{}", keys::POD_GROUP_PREFIX, top.uid);
    }
    plan
}
