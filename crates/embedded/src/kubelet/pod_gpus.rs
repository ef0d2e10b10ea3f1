//! The GPUs that pods use: those that the kubelet allocated, and those in the containers' environment at their start. Labels and
//! annotations do not count.

use kai_api::{ObjectKey, keys};
use serde_json::Value;

use super::limits::LimitedContainer;
use super::{Kubelets, Stage, State};

/// The GPUs of a pod on a simulated node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodGpus {
    /// Namespace and name of the pod.
    pub pod: ObjectKey,
    /// The pod's uid.
    pub uid: String,
    /// The pod's node.
    pub node: String,
    /// UUIDs of the GPUs that the kubelet allocated to this pod alone.
    pub allocated: Vec<String>,
    /// UUIDs of the GPUs that the pod shares: the containers get them from a ConfigMap.
    pub shared: Vec<String>,
    /// Whether its containers run.
    pub runs: bool,
}

/// What is true about GPUs on all nodes at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuFacts {
    /// The GPUs of all pods with GPUs.
    pub pod_gpus: Vec<PodGpus>,
    /// The containers with GPU shares on nodes whose driver can limit GPU memory.
    pub containers: Vec<LimitedContainer>,
    /// Limits in the drivers' records that belong to no container with a GPU share, as sentences.
    pub stray_limits: Vec<String>,
}

impl Kubelets {
    /// What is true about GPUs now.
    pub fn gpu_facts(&self) -> GpuFacts {
        let state = self.lock();
        GpuFacts {
            pod_gpus: state.pod_gpus(),
            containers: state.limited_containers(),
            stray_limits: state.stray_limits(),
        }
    }

    /// The GPUs of all pods with GPUs.
    pub fn pod_gpus(&self) -> Vec<PodGpus> {
        self.lock().pod_gpus()
    }

    /// UUIDs of the GPUs that the kubelet allocated to a pod.
    pub fn gpus_of(&self, namespace: &str, name: &str) -> Vec<String> {
        let pod = ObjectKey::new(namespace, name);
        let found = self.pod_gpus().into_iter().find(|pod_gpus| pod_gpus.pod == pod);
        found.map(|pod_gpus| pod_gpus.allocated).unwrap_or_default()
    }

    /// UUIDs of the GPUs that a pod shares.
    pub fn shared_gpus_of(&self, namespace: &str, name: &str) -> Vec<String> {
        let pod = ObjectKey::new(namespace, name);
        let found = self.pod_gpus().into_iter().find(|pod_gpus| pod_gpus.pod == pod);
        found.map(|pod_gpus| pod_gpus.shared).unwrap_or_default()
    }
}

impl State {
    fn pod_gpus(&self) -> Vec<PodGpus> {
        let mut all: Vec<PodGpus> = self
            .pods
            .iter()
            .filter_map(|(key, record)| {
                let admitted = self.nodes.get(&record.node)?.admitted_pod(&record.uid)?;
                Some(PodGpus {
                    pod: key.clone(),
                    uid: record.uid.clone(),
                    node: record.node.clone(),
                    allocated: admitted.gpu_uuids(),
                    shared: admitted.shared.clone(),
                    runs: matches!(record.stage, Stage::Running { .. }),
                })
            })
            .filter(|pod_gpus| !pod_gpus.allocated.is_empty() || !pod_gpus.shared.is_empty())
            .collect();
        all.sort_by(|a, b| a.pod.cmp(&b.pod));
        all
    }
}

/// The name of the container that shares GPUs: the one whose variable comes from a ConfigMap.
pub(super) fn sharing_container(pod: &Value) -> &str {
    let lists = ["containers", "initContainers"].map(|list| pod["spec"][list].as_array());
    let mut containers = lists.into_iter().flatten().flatten();
    let shares = |container: &&Value| {
        let variables = container["env"].as_array().into_iter().flatten();
        let mut visible = variables.filter(|variable| variable["name"] == keys::ENV_VISIBLE_DEVICES);
        visible.any(|variable| variable["valueFrom"]["configMapKeyRef"]["name"].is_string())
    };
    let found = containers.find(shares);
    found
        .and_then(|container| container["name"].as_str())
        .unwrap_or_default()
}

/// The GPUs that the pod's containers get from this ConfigMap, as UUIDs or as CDI names. Only `env` counts, because it overrides
/// `envFrom`.
pub(super) fn visible_gpus(pod: &Value, name: &str, config_map: &Value) -> Vec<String> {
    let lists = ["containers", "initContainers"].map(|list| pod["spec"][list].as_array());
    let containers = lists.into_iter().flatten().flatten();
    let mut variables = containers.filter_map(|container| container["env"].as_array()).flatten();
    let is_read = |variable: &Value| {
        variable["name"] == keys::ENV_VISIBLE_DEVICES && variable["valueFrom"]["configMapKeyRef"]["name"] == name
    };
    if !variables.any(is_read) {
        return Vec::new();
    }
    let text = config_map["data"][keys::ENV_VISIBLE_DEVICES]
        .as_str()
        .unwrap_or_default();
    let names = text.split(',').filter(|name| !name.is_empty());
    names
        .map(|name| name.rsplit('=').next().unwrap_or(name).to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn gpus_are_known_by_their_uuid() {
        let variable =
            json!({ "name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": { "configMapKeyRef": { "name": "ours" } } });
        let imported = json!([{ "configMapRef": { "name": "theirs" } }]);
        let pod = json!({ "spec": { "containers": [{ "env": [variable], "envFrom": imported }] } });
        let told =
            |name: &str, text: &str| visible_gpus(&pod, name, &json!({ "data": { "NVIDIA_VISIBLE_DEVICES": text } }));
        let both = told("ours", "kai.scheduler/gpu=GPU-1,kai.scheduler/gpu=GPU-2");
        assert_eq!(both, ["GPU-1", "GPU-2"]);
        assert_eq!(told("ours", "GPU-1"), ["GPU-1"]);
        assert!(told("theirs", "all").is_empty());
        assert!(visible_gpus(&pod, "ours", &json!({ "data": {} })).is_empty());
    }
}
