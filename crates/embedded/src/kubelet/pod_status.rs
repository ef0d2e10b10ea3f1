//! The pod statuses that a kubelet writes. Pure.

use serde_json::{Value, json};

use super::node::Rejection;

/// The pod runs.
pub(super) fn running(pod: &Value, now: &str, address: &str) -> Value {
    let started = json!({ "running": { "startedAt": now } });
    json!({ "status": {
        "phase": "Running",
        "startTime": now,
        "podIP": address,
        "podIPs": [{ "ip": address }],
        "conditions": conditions(now, true),
        "containerStatuses": containers(pod, &started, true),
    } })
}

/// The containers can't start yet.
pub(super) fn waiting(pod: &Value, now: &str, reason: &str, message: &str) -> Value {
    let state = json!({ "waiting": { "reason": reason, "message": message } });
    json!({ "status": {
        "phase": "Pending",
        "startTime": now,
        "conditions": conditions(now, false),
        "containerStatuses": containers(pod, &state, false),
    } })
}

/// The pod has ended.
pub(super) fn ended(pod: &Value, now: &str, exit_code: i64) -> Value {
    let (phase, reason) = match exit_code {
        0 => ("Succeeded", "Completed"),
        _ => ("Failed", "Error"),
    };
    let state = json!({ "terminated": { "exitCode": exit_code, "reason": reason, "finishedAt": now } });
    json!({ "status": {
        "phase": phase,
        "conditions": conditions(now, false),
        "containerStatuses": containers(pod, &state, false),
    } })
}

/// The kubelet evicted the pod under memory pressure.
pub(super) fn evicted() -> Value {
    json!({ "status": {
        "phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory. Made to be so",
    } })
}

/// The kubelet rejected the pod.
pub(super) fn rejected(rejection: &Rejection) -> Value {
    json!({ "status": { "phase": "Failed", "reason": rejection.reason, "message": rejection.message } })
}

fn conditions(now: &str, ready: bool) -> Value {
    let status = if ready { "True" } else { "False" };
    let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status, "lastTransitionTime": now });
    json!([
        condition("PodScheduled", "True"),
        condition("Initialized", "True"),
        condition("ContainersReady", status),
        condition("Ready", status),
    ])
}

fn containers(pod: &Value, state: &Value, ready: bool) -> Value {
    let containers = pod["spec"]["containers"].as_array();
    let statuses = containers.into_iter().flatten().map(|container| {
        json!({
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": ready,
            "started": ready,
            "restartCount": 0,
            "state": state,
        })
    });
    statuses.collect()
}

/// ConfigMaps without which the pod's containers can't start.
pub(super) fn needed_config_maps(pod: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let needed = |reference: &Value| {
        let optional = reference["optional"].as_bool().unwrap_or(false);
        reference["name"].as_str().filter(|_| !optional).map(str::to_owned)
    };
    let mut names = Vec::new();
    let spec = &pod["spec"];
    for container in list(&spec["containers"]).iter().chain(&list(&spec["initContainers"])) {
        let variables = list(&container["env"]);
        names.extend(
            variables
                .iter()
                .filter_map(|env| needed(&env["valueFrom"]["configMapKeyRef"])),
        );
        let sources = list(&container["envFrom"]);
        names.extend(sources.iter().filter_map(|from| needed(&from["configMapRef"])));
    }
    names.extend(
        list(&spec["volumes"])
            .iter()
            .filter_map(|volume| needed(&volume["configMap"])),
    );
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_maps_of_env_and_volumes_are_needed_unless_optional() {
        let pod = json!({ "spec": {
            "containers": [{
                "env": [{ "valueFrom": { "configMapKeyRef": { "name": "a" } } }, { "value": "x" }],
                "envFrom": [{ "configMapRef": { "name": "b", "optional": true } }],
            }],
            "volumes": [{ "configMap": { "name": "c" } }, { "emptyDir": {} }],
        } });
        assert_eq!(needed_config_maps(&pod), ["a", "c"]);
    }
}
