//! Storage classes: provisioner, volume binding mode and allowed topologies.

use kai_engine::model::{NewVolumes, NodeSelectorTerm, Operator, Requirement};
use serde::Deserialize;

use crate::metadata::Metadata;
use crate::text::{Text, null_as_default};

/// The provisioner of classes without dynamic provisioning.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// Annotation of the default class.
const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

/// A StorageClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StorageClass {
    /// The kind as written; `None` in items of a list, which leaves it out.
    pub kind: Option<Text>,
    /// Metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Metadata,
    provisioner: Option<Text>,
    volume_binding_mode: Option<Text>,
    #[serde(deserialize_with = "null_as_default")]
    allowed_topologies: Vec<TopologyTerm>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TopologyTerm {
    #[serde(deserialize_with = "null_as_default")]
    match_label_expressions: Vec<TopologyRequirement>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct TopologyRequirement {
    #[serde(deserialize_with = "null_as_default")]
    key: Text,
    #[serde(deserialize_with = "null_as_default")]
    values: Vec<Text>,
}

crate::object::object!(
    StorageClass,
    "storage.k8s.io",
    "v1",
    "StorageClass",
    "storageclasses",
    Cluster
);

/// The volume binding mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeBinding {
    /// At the creation of the claim.
    Immediate,
    /// Once the first pod with the claim has a node.
    WaitForFirstConsumer,
}

impl StorageClass {
    /// The provisioner; `None` without dynamic provisioning.
    pub fn provisioner(&self) -> Option<&str> {
        self.provisioner.as_deref().filter(|name| *name != NO_PROVISIONER)
    }

    /// For pods on which nodes its provisioner makes volumes.
    pub fn new_volumes(&self) -> NewVolumes {
        if self.provisioner().is_none() {
            return NewVolumes::Nowhere;
        }
        if self.allowed_topologies.is_empty() {
            return NewVolumes::Everywhere;
        }
        let requirement = |requirement: &TopologyRequirement| Requirement {
            key: requirement.key.to_string(),
            operator: Operator::In,
            values: requirement.values.iter().map(Text::to_string).collect(),
        };
        let term = |term: &TopologyTerm| NodeSelectorTerm {
            labels: term.match_label_expressions.iter().map(requirement).collect(),
            fields: Vec::new(),
        };
        NewVolumes::On(self.allowed_topologies.iter().map(term).collect())
    }

    /// The volume binding mode.
    pub fn volume_binding(&self) -> VolumeBinding {
        match self.volume_binding_mode.as_deref() {
            Some("WaitForFirstConsumer") => VolumeBinding::WaitForFirstConsumer,
            _ => VolumeBinding::Immediate,
        }
    }

    /// Whether it is the default class of claims without a class.
    pub fn is_default(&self) -> bool {
        self.metadata.annotations.text(IS_DEFAULT) == Some("true")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binding_and_provisioner() {
        let class = |text: &str| serde_json::from_str::<StorageClass>(text).unwrap();
        let late = class(r#"{"provisioner":"csi.example","volumeBindingMode":"WaitForFirstConsumer"}"#);
        assert_eq!(late.volume_binding(), VolumeBinding::WaitForFirstConsumer);
        assert_eq!(late.provisioner(), Some("csi.example"));
        let by_hand = class(r#"{"provisioner":"kubernetes.io/no-provisioner"}"#);
        assert_eq!(
            (by_hand.provisioner(), by_hand.volume_binding()),
            (None, VolumeBinding::Immediate)
        );
        assert_eq!(
            (late.new_volumes(), by_hand.new_volumes()),
            (NewVolumes::Everywhere, NewVolumes::Nowhere)
        );
        let zonal = class(
            r#"{"provisioner":"csi.example","allowedTopologies":[{"matchLabelExpressions":[{"key":"zone","values":["a"]}]}]}"#,
        );
        let NewVolumes::On(terms) = zonal.new_volumes() else {
            panic!("{zonal:?}")
        };
        assert_eq!(
            (&*terms[0].labels[0].key, &*terms[0].labels[0].values),
            ("zone", &["a".to_owned()][..])
        );
    }
}
