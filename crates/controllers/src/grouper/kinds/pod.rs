//! Bare pods. The pods of a Spark application are bare too, and one group.

use kai_api::keys;

use super::super::plan::Plan;
use super::super::workload::{Owner, Workload};
use super::begin;

pub(super) fn plan(workload: &Workload<'_>, top: &Owner) -> Plan {
    let mut plan = begin(workload, top);
    let (application, selector) = (
        workload.label(keys::SPARK_APP_NAME),
        workload.label(keys::SPARK_APP_SELECTOR),
    );
    if let (Some(_), Some(selector)) = (application, selector) {
        plan.name = selector.to_owned();
    }
    plan
}
