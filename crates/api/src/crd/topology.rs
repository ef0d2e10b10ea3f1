//! The Topology kind: the hierarchy of a cluster's nodes, from the widest level to the narrowest.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// The hierarchy of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, CustomResource, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "kai.scheduler",
    version = "v1alpha1",
    kind = "Topology",
    plural = "topologies",
    singular = "topology",
    derive = "Default",
    derive = "PartialEq",
    doc = "The hierarchy of the cluster's nodes, such as zones and racks."
)]
pub struct TopologySpec {
    /// The levels, the widest first.
    #[schemars(length(min = 1, max = 16), extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = [
        {
            "rule": "self.map(level, level.nodeLabel) == oldSelf.map(level, level.nodeLabel)",
            "message": "node labels of levels can't change; only aliases can"
        },
        {
            "rule": "self.all(level, self.exists_one(other, other.nodeLabel == level.nodeLabel))",
            "message": "two levels have the same node label"
        },
        {
            "rule": "self.all(level, level.nodeLabel != 'kubernetes.io/hostname') || self[size(self) - 1].nodeLabel == 'kubernetes.io/hostname'",
            "message": "kubernetes.io/hostname can only be the last level"
        }
    ]))]
    pub levels: Vec<TopologyLevel>,
}

/// One level.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyLevel {
    /// The node label whose values are the domains of this level.
    #[schemars(length(min = 1, max = 316), regex(pattern = schema::QUALIFIED_NAME_PATTERN))]
    pub node_label: String,
    /// An alternative name of the level.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 316), regex(pattern = schema::QUALIFIED_NAME_PATTERN))]
    pub alias: Option<String>,
}
