//! Simulated nodes as users write them in a YAML file, and their Node objects.

use std::collections::BTreeMap;

use kai_gpu::fake::Settings;
use kai_node::allocator::plan::MigStrategy;
use kai_node::allocator::sharing::{Rename, Sharing};
use kai_node::in_process::{NodeGpus, Setup};
use serde::Deserialize;
use serde_json::{Value, json};

use super::limits::NodeLimits;

/// A file of simulated nodes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct NodesFile {
    /// The nodes.
    pub nodes: Vec<NodeTemplate>,
    /// The delays of pods.
    pub delays: Delays,
}

/// The delays of a pod's start and stop.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Delays {
    /// From the binding to running.
    pub start_seconds: f64,
    /// From the deletion to the removal.
    pub stop_seconds: f64,
}

impl Default for Delays {
    fn default() -> Delays {
        Delays {
            start_seconds: 0.5,
            stop_seconds: 0.5,
        }
    }
}

/// One simulated node, or several equal ones.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NodeTemplate {
    /// The name; with `count` the nodes are `name-0`, `name-1` and so on.
    pub name: String,
    /// The number of nodes; one node without a number if missing.
    pub count: Option<u32>,
    /// GPUs by profile and count, with MIG partitions: `h100:8`, `a100-40:4/1g.5gb*7`. Empty for a node without GPUs.
    #[serde(default)]
    pub gpus: String,
    /// Version of the GPU driver; that of the profile if missing. From 615 on the driver limits the GPU memory of containers.
    #[serde(default)]
    pub driver: Option<String>,
    /// Cores.
    #[serde(default = "default_cpu")]
    pub cpu: String,
    /// Memory.
    #[serde(default = "default_memory")]
    pub memory: String,
    /// The largest number of pods.
    #[serde(default = "default_pods")]
    pub pods: u32,
    /// The MIG strategy of the device plugin: `none`, `single` or `mixed`.
    #[serde(default)]
    pub mig_strategy: Option<String>,
    /// Time slicing: the replicas of each GPU.
    #[serde(default)]
    pub replicas: Option<u32>,
    /// Further labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Taints as in a Node object.
    #[serde(default)]
    pub taints: Vec<Value>,
    /// Whether kai's node agent serves the GPUs. Otherwise another device plugin does: the node has no labels, no condition and no
    /// annotations of the agent. Set by tests, which play the software that takes the agent's place.
    #[serde(skip, default = "served_by_agent")]
    pub agent: bool,
}

fn served_by_agent() -> bool {
    true
}

fn default_cpu() -> String {
    "64".to_owned()
}
fn default_memory() -> String {
    "512Gi".to_owned()
}
fn default_pods() -> u32 {
    110
}

impl NodesFile {
    /// Parses and validates a file.
    pub fn parse(text: &str) -> Result<NodesFile, String> {
        let written: Value = kai_yaml::from_str(text)?;
        super::nodes_file::check_numbers(&written)?;
        let file: NodesFile = kai_yaml::from_str(text)?;
        super::nodes_file::check(&file)?;
        Ok(file)
    }
}

impl NodeTemplate {
    /// A node of this name with these GPUs, and defaults for the rest.
    pub fn new(name: &str, gpus: &str) -> NodeTemplate {
        NodeTemplate {
            name: name.to_owned(),
            count: None,
            gpus: gpus.to_owned(),
            driver: None,
            cpu: default_cpu(),
            memory: default_memory(),
            pods: default_pods(),
            mig_strategy: None,
            replicas: None,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            agent: true,
        }
    }

    /// The names of the nodes.
    pub fn names(&self) -> Vec<String> {
        match self.count {
            None => vec![self.name.clone()],
            Some(count) => (0..count).map(|number| format!("{}-{number}", self.name)).collect(),
        }
    }

