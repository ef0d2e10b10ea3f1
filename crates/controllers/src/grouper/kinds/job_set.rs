//! JobSets: a subgroup per replicated job, and below it a subgroup per replica, whose pods start together. If the jobs start in order,
//! one subgroup is enough to start.

use kai_api::crd::{SubGroup, TopologyConstraint};
use kai_api::keys;

use super::super::default_rules;
use super::super::desired_pod_group::{DesiredPodGroup, leaf, parent, topology_constraint};
use super::super::field::Field;
use super::super::workload::{GroupingError, Owner, PodOrigin, Workload};
use super::{SUB_GROUPS_MAX, default_group, min_member_origin, parse_count};

pub(super) fn desired(workload: &Workload<'_>, top: &Owner) -> Result<DesiredPodGroup, GroupingError> {
    let set = Field::of(workload.object(top.reference())?);
    let in_order = set.at("spec").at("startupPolicy").at("startupPolicyOrder").text()? == Some("InOrder");
    let replicated = match workload.pod_origin {
        PodOrigin::Pod => required_label(workload, keys::JOB_SET_REPLICATED_JOB)?,
        PodOrigin::Template => "",
    };
    if is_flat(workload, top) {
        return flat(workload, top, in_order, replicated);
    }
    let jobs = set.at("spec").at("replicatedJobs");
    let items = jobs.items()?;
    let count = i32::try_from(items.len()).map_err(|_| jobs.refuse("so many jobs are no job set"))?;
    if count == 0 {
        return Err(jobs.refuse("it is empty; add a job"));
    }
    let mut desired = default_group(workload, top);
    match (min_member(workload, top)?, in_order) {
        (Some(min), _) => desired.min_sub_group(min.min(count), min_member_origin(top)),
        (None, true) => desired.min_sub_group(1, "spec.startupPolicy.startupPolicyOrder: the jobs start in order"),
        (None, false) => desired.min_sub_group(count, "number of spec.replicatedJobs"),
    }
    desired.origins.sub_groups = format!(
        "spec.replicatedJobs and their replicas; pods by labels {} and {}",
        keys::JOB_SET_REPLICATED_JOB,
        keys::JOB_SET_JOB_INDEX
    );
    for job in &items {
        add_job(&mut desired, job)?;
    }
    if workload.pod_origin == PodOrigin::Template {
        return Ok(desired);
    }
    let leaf_name = replica_name(replicated, required_label(workload, keys::JOB_SET_JOB_INDEX)?);
    if !desired.spec.sub_groups.iter().any(|group| group.name == leaf_name) {
        return Err(jobs.refuse(format!("no replica {leaf_name} is in it, of which the pod says to be")));
    }
    desired.sub_group = Some(leaf_name);
    Ok(desired)
}

fn add_job(desired: &mut DesiredPodGroup, job: &Field<'_>) -> Result<(), GroupingError> {
    let name = job.at("name");
    let name = name.text()?.ok_or_else(|| name.refuse("it is missing"))?;
    let replicas = job.at("replicas");
    let count = replicas.count()?.unwrap_or(1);
    let so_far = i64::try_from(desired.spec.sub_groups.len()).unwrap_or(i64::MAX);
    if so_far.saturating_add(i64::from(count)) > SUB_GROUPS_MAX {
        return Err(replicas.refuse(format!("a job set may have {SUB_GROUPS_MAX} replicas in all")));
    }
    let template = job.at("template").at("metadata").at("annotations");
    let members = members(job, &template)?;
    let topology = topology(&template)?;
    desired.spec.sub_groups.push(parent(name, count));
    for replica in 0..count {
        desired.spec.sub_groups.push(SubGroup {
            parent: Some(name.to_owned()),
            topology_constraint: topology.clone(),
            ..leaf(replica_name(name, &replica.to_string()), members)
        });
    }
    Ok(())
}

fn members(job: &Field<'_>, template: &Field<'_>) -> Result<i32, GroupingError> {
    let field = template.at(keys::BATCH_MIN_MEMBER);
    match field.text()? {
        None => Ok(job.at("template").at("spec").at("parallelism").count()?.unwrap_or(1)),
        Some(text) => parse_count(text)
            .filter(|min| *min >= 1)
            .ok_or_else(|| field.refuse(format!("{text:?} is not a number of pods; write 1 or more"))),
    }
}

fn topology(template: &Field<'_>) -> Result<Option<TopologyConstraint>, GroupingError> {
    let topology = template.at(keys::TOPOLOGY).text()?;
    let required = template.at(keys::TOPOLOGY_REQUIRED).text()?;
    let preferred = template.at(keys::TOPOLOGY_PREFERRED).text()?;
    let complete = topology.is_some() && (required.is_some() || preferred.is_some());
    Ok(topology_constraint(topology, required, preferred).filter(|_| complete))
}

fn replica_name(job: &str, index: &str) -> String {
    format!("{job}-replica-{index}")
}

fn min_member(workload: &Workload<'_>, top: &Owner) -> Result<Option<i32>, GroupingError> {
    let Some(text) = top.annotations.get(keys::BATCH_MIN_MEMBER) else {
        return Ok(None);
    };
    let min = parse_count(text).filter(|min| *min >= 1);
    let refuse = || {
        let field = format!("metadata.annotations.{}", keys::BATCH_MIN_MEMBER);
        workload.refuse_owner(top, field, format!("{text:?} is not a number of jobs; write 1 or more"))
    };
    min.map(Some).ok_or_else(refuse)
}

fn required_label<'a>(workload: &Workload<'a>, key: &str) -> Result<&'a str, GroupingError> {
    let label = workload.label(key).filter(|text| !text.is_empty());
    label.ok_or_else(|| {
        workload.refuse_pod(
            format!("metadata.labels.{key}"),
            "it is missing; the JobSet controller writes it",
        )
    })
}

/// Older versions created no subgroups. A JobSet with such a pod group keeps it.
fn is_flat(workload: &Workload<'_>, top: &Owner) -> bool {
    let name = default_rules::name_of(top);
    let is_one = |group: &str| {
        let rest = group.strip_prefix(&name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    workload.cluster.has_flat_pod_group(workload.namespace(), &is_one)
}

fn flat(
    workload: &Workload<'_>,
    top: &Owner,
    in_order: bool,
    replicated: &str,
) -> Result<DesiredPodGroup, GroupingError> {
    let mut desired = default_group(workload, top);
    if in_order {
        desired.name = format!("{}-{replicated}", desired.name);
    }
    if let Some(min) = min_member(workload, top)? {
        desired.min_member(min, min_member_origin(top));
    }
    Ok(desired)
}
