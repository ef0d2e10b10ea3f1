//! Azure ML jobs: all nodes of a job start together.

use super::super::field::Field;
use super::super::plan::Plan;
use super::super::workload::{Owner, Stop, Workload};
use super::begin;

pub(super) fn plan(workload: &Workload<'_>, top: &Owner) -> Result<Plan, Stop> {
    let object = Field::of(workload.object(top.reference())?);
    let environment = object.at("spec").at("job").at("options").at("envs");
    let nodes = environment.at("AZUREML_NODE_COUNT");
    let min = nodes
        .count()?
        .ok_or_else(|| nodes.refuse("it is missing; write the number of nodes"))?;
    let mut plan = begin(workload, top);
    plan.min_member(min);
    Ok(plan)
}