    /// The GPUs of the node of this name; `None` for a node without GPUs.
    pub(super) fn gpus(&self, name: &str) -> Result<Option<NodeGpus>, String> {
        let mut setup = Setup::default();
        if let Some(strategy) = &self.mig_strategy {
            setup.policy.mig = match strategy.as_str() {
                "none" => MigStrategy::None,
                "single" => MigStrategy::Single,
                "mixed" => MigStrategy::Mixed,
                other => {
                    let name = &self.name;
                    return Err(format!(
                        "node {name:?}: migStrategy is {other:?}; write none, single or mixed"
                    ));
                }
            };
        }
        if self.gpus.is_empty() {
            return Ok(None);
        }
        let refuse = |problem: String| format!("node {:?}: gpus is {:?}: {problem}", self.name, self.gpus);
        let settings = self.settings(name).map_err(refuse)?;
        if settings.gpus.iter().any(|gpus| gpus.count == 0) {
            return Err(refuse(
                "a count is 0; write 1 or more, or leave gpus out for a node without GPUs".to_owned(),
            ));
        }
        if let Some(replicas) = self.replicas {
            setup.policy.sharing = Sharing::of_gpus(replicas, Rename::Keep)
                .map_err(|invalid| format!("node {:?}: replicas: {}", self.name, invalid.problem()))?;
        }
        let gpus = NodeGpus::fake(&settings, setup).map_err(|error| refuse(format!("{error}")))?;
        Ok(Some(gpus))
    }

    /// The fake GPUs of the node of this name.
    fn settings(&self, name: &str) -> Result<Settings, String> {
        let mut settings: Settings = self.gpus.parse().map_err(|error| format!("{error}"))?;
        settings.driver_version = self.driver.clone().or(settings.driver_version);
        Ok(settings.seeded(name))
    }

    /// The limits of GPU memory on the node of this name; `None` without GPUs and without kai's node agent.
    pub(super) fn limits(&self, name: &str, now_seconds: u64) -> Result<Option<NodeLimits>, String> {
        if self.gpus.is_empty() || !self.agent {
            return Ok(None);
        }
        NodeLimits::new(&self.settings(name)?, now_seconds).map(Some)
    }

    /// The Node object, without status.
    pub(super) fn object(&self, name: &str, gpus: Option<&NodeGpus>) -> Value {
        let mut labels: BTreeMap<String, String> = BTreeMap::new();
        labels.insert("kubernetes.io/hostname".to_owned(), name.to_owned());
        labels.insert("kubernetes.io/os".to_owned(), "linux".to_owned());
        labels.extend(gpus.filter(|_| self.agent).map(NodeGpus::labels).unwrap_or_default());
        labels.extend(self.labels.clone());
        let arch = match labels.get(kai_api::keys::NODE_PLATFORM).map(String::as_str) {
            Some("tegra") => "arm64",
            _ => "amd64",
        };
        labels
            .entry("kubernetes.io/arch".to_owned())
            .or_insert_with(|| arch.to_owned());
        json!({ "metadata": { "name": name, "labels": labels }, "spec": { "taints": self.taints } })
    }

    /// Capacity and allocatable of the Node's status.
    pub(super) fn resources(&self, gpus: Option<&NodeGpus>) -> (Value, Value) {
        let plain = json!({ "cpu": self.cpu, "memory": self.memory, "pods": self.pods.to_string() });
        let (mut capacity, mut allocatable) = (plain.clone(), plain);
        for listed in gpus.map(NodeGpus::resources).unwrap_or_default() {
            let healthy = listed.devices.iter().filter(|device| device.health == "Healthy");
            allocatable[&listed.resource] = healthy.count().to_string().into();
            capacity[&listed.resource] = listed.devices.len().to_string().into();
        }
        (capacity, allocatable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_nodes_becomes_node_objects() {
        let file = NodesFile::parse(
            "nodes:\n- {name: h, count: 2, gpus: 'h100:8'}\n- {name: l, gpus: 'l40s:1', replicas: 4}\n",
        )
        .unwrap();
        assert_eq!(file.nodes[0].names(), ["h-0", "h-1"]);
        let gpus = file.nodes[1].gpus("l").unwrap();
        let (_, allocatable) = file.nodes[1].resources(gpus.as_ref());
        assert_eq!(allocatable["nvidia.com/gpu"], "4");
        let object = file.nodes[1].object("l", gpus.as_ref());
        assert_eq!(object["metadata"]["labels"]["nvidia.com/gpu.count"], "1");
    }

    #[test]
    fn a_wrong_profile_is_named() {
        let error = NodesFile::parse("nodes:\n- {name: x, gpus: 'voodoo:1'}\n").unwrap_err();
        assert!(error.contains("node \"x\"") && error.contains("voodoo"), "{error}");
    }
}
