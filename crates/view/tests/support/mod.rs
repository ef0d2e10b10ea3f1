//! Clusters for the tests and the benchmark of this crate: objects as the API server has them, applied to a mirror and an engine.
#![allow(dead_code, clippy::unwrap_used)]

use std::sync::Arc;

use kai_api::{Object, ObjectKey};
use kai_engine::Cluster;
use kai_engine::model::{Config, Millis};
use kai_mirror::{ClusterMirror, MirrorSettings};
use kai_view::{ClusterView, Knowledge, Sources};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// 2026-01-01T01:00:00Z.
pub(crate) const NOW: Millis = Millis::seconds(1_767_229_200);

/// Mirror and engine of a cluster.
pub(crate) struct World {
    pub(crate) mirror: ClusterMirror,
    pub(crate) engine: Cluster,
}

impl World {
    /// A cluster with these objects, after one cycle.
    pub(crate) fn new(objects: &[Value]) -> World {
        World::with(&MirrorSettings::default(), objects)
    }

    pub(crate) fn with(settings: &MirrorSettings, objects: &[Value]) -> World {
        let mut mirror = ClusterMirror::new(settings);
        mirror.tick(NOW);
        for object in objects {
            match object["kind"].as_str().unwrap() {
                "Node" => mirror.apply_node(&read::<kai_api::Node>(object).1),
                "Topology" => mirror.apply_topology(&read::<kai_api::Topology>(object).1),
                "Queue" => mirror.apply_queue(&read::<kai_api::Queue>(object).1),
                "PodGroup" => {
                    let (key, group) = read::<kai_api::PodGroup>(object);
                    mirror.apply_pod_group(&key, &group);
                }
                "Pod" => {
                    let (key, pod) = read::<kai_api::Pod>(object);
                    mirror.apply_pod(&key, &pod);
                }
                other => panic!("{other}"),
            }
        }
        mirror.mark_synced();
        let mut engine = Cluster::new();
        for event in mirror.take_outbox().events {
            engine.apply(event);
        }
        engine.cycle(NOW, &Config::default());
        World { mirror, engine }
    }

    pub(crate) fn view(&mut self, knowledge: Knowledge) -> ClusterView {
        ClusterView::new(Sources {
            mirror: &self.mirror,
            engine: &mut self.engine,
            config: &Config::default(),
            now: NOW,
            knowledge,
        })
    }
}

fn read<T: Object + DeserializeOwned>(object: &Value) -> (ObjectKey, Arc<T>) {
    let object: T = serde_json::from_value(object.clone()).unwrap();
    (ObjectKey::of(&object), Arc::new(object))
}

/// A node with NVIDIA GPUs of 80,000 MiB.
pub(crate) fn node(name: &str, gpus: i64, more: Value) -> Value {
    let mut node = json!({
        "kind": "Node",
        "metadata": { "name": name, "uid": name, "labels": {
            "nvidia.com/gpu.product": "NVIDIA-H100", "nvidia.com/gpu.memory": "80000", "nvidia.com/gpu.count": gpus.to_string(),
        } },
        "status": {
            "capacity": { "nvidia.com/gpu": gpus.to_string() },
            "allocatable": { "cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string() },
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    });
    merge(&mut node, &more);
    node
}

/// A queue with a quota of GPUs and unlimited other resources.
pub(crate) fn queue(name: &str, parent: Option<&str>, gpus: i64) -> Value {
    let unlimited = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
    let gpu = json!({ "quota": gpus, "limit": -1, "overQuotaWeight": 1 });
    let mut spec = json!({ "resources": { "gpu": gpu, "cpu": unlimited, "memory": unlimited } });
    if let Some(parent) = parent {
        spec["parentQueue"] = parent.into();
    }
    json!({ "kind": "Queue", "metadata": { "name": name, "uid": name }, "spec": spec })
}

/// The pod group of a Deployment or Job, as the pod grouper makes it.
pub(crate) fn gang(name: &str, owner: &str, queue: &str, min: i64) -> Value {
    json!({
        "kind": "PodGroup",
        "metadata": {
            "name": name, "namespace": "team", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": { "kai.scheduler/top-owner-metadata": format!("name: {name}-owner\nkind: {owner}\n") },
        },
        "spec": { "queue": queue, "minMember": min },
    })
}

/// A pod of a gang: its annotations, its GPU limit (0 for none), and the node where it runs.
pub(crate) fn pod(name: &str, gang: &str, gpus: i64, node: Option<&str>, more: Value) -> Value {
    let mut pod = json!({
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "team", "uid": name, "creationTimestamp": "2026-01-01T00:30:00Z",
            "annotations": { "pod-group-name": gang },
        },
        "spec": { "schedulerName": "kai-scheduler", "containers": [{ "resources": {} }] },
        "status": { "phase": if node.is_some() { "Running" } else { "Pending" } },
    });
    if gpus > 0 {
        pod["spec"]["containers"][0]["resources"]["limits"] = json!({ "nvidia.com/gpu": gpus.to_string() });
    }
    if let Some(node) = node {
        pod["spec"]["nodeName"] = node.into();
    }
    merge(&mut pod, &more);
    pod
}

/// The reservation pod of a GPU group.
pub(crate) fn reservation(gpu_group: &str, node: &str, uuid: &str) -> Value {
    json!({
        "kind": "Pod",
        "metadata": {
            "name": format!("gpu-reservation-{gpu_group}"), "namespace": "kai-resource-reservation", "uid": gpu_group,
            "labels": { "app": "kai-resource-reservation", "runai-gpu-group": gpu_group },
            "annotations": { "run.ai/reserve_for_gpu_index": uuid },
        },
        "spec": { "nodeName": node, "containers": [{ "resources": { "limits": { "nvidia.com/gpu": "1" } } }] },
        "status": { "phase": "Running" },
    })
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) if !from.is_null() => *into = from.clone(),
        _ => {}
    }
}
