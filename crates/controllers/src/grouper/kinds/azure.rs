//! Azure ML jobs: all nodes of a job start together.

use super::super::desired_pod_group::DesiredPodGroup;
use super::super::field::Field;
use super::super::workload::{GroupingError, Owner, Workload};
use super::default_group;

pub(super) fn desired(workload: &Workload<'_>, top: &Owner) -> Result<DesiredPodGroup, GroupingError> {
    let object = Field::of(workload.object(top.reference())?);
    let environment = object.at("spec").at("job").at("options").at("envs");
    let nodes = environment.at("AZUREML_NODE_COUNT");
    let min = nodes
        .count()?
        .ok_or_else(|| nodes.refuse("it is missing; write the number of nodes"))?;
    let mut desired = default_group(workload, top);
    desired.min_member(min, "spec.job.options.envs.AZUREML_NODE_COUNT");
    Ok(desired)
}
