//! Plans a bind from a BindRequest and its pod, as just read. Pure.

use std::collections::BTreeSet;

use kai_api::{BindRequest, Pod, keys};
use kai_engine::model::PodPhase;
use serde_json::Value;

use crate::GpuGroupKey;
use crate::bind::failure::BindFailure;
use crate::bind::limits::AskedShare;
use crate::node::allocations::targets_pod;

/// What to do about a BindRequest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BindPlan {
    /// The pod is bound to the requested node already.
    AlreadyBound,
    /// The pod can't be bound, now or later.
    Unbindable(BindFailure),
    /// The request names no node or no GPU group: delete it.
    DeleteRequest,
    /// Bind the pod, which has no GPU share.
    BindWithoutShare,
    /// Bind the pod to shares of these groups' GPUs, in this order.
    BindShare(Vec<GpuGroupKey>, AskedShare),
}

/// Plans the bind. `pod` is the named pod with all its fields, and in short; `None` if it does not exist.
pub(crate) fn bind_plan(request: &BindRequest, pod: Option<(&Value, &Pod)>, scheduler_name: &str) -> BindPlan {
    let node = request.selected_node();
    let shares = request.received_resource_type() == keys::RECEIVED_FRACTION;
    if node.is_empty() || (shares && request.gpu_groups().is_empty()) {
        return BindPlan::DeleteRequest;
    }
    let Some((full, pod)) = pod.filter(|(_, pod)| targets_pod(request, pod)) else {
        return BindPlan::Unbindable(BindFailure::PodGone);
    };
    match pod.node_name() {
        Some(bound) if bound == node => return BindPlan::AlreadyBound,
        Some(bound) => return BindPlan::Unbindable(BindFailure::BoundElsewhere { node: bound.to_owned() }),
        None => {}
    }
    if pod.is_terminating() || matches!(pod.phase(), PodPhase::Succeeded | PodPhase::Failed) {
        return BindPlan::Unbindable(BindFailure::PodEnded);
    }
    if pod.scheduler_name() != scheduler_name {
        let scheduler = pod.scheduler_name().to_owned();
        return BindPlan::Unbindable(BindFailure::OtherScheduler { scheduler });
    }
    if !shares {
        return BindPlan::BindWithoutShare;
    }
    let groups: Vec<GpuGroupKey> = request
        .gpu_groups()
        .iter()
        .map(|group| GpuGroupKey::new(node, group))
        .collect();
    if groups.iter().collect::<BTreeSet<_>>().len() < groups.len() {
        return BindPlan::Unbindable(BindFailure::GpuGroupTwice);
    }
    match asked_share(request, full, pod) {
        Ok(asked) => BindPlan::BindShare(groups, asked),
        Err(failure) => BindPlan::Unbindable(failure),
    }
}

/// The share that the pod asks for. The request must be for the same compute mode.
fn asked_share(request: &BindRequest, full: &Value, pod: &Pod) -> Result<AskedShare, BindFailure> {
    let of_request = request.compute_mode()?;
    let asked = AskedShare::of(full, pod)?;
    match asked.terms.compute_mode {
        mode if mode == of_request => Ok(asked),
        mode => Err(BindFailure::OtherRequestMode {
            request: of_request,
            pod: mode,
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(request: Value, pod: Option<Value>, expect: &str) {
        let mut spec = json!({ "podName": "p", "selectedNode": "n" });
        spec.as_object_mut()
            .unwrap()
            .extend(request.as_object().unwrap().clone());
        let owners = json!([{ "kind": "Pod", "name": "p", "uid": "1" }]);
        let request = json!({ "metadata": { "name": "p", "ownerReferences": owners }, "spec": spec });
        let pod = pod.map(|change| {
            let mut pod = json!({
                "metadata": { "name": "p", "uid": "1", "annotations": { "gpu-fraction": "0.5" } },
                "spec": { "schedulerName": "kai-scheduler", "containers": [{ "name": "main" }] },
            });
            for (part, fields) in change.as_object().unwrap() {
                for (name, value) in fields.as_object().unwrap() {
                    pod[part][name] = value.clone();
                }
            }
            (serde_json::from_value::<Pod>(pod.clone()).unwrap(), pod)
        });
        let pod = pod.as_ref().map(|(slim, pod)| (pod, slim));
        let found = bind_plan(&serde_json::from_value(request).unwrap(), pod, "kai-scheduler");
        assert!(format!("{found:?}").starts_with(expect), "{found:?}");
    }

    #[test]
    fn intents() {
        let share = json!({ "receivedResourceType": "Fraction", "selectedGPUGroups": ["g"] });
        check(json!({}), Some(json!({})), "BindWithoutShare");
        check(json!({ "selectedNode": "" }), Some(json!({})), "DeleteRequest");
        check(
            json!({ "receivedResourceType": "Fraction" }),
            Some(json!({})),
            "DeleteRequest",
        );
        check(
            share.clone(),
            Some(json!({})),
            r#"BindShare([GpuGroupKey { node: "n", group: "g" }], "#,
        );
        check(
            json!({ "receivedResourceType": "Fraction", "selectedGPUGroups": ["g", "g"] }),
            Some(json!({})),
            "Unbindable(GpuGroupTwice)",
        );
        let fractional = |id: &str| json!([{ "id": id, "computeSharingMode": "sm-sharing" }]);
        check(
            json!({ "receivedResourceType": "Fraction", "selectedFractionalGpuGroups": fractional("g") }),
            Some(json!({})),
            "Unbindable(OtherRequestMode { request: SmSharing, pod: TimeSlicing })",
        );
        let container = json!({ "name": "main", "resources": { "limits": { "kai.scheduler/gpu-share": "1" } } });
        check(
            json!({ "receivedResourceType": "Fraction", "selectedFractionalGpuGroups": fractional("g") }),
            Some(json!({
                "metadata": { "annotations": { "gpu-fraction": "0.5", "nvidia.com/container.main.gpu-compute.mode": "sm-sharing" } },
                "spec": { "containers": [container] },
            })),
            r#"BindShare([GpuGroupKey { node: "n", group: "g" }], "#,
        );
        check(
            json!({ "receivedResourceType": "Fraction", "selectedGPUGroups": ["g"],
                    "selectedFractionalGpuGroups": fractional("h") }),
            Some(json!({})),
            r#"Unbindable(GpuGroups(ListsDiffer { old: "[g]", new: "[h]" }))"#,
        );
        check(
            share.clone(),
            Some(json!({ "spec": { "nodeName": "n" } })),
            "AlreadyBound",
        );
        check(
            share.clone(),
            Some(json!({ "spec": { "nodeName": "m" } })),
            r#"Unbindable(BoundElsewhere { node: "m" })"#,
        );
        check(share.clone(), None, "Unbindable(PodGone)");
        check(
            share.clone(),
            Some(json!({ "metadata": { "uid": "2" } })),
            "Unbindable(PodGone)",
        );
        for ended in [
            json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
            json!({ "status": { "phase": "Failed" } }),
        ] {
            check(share.clone(), Some(ended), "Unbindable(PodEnded)");
        }
        let required = json!({ "gpu-fraction": "0.5", "kai.scheduler/gpu-enforcement": "required" });
        check(
            share.clone(),
            Some(json!({ "metadata": { "annotations": required } })),
            r#"Unbindable(NoShareDevice { container: "main", "#,
        );
        check(
            share,
            Some(json!({ "spec": { "schedulerName": "other" } })),
            r#"Unbindable(OtherScheduler { scheduler: "other" })"#,
        );
    }
}
