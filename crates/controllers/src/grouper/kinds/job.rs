//! Jobs and CronJobs: a pod group per Job. An annotation says how many pods start together; without it one, because the pods of a Job
//! need not run at the same time.

use super::super::default_rules;
use super::super::desired_pod_group::DesiredPodGroup;
use super::super::workload::{GroupingError, Owner, Workload};
use super::{default_group, min_member_of, min_member_origin};

pub(super) fn desired(workload: &Workload<'_>, job: &Owner) -> Result<DesiredPodGroup, GroupingError> {
    let mut desired = default_group(workload, job);
    if let Some(legacy) = legacy_name(workload, job) {
        desired.name = legacy;
        return Ok(desired);
    }
    if let Some(min) = min_member_of(workload, job, 0)? {
        desired.min_member(min, min_member_origin(job));
    }
    Ok(desired)
}

/// A pod group per Job that the CronJob creates, without the Job rule's annotation.
pub(super) fn desired_of_cron_job(
    workload: &Workload<'_>,
    top: &Owner,
    owners: &[Owner],
) -> Result<DesiredPodGroup, GroupingError> {
    let job = owners.iter().find(|owner| owner.kind == "Job").ok_or_else(|| {
        let field = "metadata.ownerReferences".to_owned();
        workload.refuse_pod(field, format!("no Job stands between it and CronJob {}", top.name))
    })?;
    Ok(default_group(workload, job))
}

/// Older versions created a pod group per pod. An existing one is kept, so that an upgrade moves no running pod.
fn legacy_name(workload: &Workload<'_>, job: &Owner) -> Option<String> {
    let of_pod = Owner {
        name: workload.pod_name().to_owned(),
        ..job.clone()
    };
    let name = default_rules::name_of(&of_pod);
    let exists = || workload.cluster.pod_group(workload.namespace(), &name).is_some();
    (workload.options.search_legacy && name != default_rules::name_of(job) && exists()).then_some(name)
}
