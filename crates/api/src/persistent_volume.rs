//! Persistent volumes: their size and modes, their node affinity and their claim.

use kai_engine::model::NodeSelectorTerm;
use serde::Deserialize;

use crate::access_modes::{AccessModes, VolumeMode};
use crate::metadata::Metadata;
use crate::persistent_volume_claim::PersistentVolumeClaim;
use crate::pod::constraints::RawNodeSelector;
use crate::text::{Text, TextMap, null_as_default};
use crate::{Problem, Quantity, QuantityText};

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
    #[serde(deserialize_with = "null_as_default")]
    status: Status,
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
    capacity: TextMap<QuantityText>,
    #[serde(deserialize_with = "null_as_default")]
    access_modes: AccessModes,
    #[serde(deserialize_with = "null_as_default")]
    volume_mode: VolumeMode,
    csi: Option<CsiSource>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CsiSource {
    #[serde(deserialize_with = "null_as_default")]
    driver: Text,
    #[serde(deserialize_with = "null_as_default")]
    volume_handle: Text,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: Option<Text>,
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
    uid: Option<Text>,
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

    /// The uid of the claim in [`PersistentVolume::claim`]. A volume that somebody reserves for a claim may name none.
    pub fn claim_uid(&self) -> Option<&str> {
        let uid = self.spec.claim_ref.as_ref()?.uid.as_deref()?;
        Some(uid).filter(|uid| !uid.is_empty())
    }

    /// Whether no claim has or had the volume, and none is promised it.
    pub fn is_free(&self) -> bool {
        self.spec.claim_ref.is_none()
            && self.status.phase.as_deref() == Some("Available")
            && !self.metadata.is_terminating()
    }

    /// Whether a claim is bound to the volume.
    pub fn is_bound(&self) -> bool {
        self.status.phase.as_deref() == Some("Bound")
    }

    /// A volume that a driver made for the claim.
    pub fn made_for(claim: &PersistentVolumeClaim, driver: Option<&str>) -> PersistentVolume {
        let metadata = Metadata {
            name: Some(format!("pvc-{}-{}", claim.metadata.namespace(), claim.metadata.plain_name()).into()),
            ..Metadata::default()
        };
        let spec = Spec {
            storage_class_name: claim.storage_class_name().map(Text::from),
            csi: driver.map(|driver| CsiSource {
                driver: driver.into(),
                volume_handle: metadata.name.clone().unwrap_or_default(),
            }),
            ..Spec::default()
        };
        PersistentVolume {
            metadata,
            spec,
            ..PersistentVolume::default()
        }
    }

    /// The volume once it is bound to the claim.
    #[must_use]
    pub fn bound_to(&self, claim: &PersistentVolumeClaim) -> PersistentVolume {
        let mut volume = self.clone();
        volume.spec.claim_ref = Some(ClaimReference {
            namespace: Some(claim.metadata.namespace().into()),
            name: claim.metadata.name.clone(),
            uid: claim.metadata.uid.clone(),
        });
        volume.status.phase = Some("Bound".into());
        volume
    }

    /// The CSI driver that attaches the volume to nodes, and the driver's id of it.
    pub fn csi(&self) -> Option<(&str, &str)> {
        let csi = self.spec.csi.as_ref()?;
        Some((&csi.driver, &csi.volume_handle))
    }

    /// Its size; 0 if it is missing or can't be read: then no claim gets the volume.
    pub fn bytes(&self) -> i64 {
        let text = self.spec.capacity.get("storage");
        let size = text.and_then(|text| Quantity::parse(text.as_str()).ok());
        size.map_or(0, Quantity::units_down)
    }

    /// How it can be mounted.
    pub fn access_modes(&self) -> AccessModes {
        self.spec.access_modes
    }

    /// Whether it is a file system or a device.
    pub fn volume_mode(&self) -> VolumeMode {
        self.spec.volume_mode
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
