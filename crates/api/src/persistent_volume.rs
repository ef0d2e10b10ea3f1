//! Persistent volumes: their node affinity and their claim.

use kai_engine::model::NodeSelectorTerm;
use serde::Deserialize;

use crate::Problem;
use crate::metadata::Metadata;
use crate::pod::constraints::RawNodeSelector;
use crate::text::{Text, null_as_default};

const REFUSED: &str = "pods that use it are not scheduled";

/// A PersistentVolume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PersistentVolume {
    /// The kind as written; `None` in items of a list, which leaves it out.
    pub kind: Option<Text>,
    /// Metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "null_as_default")]
    spec: Spec,
}

crate::object::object!(
    PersistentVolume,
    "",
    "v1",
    "PersistentVolume",
    "persistentvolumes",
    Cluster
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    storage_class_name: Option<Text>,
    node_affinity: Option<Box<NodeAffinity>>,
    claim_ref: Option<ClaimReference>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeAffinity {
    required: Option<RawNodeSelector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ClaimReference {
    namespace: Option<Text>,
    name: Option<Text>,
}

impl PersistentVolume {
    /// The storage class.
    pub fn storage_class_name(&self) -> Option<&str> {
        self.spec.storage_class_name.as_deref()
    }

    /// The claim that the volume is bound to, as namespace and name.
    pub fn claim(&self) -> Option<(&str, &str)> {
        let claim = self.spec.claim_ref.as_ref()?;
        Some((claim.namespace.as_deref()?, claim.name.as_deref()?))
    }

    /// The required node affinity: a node must match one of the terms; `None`: every node.
    pub fn node_terms(&self) -> Result<Option<Vec<NodeSelectorTerm>>, Problem> {
        let required = self
            .spec
            .node_affinity
            .as_ref()
            .and_then(|affinity| affinity.required.as_ref());
        let Some(required) = required else { return Ok(None) };
        let mut errors = Vec::new();
        let terms = required.terms("spec.nodeAffinity.required", &mut errors);
        match errors.into_iter().next() {
            None => Ok(Some(terms)),
            Some(error) => Err(error.of(format!("PersistentVolume {}", self.metadata.plain_name()), REFUSED)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_volume_can_be_used() {
        let volume = |required: &str| {
            let text = format!(
                r#"{{"metadata":{{"name":"v"}},"spec":{{"claimRef":{{"namespace":"a","name":"c"}},
                    "nodeAffinity":{{"required":{required}}}}}}}"#
            );
            serde_json::from_str::<PersistentVolume>(&text).unwrap()
        };
        let local =
            volume(r#"{"nodeSelectorTerms":[{"matchExpressions":[{"key":"zone","operator":"In","values":["a"]}]}]}"#);
        assert_eq!(local.claim(), Some(("a", "c")));
        assert_eq!(local.node_terms().unwrap().unwrap()[0].labels[0].key, "zone");
        assert_eq!(volume("null").node_terms(), Ok(None));
        let odd = volume(r#"{"nodeSelectorTerms":[{"matchExpressions":[{"key":"zone","operator":"Near"}]}]}"#);
        let problem = odd.node_terms().unwrap_err().to_string();
        assert!(
            problem
                .starts_with("PersistentVolume v: spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0]"),
            "{problem}"
        );
    }
}
