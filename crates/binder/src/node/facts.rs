//! The facts of a node that decide how its GPUs are reserved, and by which names a container gets them. Pure.

use kai_api::{EnforcementTier, Node, gpu_memory_mib, keys};
use kai_engine::model::NodeCondition;
use serde_json::Value;

use crate::{Choice, ReservationMode, Settings, TegraMode};

/// Facts of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeFacts {
    /// Whether our node agent serves the node.
    pub(crate) agent: bool,
    /// Whether fake-gpu-operator serves the node. It annotates reservation pods, and there is no driver that they could ask.
    pub(crate) fake_operator: bool,
    /// Whether the node is a Tegra device, such as a Jetson.
    pub(crate) tegra: bool,
    /// MiB per GPU, as the scheduler rounds it.
    pub(crate) memory_mib: Option<i64>,
    /// MiB per GPU, as in the node's label.
    pub(crate) memory_label_mib: Option<i64>,
    /// What the node enforces, as in the node's label.
    pub(crate) tier: Option<EnforcementTier>,
    /// Whether the node has more than one GPU.
    pub(crate) several_gpus: bool,
    /// Whether the node is being removed from the cluster.
    pub(crate) leaving: bool,
}

/// By which names a container gets its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// By UUID.
    Uuid,
    /// As CDI devices of the GPU operator's specs.
    OperatorCdi,
    /// As CDI devices of our node agent's spec.
    AgentCdi,
    /// By index: NVIDIA's container toolkit knows the GPU of a Jetson by no other name.
    Index,
}

/// Prefix of the devices in our node agent's CDI spec.
const AGENT_CDI_PREFIX: &str = "kai.scheduler/gpu=";

impl NodeFacts {
    /// From a Node with all its fields.
    pub(crate) fn of(node: &Value) -> NodeFacts {
        let slim: Node = serde_json::from_value(node.clone()).unwrap_or_default();
        let spec = slim.read().map(|read| read.value).ok();
        let label = |key: &str| node["metadata"]["labels"][key].as_str();
        let system = |field: &str| {
            node["status"]["nodeInfo"][field]
                .as_str()
                .unwrap_or_default()
                .to_lowercase()
        };
        // Kernels of L4T have this name. Without our agent a Node shows no other sign of a Jetson.
        let looks_like_tegra = system("architecture") == "arm64" && system("kernelVersion").contains("tegra");
        NodeFacts {
            agent: slim.platform().is_some(),
            fake_operator: slim.platform().is_none() && label(keys::NODE_FAKE_GPU) == Some("true"),
            tegra: slim.platform() == Some(keys::PLATFORM_TEGRA) || looks_like_tegra,
            memory_mib: spec.as_ref().and_then(|spec| spec.gpu_memory_mib),
            memory_label_mib: label(keys::NODE_GPU_MEMORY).and_then(gpu_memory_mib),
            tier: label(keys::GPU_ENFORCEMENT).and_then(EnforcementTier::from_name),
            leaving: spec
                .as_ref()
                .is_some_and(|spec| spec.conditions.contains(&NodeCondition::Leaving)),
            several_gpus: spec.is_some_and(|spec| spec.gpu_count_label.unwrap_or(spec.gpus) > 1),
        }
    }

    /// Whether the node agent, or fake-gpu-operator, annotates reservation pods with their GPU.
    pub(crate) fn agent_annotates(&self, settings: &Settings) -> bool {
        match settings.reservation_mode {
            ReservationMode::Auto => self.agent || self.fake_operator,
            ReservationMode::Agent => true,
            ReservationMode::Nvml => false,
        }
    }

    /// Whether a reservation pod that finds its GPU itself needs the libraries, devices and privileges of a Jetson.
    pub(crate) fn needs_tegra(&self, settings: &Settings) -> bool {
        match settings.tegra {
            TegraMode::Auto => self.tegra,
            TegraMode::Always => true,
            TegraMode::Never => false,
        }
    }

    /// By which names containers get the node's GPUs. `operator_cdi`: whether the GPU operator's device plugin uses CDI.
    pub(crate) fn naming(&self, settings: &Settings, operator_cdi: bool) -> Naming {
        let cdi = match settings.cdi {
            Choice::Auto => self.agent || operator_cdi,
            Choice::True => true,
            Choice::False => false,
        };
        match (cdi, self.agent) {
            (true, true) => Naming::AgentCdi,
            (true, false) => Naming::OperatorCdi,
            (false, _) if self.tegra && !self.several_gpus => Naming::Index,
            (false, _) => Naming::Uuid,
        }
    }
}

/// The GPUs in KAI's annotation of the container: by their names in the GPU operator's specs where it uses CDI, else by UUID.
pub(crate) fn annotated_devices(gpus: &[String], naming: Naming) -> String {
    match naming {
        Naming::OperatorCdi => visible_devices(gpus, naming),
        Naming::Uuid | Naming::AgentCdi | Naming::Index => gpus.join(","),
    }
}

