//! Top owners that only create other workloads, such as Argo workflows: the owner below selects the rule. The owner below inherits the
//! labels and annotations of the skipped owner that it lacks.

use kai_api::crd::Preemptibility;
use kai_api::keys;

use super::super::desired_pod_group::DesiredPodGroup;
use super::super::workload::{GroupingError, Owner, Workload};
use super::{GroupingRule, Level, apply, of_owners};

pub(super) fn desired(
    workload: &Workload<'_>,
    skipped: &Owner,
    owners: &[Owner],
) -> Result<DesiredPodGroup, GroupingError> {
    let below = &owners[..owners.len().saturating_sub(1)];
    let mut base = below.last().cloned().unwrap_or_else(|| Owner::of_pod(workload.pod));
    inherit(workload, &mut base, skipped);
    let mut chain = below.to_vec();
    if let Some(last) = chain.last_mut() {
        last.clone_from(&base);
    }
    match chain.is_empty() {
        true => apply(GroupingRule::Pod, workload, &base, &[]),
        false => of_owners(workload, &chain, Level::BelowSkipped),
    }
}

fn inherit(workload: &Workload<'_>, base: &mut Owner, skipped: &Owner) {
    let defaults = &workload.options.kind_defaults;
    let class = defaults.priority_class(&skipped.kind, skipped.group());
    let class = class.filter(|class| workload.cluster.has_priority_class(class));
    let preemptibility = defaults
        .preemptibility(&skipped.kind, skipped.group())
        .map(Preemptibility::name);
    for (key, value) in &skipped.labels {
        base.labels.entry(key.clone()).or_insert_with(|| value.clone());
    }
    for (key, value) in [
        (keys::PRIORITY_CLASS_NAME, class),
        (keys::PREEMPTIBILITY, preemptibility),
    ] {
        if let Some(value) = value {
            base.labels.entry(key.to_owned()).or_insert_with(|| value.to_owned());
        }
    }
    for (key, value) in &skipped.annotations {
        base.annotations.entry(key.clone()).or_insert_with(|| value.clone());
    }
}
