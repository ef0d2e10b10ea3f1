//! Kubeflow's training jobs: all replicas start together, or as many as the job's scheduling policy says.

use super::super::desired_pod_group::DesiredPodGroup;
use super::super::field::Field;
use super::super::workload::{GroupingError, Owner, Workload};
use super::default_group;

/// The field in which a kind lists its replicas, and the mandatory ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Replicas {
    pub(super) field: &'static str,
    pub(super) mandatory: &'static [&'static str],
}

pub(super) const TENSORFLOW: Replicas = Replicas {
    field: "tfReplicaSpecs",
    mandatory: &[],
};
pub(super) const XGBOOST: Replicas = Replicas {
    field: "xgbReplicaSpecs",
    mandatory: &["Master", "Worker"],
};
pub(super) const JAX: Replicas = Replicas {
    field: "jaxReplicaSpecs",
    mandatory: &["Worker"],
};

pub(super) fn desired(
    workload: &Workload<'_>,
    top: &Owner,
    replicas: &Replicas,
) -> Result<DesiredPodGroup, GroupingError> {
    let job = Field::of(workload.object(top.reference())?);
    let mut desired = default_group(workload, top);
    match min_available(&job)? {
        Some(min) => desired.min_member(min, MIN_AVAILABLE),
        None => desired.min_member(total(&job, replicas)?, all_replicas(replicas)),
    }
    Ok(desired)
}

/// The field of `min_available`.
pub(super) const MIN_AVAILABLE: &str = "spec.runPolicy.schedulingPolicy.minAvailable";

/// The fields of `total`, for people.
pub(super) fn all_replicas(replicas: &Replicas) -> String {
    format!("replicas of all of spec.{}", replicas.field)
}

/// The minimum of the job's scheduling policy.
pub(super) fn min_available(job: &Field<'_>) -> Result<Option<i32>, GroupingError> {
    let policy = job.at("spec").at("runPolicy").at("schedulingPolicy");
    policy.at("minAvailable").count()
}

/// The number of all pods of the job.
pub(super) fn total(job: &Field<'_>, replicas: &Replicas) -> Result<i32, GroupingError> {
    let specs = job.at("spec").at(replicas.field);
    for name in replicas.mandatory {
        if !specs.at(name).exists() {
            return Err(specs.at(name).refuse("it is missing, and jobs of this kind need it"));
        }
    }
    let mut total = 0_i32;
    for (_, spec) in specs.entries() {
        let field = spec.at("replicas");
        let count = field.count()?.filter(|count| *count > 0);
        let count = count.ok_or_else(|| field.refuse("it has to be 1 or more"))?;
        total = total
            .checked_add(count)
            .ok_or_else(|| field.refuse("so many pods are no job"))?;
    }
    match total {
        0 => Err(specs.refuse("it names no pods; add a replica spec")),
        total => Ok(total),
    }
}