/// The value of `NVIDIA_VISIBLE_DEVICES` for these GPUs.
pub(crate) fn visible_devices(gpus: &[String], naming: Naming) -> String {
    let name = |gpu: &String| match naming {
        Naming::Uuid => gpu.clone(),
        Naming::OperatorCdi => format!("{}{gpu}", keys::CDI_DEVICE_PREFIX),
        // Old names of MIG devices have slashes, which CDI does not allow; the agent's spec has dashes instead.
        Naming::AgentCdi => format!("{AGENT_CDI_PREFIX}{}", gpu.replace('/', "-")),
        Naming::Index => "0".to_owned(),
    };
    gpus.iter().map(name).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::shell::args::tests_settings;

    fn facts(labels: Value, architecture: &str, kernel: &str) -> NodeFacts {
        NodeFacts::of(&json!({
            "metadata": { "name": "n", "labels": labels },
            "status": { "nodeInfo": { "architecture": architecture, "kernelVersion": kernel } },
        }))
    }

    #[test]
    fn nodes_are_told_apart() {
        let server = facts(
            json!({ "nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.count": "8" }),
            "amd64",
            "6.8.0",
        );
        assert_eq!((server.agent, server.tegra, server.several_gpus), (false, false, true));
        assert_eq!((server.memory_mib, server.memory_label_mib), (Some(81500), Some(81559)));
        assert_eq!(server.tier, None);
        let in_bytes = json!({ "nvidia.com/gpu.memory": "85899345920", "kai.scheduler/gpu-enforcement": "driver" });
        let in_bytes = facts(in_bytes, "amd64", "6.8.0");
        assert_eq!(
            (in_bytes.memory_label_mib, in_bytes.tier),
            (Some(81920), Some(EnforcementTier::Driver))
        );
        let jetson = facts(json!({ "kai.scheduler/platform": "tegra" }), "arm64", "6.8.0");
        assert!(jetson.agent && jetson.tegra);
        let bare_jetson = facts(json!({}), "arm64", "5.15.148-tegra");
        assert!(!bare_jetson.agent && bare_jetson.tegra);
        assert!(!facts(json!({}), "amd64", "5.15.148-tegra").tegra);
        let fake = facts(json!({ "run.ai/fake.gpu": "true" }), "amd64", "6.8.0");
        assert!(!fake.agent && fake.fake_operator);
        // Our agent with fake GPUs has the label, too.
        let ours = json!({ "run.ai/fake.gpu": "true", "kai.scheduler/platform": "fake" });
        let ours = facts(ours, "amd64", "6.8.0");
        assert!(ours.agent && !ours.fake_operator);
    }

    #[test]
    fn reservation_pods_are_annotated_by_the_agent_or_by_fake_gpu_operator() {
        let annotated = |facts: &NodeFacts, flags: &[&str]| facts.agent_annotates(&tests_settings(flags));
        let plain = NodeFacts::default();
        let fake = NodeFacts {
            fake_operator: true,
            ..NodeFacts::default()
        };
        assert!(!annotated(&plain, &[]) && annotated(&fake, &[]));
        assert!(annotated(&plain, &["--fake-gpu-nodes"]), "KAI's flag is for all nodes");
        assert!(!annotated(&fake, &["--resource-reservation-mode=nvml"]));
    }

    #[test]
    fn names_of_gpus() {
        let settings = tests_settings(&[]);
        let gpus = ["GPU-1".to_owned(), "GPU-2".to_owned()];
        let check = |facts: &NodeFacts, settings: &Settings, operator_cdi, expect: &str| {
            assert_eq!(
                visible_devices(&gpus, facts.naming(settings, operator_cdi)),
                expect,
                "{facts:?}"
            );
        };
        let plain = NodeFacts::default();
        check(&plain, &settings, false, "GPU-1,GPU-2");
        let cdi = "k8s.device-plugin.nvidia.com/gpu=GPU-1,k8s.device-plugin.nvidia.com/gpu=GPU-2";
        check(&plain, &settings, true, cdi);
        assert_eq!(annotated_devices(&gpus, Naming::OperatorCdi), cdi);
        for naming in [Naming::Uuid, Naming::AgentCdi, Naming::Index] {
            assert_eq!(annotated_devices(&gpus, naming), "GPU-1,GPU-2");
        }
        check(&plain, &tests_settings(&["--cdi-enabled=true"]), false, cdi);
        check(&plain, &tests_settings(&["--cdi-enabled=false"]), true, "GPU-1,GPU-2");
        let agent = NodeFacts {
            agent: true,
            ..NodeFacts::default()
        };
        check(
            &agent,
            &settings,
            false,
            "kai.scheduler/gpu=GPU-1,kai.scheduler/gpu=GPU-2",
        );
        let tegra = NodeFacts {
            tegra: true,
            ..NodeFacts::default()
        };
        assert_eq!(visible_devices(&gpus[..1], tegra.naming(&settings, false)), "0");
        let mixed = NodeFacts {
            several_gpus: true,
            ..tegra
        };
        check(&mixed, &settings, false, "GPU-1,GPU-2");
    }
}
