//! Bare pods. The pods of a Spark application have no common owner and form one pod group.

use kai_api::keys;

use super::super::desired_pod_group::DesiredPodGroup;
use super::super::workload::{Owner, Workload};
use super::default_group;

pub(super) fn desired(workload: &Workload<'_>, top: &Owner) -> DesiredPodGroup {
    let mut desired = default_group(workload, top);
    let (application, selector) = (
        workload.label(keys::SPARK_APP_NAME),
        workload.label(keys::SPARK_APP_SELECTOR),
    );
    if let (Some(_), Some(selector)) = (application, selector) {
        desired.name = selector.to_owned();
    }
    desired
}
