//! Run:ai jobs: pods whose names have the same prefix form one pod group.

use kai_api::keys;

use super::super::desired_pod_group::DesiredPodGroup;
use super::super::workload::{Owner, Workload};
use super::default_group;

pub(super) fn desired(workload: &Workload<'_>, top: &Owner) -> DesiredPodGroup {
    let mut desired = default_group(workload, top);
    // An existing pod group with the default name is from an older version and is kept.
    let legacy = workload.options.search_legacy
        && workload
            .cluster
            .pod_group(workload.namespace(), &desired.name)
            .is_some();
    if !legacy {
        let pod = workload.pod_name();
        let begins = pod.rsplit_once('-').map_or(pod, |(begins, _)| begins);
        desired.name = format!("{}-{begins}-{}", keys::POD_GROUP_PREFIX, top.uid);
    }
    desired
}
