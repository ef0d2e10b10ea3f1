//! Which pods wait for a node that an autoscaler could add. Pure.

use kai_api::crd::UnschedulableReason;
use kai_api::{ConditionStatus, ObjectKey, Pod, PodCondition, PodGroup, PodIdentity};
use kai_engine::model::{Constraints, GpuRequest, Millis, PodPhase};

use super::Settings;

/// A pod with a GPU share that no node has room for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WaitingPod {
    pub(super) key: ObjectKey,
    pub(super) created: Millis,
    /// Billionths of each of its GPUs.
    pub(super) share_billionths: i64,
    /// Its GPUs.
    pub(super) gpus: i64,
    pub(super) cpu_milli: i64,
    pub(super) memory_bytes: i64,
    /// The nodes that it may run on. Pods with other constraints may need other nodes.
    pub(super) constraints: Constraints,
}

/// Whether the pod is one that the adjuster looks at: placed by kai, and without room. Cheap: it is asked about every pod.
pub(super) fn is_unschedulable(pod: &Pod, scheduler_name: &str) -> bool {
    let lacks_room = |condition: &PodCondition| {
        condition.status == ConditionStatus::False && condition.reason.as_deref() == Some("Unschedulable")
    };
    pod.node_name().is_none()
        && pod.scheduler_name() == scheduler_name
        && pod.phase() == PodPhase::Pending
        && !pod.is_terminating()
        && pod.scheduling_gates() == 0
        && pod.condition(PodCondition::SCHEDULED).is_some_and(lacks_room)
}

/// The pod, if a new node with GPUs would help it.
pub(super) fn waiting_pod(
    key: &ObjectKey,
    pod: &Pod,
    group: Option<&PodGroup>,
    settings: &Settings,
) -> Option<WaitingPod> {
    if group.is_some_and(waits_for_its_queue) {
        return None;
    }
    let identity = PodIdentity {
        scheduler_name: settings.scheduler_name.clone(),
        ..PodIdentity::default()
    };
    let spec = pod.read(&identity, Millis(0)).ok()?.value;
    // Such a pod is not scheduled on any node.
    if spec.refused.is_some() {
        return None;
    }
    let (share, gpus) = match spec.requests.gpu {
        GpuRequest::Fraction { fraction, devices } => (fraction, devices),
        GpuRequest::Memory { devices, .. } => (settings.memory_request, devices),
        GpuRequest::None | GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => return None,
    };
    Some(WaitingPod {
        key: key.clone(),
        created: spec.created,
        share_billionths: share.billionths(),
        gpus,
        cpu_milli: spec.requests.cpu_milli,
        memory_bytes: spec.requests.memory_bytes,
        constraints: spec.constraints,
    })
}

/// Whether no node would help the pods of the group: their queue may not use more, or does not exist.
fn waits_for_its_queue(group: &PodGroup) -> bool {
    const OF_QUEUES: [&str; 3] = [
        UnschedulableReason::OVER_LIMIT,
        UnschedulableReason::NON_PREEMPTIBLE_OVER_QUOTA,
        UnschedulableReason::QUEUE_DOES_NOT_EXIST,
    ];
    let conditions = group.scheduling_conditions();
    let waits = |reasons: &[UnschedulableReason]| reasons.iter().any(|reason| OF_QUEUES.contains(&&*reason.reason));
    !conditions.is_empty() && conditions.iter().all(|condition| waits(&condition.reasons))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(change: Value) -> Pod {
        let mut pod = json!({
            "metadata": { "name": "p", "namespace": "a", "annotations": { "gpu-fraction": "0.5" } },
            "spec": { "schedulerName": "kai-scheduler", "containers": [{ "resources": { "requests": { "cpu": "2", "memory": "1Ki" } } }] },
            "status": { "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] },
        });
        json_patch::merge(&mut pod, &change);
        serde_json::from_value(pod).unwrap()
    }

    fn waiting(change: Value, group: Option<Value>) -> Option<(i64, i64, i64, i64)> {
        let (pod, settings) = (pod(change), Settings::default());
        let group: Option<PodGroup> = group.map(|group| serde_json::from_value(group).unwrap());
        if !is_unschedulable(&pod, &settings.scheduler_name) {
            return None;
        }
        let found = waiting_pod(&ObjectKey::new("a", "p"), &pod, group.as_ref(), &settings)?;
        Some((found.share_billionths, found.gpus, found.cpu_milli, found.memory_bytes))
    }

    #[test]
    fn pods_with_a_share_that_find_no_room_wait() {
        assert_eq!(waiting(json!({}), None), Some((500_000_000, 1, 2000, 1024)));
        let memory = json!({ "metadata": { "annotations": { "gpu-fraction": null, "gpu-memory": "4096", "gpu-fraction-num-devices": "2" } } });
        assert_eq!(waiting(memory, None), Some((100_000_000, 2, 2000, 1024)));
        for other in [
            json!({ "metadata": { "annotations": { "gpu-fraction": null } } }),
            json!({ "metadata": { "annotations": { "gpu-fraction": "lots" } } }),
            json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
            json!({ "spec": { "nodeName": "n" } }),
            json!({ "spec": { "schedulerName": "default-scheduler" } }),
            json!({ "spec": { "schedulingGates": [{ "name": "g" }] } }),
            json!({ "status": { "phase": "Failed" } }),
            json!({ "status": { "conditions": [] } }),
            json!({ "status": { "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "SchedulingGated" }] } }),
            json!({ "status": { "conditions": [{ "type": "PodScheduled", "status": "True", "reason": "Unschedulable" }] } }),
        ] {
            assert_eq!(waiting(other.clone(), None), None, "{other}");
        }
    }

    #[test]
    fn no_node_helps_a_pod_whose_queue_may_not_use_more() {
        let group = |reasons: &[&str]| {
            let reasons: Vec<Value> = reasons.iter().map(|reason| json!({ "reason": reason })).collect();
            json!({ "metadata": { "name": "g" }, "status": { "schedulingConditions": [{ "type": "UnschedulableOnNodePool", "nodePool": "default",
                "status": "True", "transitionID": "1", "reasons": reasons }] } })
        };
        assert!(waiting(json!({}), Some(json!({ "metadata": { "name": "g" } }))).is_some());
        assert!(waiting(json!({}), Some(group(&["PodSchedulingErrors"]))).is_some());
        for reason in ["OverLimit", "NonPreemptibleOverQuota", "QueueDoesNotExist"] {
            assert_eq!(waiting(json!({}), Some(group(&[reason]))), None, "{reason}");
        }
    }
}
