//! What labels, conditions and topologies say about a node.

use std::sync::Arc;

use kai_api::keys;
use kai_engine::model::Labels;
use kai_mirror::ClusterMirror;
use serde::{Deserialize, Serialize};

use crate::interner::Interner;
use crate::{Text, TextMap};

/// Version of the GPU driver, set by the node agent and by GPU feature discovery.
const DRIVER_LABEL: &str = "nvidia.com/cuda.driver-version.full";
/// Parts of that version, where the whole is missing: prefix and its parts. The second one is of releases before 2024.
const DRIVER_PARTS: [(&str, [&str; 3]); 2] = [
    ("nvidia.com/cuda.driver-version.", ["major", "minor", "revision"]),
    ("nvidia.com/cuda.driver.", ["major", "minor", "rev"]),
];
/// Beginnings of the labels of GPUs, of KAI and of topologies.
const SHOWN_LABELS: [&str; 6] = [
    "nvidia.com/",
    "amd.com/",
    "beta.amd.com/gpu",
    "kai.scheduler/",
    "run.ai/",
    "topology.kubernetes.io/",
];
/// Labels that say what the GPU operator deploys to the node, a dozen on each node: not about its GPUs.
const HIDDEN_LABELS: &str = "nvidia.com/gpu.deploy.";

/// A domain of a topology: a zone, a block, a rack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopologyDomain {
    /// Name of the topology.
    pub topology: Text,
    /// The node label of the level.
    pub level: Text,
    /// The label's value: the domain.
    pub value: Text,
}

/// A condition of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCondition {
    /// Type, such as `Ready` or `GPUSetupHealthy`.
    pub kind: Text,
    /// `True`, `False` or `Unknown`.
    pub status: Text,
    /// Reason in one word.
    pub reason: Option<Text>,
    /// Message for people. Long ones are cut.
    pub message: Option<Text>,
}

impl NodeCondition {
    /// Whether the condition says what the node can do, and is neither good nor bad: a node that limits no GPU memory is as well as one
    /// that does.
    pub fn is_information(&self) -> bool {
        self.kind == keys::NODE_GPU_LIMITS && self.status != "Unknown"
    }

    /// Whether the condition says that something is wrong. Conditions that are bad when true have names such as `DiskPressure`; those
    /// that are good when true end in `Ready`, `Healthy` or `Applied`.
    pub fn is_problem(&self) -> bool {
        let good_when_true = ["Ready", "Healthy", "Applied"]
            .iter()
            .any(|end| self.kind.ends_with(end));
        match self.status.as_str() {
            "True" | "False" if self.is_information() => false,
            "True" => !good_when_true,
            "False" => good_when_true,
            _ => true,
        }
    }
}

/// The version of the GPU driver.
pub(crate) fn driver(labels: &Labels) -> Option<String> {
    if let Some(version) = labels.get(DRIVER_LABEL) {
        return Some(version.clone());
    }
    DRIVER_PARTS.iter().find_map(|(prefix, parts)| {
        let part = |name: &str| labels.get(&format!("{prefix}{name}")).map(String::as_str);
        let known: Vec<&str> = parts.iter().map_while(|name| part(name)).collect();
        (!known.is_empty()).then(|| known.join("."))
    })
}

/// The domains that the node is in. A level without the label ends the topology's path: the node is in no domain below it.
pub(crate) fn domains(labels: &Labels, mirror: &ClusterMirror, texts: &mut Interner) -> Vec<TopologyDomain> {
    let mut domains = Vec::new();
    for topology in mirror.topologies() {
        let levels = topology.levels.iter();
        let levels = levels.map_while(|level| Some((&level.node_label, labels.get(&level.node_label)?)));
        domains.extend(levels.map(|(level, value)| TopologyDomain {
            topology: texts.text(&topology.name),
            level: texts.text(level),
            value: texts.text(value),
        }));
    }
    domains.shrink_to_fit();
    domains
}

/// The labels that a view shows.
pub(crate) fn shown_labels(labels: &Labels, mirror: &ClusterMirror, texts: &mut Interner) -> Arc<TextMap> {
    let is_level = |key: &str| {
        let mut levels = mirror.topologies().flat_map(|topology| &topology.levels);
        levels.any(|level| level.node_label == key)
    };
    let is_shown = |key: &str| {
        let by_name = SHOWN_LABELS.iter().any(|prefix| key.starts_with(prefix)) && !key.starts_with(HIDDEN_LABELS);
        by_name || key == mirror.node_pool_label() || is_level(key)
    };
    let shown = labels.iter().filter(|(key, _)| is_shown(key));
    let shown = shown.map(|(key, value)| (texts.text(key), texts.text(value))).collect();
    texts.labels(shown)
}

/// The conditions of the node, by kind.
pub(crate) fn conditions(node: &str, mirror: &ClusterMirror, texts: &mut Interner) -> Arc<[NodeCondition]> {
    let of_node = mirror.node_conditions(node).iter();
    let mut conditions: Vec<NodeCondition> = of_node
        .map(|condition| NodeCondition {
            kind: texts.text(condition.kind()),
            status: texts.text(condition.status()),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        })
        .collect();
    conditions.sort_by(|a, b| a.kind.cmp(&b.kind));
    texts.conditions(conditions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(of: &[(&str, &str)]) -> Labels {
        of.iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn the_driver_is_in_one_label_or_in_parts() {
        let check = |of: &[(&str, &str)], expect: Option<&str>| assert_eq!(driver(&labels(of)).as_deref(), expect);
        check(&[], None);
        check(&[(DRIVER_LABEL, "570.133.20")], Some("570.133.20"));
        let old = [
            ("nvidia.com/cuda.driver.major", "535"),
            ("nvidia.com/cuda.driver.minor", "104"),
            ("nvidia.com/cuda.driver.rev", "05"),
        ];
        check(&old, Some("535.104.05"));
        check(&old[..2], Some("535.104"));
        check(&old[1..], None);
    }

    #[test]
    fn conditions_are_good_or_bad_by_their_kind() {
        let check = |kind: &str, status: &str| {
            let condition = NodeCondition {
                kind: kind.into(),
                status: status.into(),
                reason: None,
                message: None,
            };
            condition.is_problem()
        };
        assert!(!check("Ready", "True") && check("Ready", "False") && check("Ready", "Unknown"));
        assert!(!check("DiskPressure", "False") && check("DiskPressure", "True"));
        assert!(!check("GPULimits", "True") && !check("GPULimits", "False") && check("GPULimits", "Unknown"));
        assert!(check("GPUSetupHealthy", "False") && !check("GPUsHealthy", "True"));
    }
}
