//! The objects of the canned API server, as large as real ones. `%NAME%` stands for a number.

use serde_json::{Value, json};

use super::{PODS_PER_GROUP, QUEUES};

pub(super) fn queue(at: usize) -> Value {
    let share = json!({ "quota": 0, "limit": -1, "overQuotaWeight": 1 });
    let resources = json!({ "gpu": share, "cpu": share, "memory": share });
    let (name, parent) = match at {
        QUEUES => ("all".to_owned(), None),
        at => (format!("queue-{at}"), Some("all")),
    };
    json!({
        "apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
        "metadata": { "name": name, "uid": format!("queue-{at}"), "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "parentQueue": parent, "resources": resources },
    })
}

/// The PriorityClass of all pod groups.
pub(super) fn priority_class() -> Value {
    json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": { "name": "train", "uid": "train", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z" },
        "value": 50,
    })
}

pub(super) fn group() -> Value {
    // As the pod group controller writes them, so that it has nothing to update.
    let amounts = json!({ "cpu": "400m", "memory": "1Gi", "nvidia.com/gpu": "%GPUS%" });
    json!({
        "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {
            "name": "pg-train-%GROUP%", "namespace": "team-%QUEUE%", "uid": "%UID%", "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1,
            "labels": { "kai.scheduler/queue": "queue-%QUEUE%", "app": "train" },
            "annotations": { "kai.scheduler/last-start-timestamp": "2026-01-01T00:00:05Z" },
            "managedFields": managed_fields(&["metadata", "labels", "annotations", "spec", "queue", "minMember"]),
        },
        "spec": { "minMember": "%MEMBERS%", "queue": "queue-%QUEUE%", "priorityClassName": "train" },
        "status": {
            "phase": "Running", "running": PODS_PER_GROUP, "pending": 0,
            "resourcesStatus": { "allocated": amounts, "requested": amounts },
        },
    })
}

pub(super) fn node() -> Value {
    let image = |at: usize| {
        let digest = format!(
            "registry.example/team/image-{at}@sha256:{}",
            "0123456789abcdef".repeat(4)
        );
        json!({ "names": [digest, format!("registry.example/team/image-{at}:v1.{at}")], "sizeBytes": 1_000_000 * at })
    };
    let amounts =
        json!({ "cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "110", "nvidia.com/gpu": "8" });
    let condition = |kind: &str, status: &str| {
        json!({ "type": kind, "status": status, "reason": "KubeletSays", "message": "kubelet has looked at it",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z" })
    };
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": "node-%NODE%", "uid": "%UID%", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "kubernetes.io/hostname": "node-%NODE%", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "topology.kubernetes.io/zone": "zone-a", "node.kubernetes.io/instance-type": "gpu-8",
                "nvidia.com/gpu.count": "8", "nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
            },
            "managedFields": managed_fields(&["labels", "status", "allocatable", "capacity", "conditions", "images"]),
        },
        "spec": { "podCIDR": "10.0.0.0/24", "providerID": "example://node-%NODE%" },
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [condition("MemoryPressure", "False"), condition("DiskPressure", "False"), condition("Ready", "True")],
            "addresses": [{ "type": "Hostname", "address": "node-%NODE%" }],
            "nodeInfo": { "kubeletVersion": "v1.35.0", "osImage": "Debian", "kernelVersion": "6.1", "architecture": "amd64" },
            "images": (0..30).map(image).collect::<Vec<_>>(),
        },
    })
}

/// `managedFields` as long as those of a pod that a controller created and a kubelet updates.
fn managed_fields(names: &[&str]) -> Value {
    let mut fields = serde_json::Map::new();
    for name in names {
        let inner = json!({ ".": {}, "f:type": {}, "f:status": {}, "f:lastTransitionTime": {}, "f:reason": {} });
        fields.insert(format!("f:{name}"), inner);
    }
    json!([
        { "manager": "controller", "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
          "fieldsType": "FieldsV1", "fieldsV1": fields },
        { "manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:05Z",
          "fieldsType": "FieldsV1", "fieldsV1": fields, "subresource": "status" },
    ])
}

pub(super) fn pod() -> Value {
    let amounts = json!({ "cpu": "100m", "memory": "256Mi", "nvidia.com/gpu": "%GPUS%" });
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:05Z" });
    let conditions = [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ]
    .map(condition);
    let env: Vec<Value> = (0..8)
        .map(|at| json!({ "name": format!("SETTING_{at}"), "value": format!("a value of some length, number {at}") }))
        .collect();
    let token = json!({ "name": "kube-api-access", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount" });
    json!({
        "metadata": {
            "name": "train-%GROUP%-worker-%POD%", "generateName": "train-%GROUP%-worker-", "namespace": "team-%QUEUE%",
            "uid": "%UID%", "resourceVersion": "%VERSION%", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": { "app": "train", "kai.scheduler/queue": "queue-%QUEUE%", "controller-uid": "%UID%", "job-name": "train-%GROUP%" },
            "annotations": { "pod-group-name": "pg-train-%GROUP%", "example.com/checksum": "0123456789abcdef0123456789abcdef" },
            "managedFields": managed_fields(&[
                "metadata", "labels", "annotations", "ownerReferences", "containers", "env", "resources", "volumeMounts",
                "conditions", "containerStatuses", "hostIP", "podIP", "podIPs", "startTime",
            ]),
        },
        "spec": {
            "schedulerName": "kai-scheduler", "nodeName": "node-%NODE%", "restartPolicy": "Never", "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default", "serviceAccount": "default", "securityContext": {}, "priority": 50,
            "terminationGracePeriodSeconds": 30, "enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority",
            "volumes": [{ "name": "kube-api-access", "projected": { "defaultMode": 420, "sources": [
                { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
                { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
            ] } }],
            "containers": [{
                "name": "main", "image": "registry.example/team/train:v1.2.3", "command": ["python", "-m", "train"],
                "args": ["--epochs", "10", "--data", "/data"], "env": env, "imagePullPolicy": "IfNotPresent",
                "resources": { "requests": amounts, "limits": amounts }, "volumeMounts": [token],
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            }],
            "tolerations": [
                { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
                { "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
            ],
        },
        "status": {
            "phase": "%PHASE%", "qosClass": "Burstable", "hostIP": "10.0.0.1", "podIP": "10.1.0.1", "startTime": "2026-01-01T00:00:01Z",
            "podIPs": [{ "ip": "10.1.0.1" }], "hostIPs": [{ "ip": "10.0.0.1" }],
            "conditions": conditions,
            "containerStatuses": [{
                "name": "main", "ready": true, "restartCount": 0, "started": true, "image": "registry.example/team/train:v1.2.3",
                "imageID": format!("registry.example/team/train@sha256:{}", "0123456789abcdef".repeat(4)),
                "containerID": format!("containerd://{}", "fedcba9876543210".repeat(4)),
                "state": { "running": { "startedAt": "2026-01-01T00:00:04Z" } }, "lastState": {},
            }],
        },
    })
}

/// A pod without a place.
pub(super) fn waiting_pod() -> Value {
    let mut pod = pod();
    if let Some(spec) = pod["spec"].as_object_mut() {
        spec.remove("nodeName");
    }
    pod["status"] = json!({ "phase": "Pending", "qosClass": "Burstable", "conditions": [] });
    pod
}
