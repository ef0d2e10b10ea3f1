//! Persistent volume claims: phase, volume, storage class, and what volume they ask for.

use kai_engine::model::LabelSelector;
use serde::Deserialize;

use crate::access_modes::{AccessModes, VolumeMode};
use crate::error::FieldError;
use crate::metadata::Metadata;
use crate::persistent_volume::PersistentVolume;
use crate::pod::constraints::RawSelector;
use crate::text::{Text, TextMap, null_as_default};
use crate::{Problem, Quantity, QuantityText, keys};

const REFUSED: &str = "pods that use it are not scheduled";

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PersistentVolumeClaim {
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
    PersistentVolumeClaim,
    "",
    "v1",
    "PersistentVolumeClaim",
    "persistentvolumeclaims",
    Namespaced
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    volume_name: Option<Text>,
    storage_class_name: Option<Text>,
    #[serde(deserialize_with = "null_as_default")]
    access_modes: AccessModes,
    #[serde(deserialize_with = "null_as_default")]
    volume_mode: VolumeMode,
    #[serde(deserialize_with = "null_as_default")]
    resources: Resources,
    selector: Option<Box<RawSelector>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Resources {
    requests: TextMap<QuantityText>,
}

/// The volume that a claim asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VolumeRequest {
    /// The storage class.
    pub class: String,
    /// The smallest size that suffices.
    pub bytes: i64,
    /// How it has to be mountable.
    pub access_modes: AccessModes,
    /// A file system or a device.
    pub volume_mode: VolumeMode,
    /// What labels a volume must have that exists already; `None` = any.
    pub selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: Option<Text>,
}

impl PersistentVolumeClaim {
    /// The volume that the claim is bound to or requests.
    pub fn volume_name(&self) -> Option<&str> {
        self.spec.volume_name.as_deref().filter(|name| !name.is_empty())
    }

    /// The storage class. `Some("")` means a volume without a class; `None` means the cluster's default.
    pub fn storage_class_name(&self) -> Option<&str> {
        self.spec.storage_class_name.as_deref()
    }

    /// The node for which the scheduler asked the provisioner to make a volume.
    pub fn selected_node(&self) -> Option<&str> {
        let node = self.metadata.annotations.text(keys::VOLUME_SELECTED_NODE);
        node.filter(|node| !node.is_empty())
    }

    /// Whether pods on several nodes can use the volume at a time.
    pub fn is_for_many_nodes(&self) -> bool {
        self.spec.access_modes.many_nodes()
    }

    /// Whether one pod alone can use the volume.
    pub fn is_for_one_pod(&self) -> bool {
        self.spec.access_modes.one_pod()
    }

    /// The volume that the claim asks for. A claim without a class never waits for its first consumer.
    pub fn request(&self) -> Result<VolumeRequest, Problem> {
        let object = || format!("PersistentVolumeClaim {}", self.metadata.qualified_name());
        let mut errors = Vec::new();
        let field = "spec.resources.requests.storage";
        let size = match self.spec.resources.requests.get("storage") {
            Some(text) => Quantity::parse(text.as_str()).map_err(|error| FieldError::new(field, error)),
            None => Ok(Quantity::default()),
        };
        let bytes = size.map_err(|error| error.of(object(), REFUSED))?.units_up();
        let selector = self.spec.selector.as_ref();
        let selector = selector.map(|selector| selector.read("spec.selector", &mut errors));
        match errors.into_iter().next() {
            Some(error) => Err(error.of(object(), REFUSED)),
            None => Ok(VolumeRequest {
                class: self.storage_class_name().unwrap_or_default().to_owned(),
                bytes,
                access_modes: self.spec.access_modes,
                volume_mode: self.spec.volume_mode,
                selector,
            }),
        }
    }

    /// The claim once it is bound to the volume.
    #[must_use]
    pub fn bound_to(&self, volume: &PersistentVolume) -> PersistentVolumeClaim {
        let mut claim = self.clone();
        claim.spec.volume_name = volume.metadata.name.clone();
        claim.status.phase = Some("Bound".into());
        claim
    }

    /// Whether the phase is `Bound`.
    pub fn is_bound(&self) -> bool {
        self.status.phase.as_deref() == Some("Bound") && self.volume_name().is_some()
    }

    /// Whether the phase is `Lost`: the volume is gone.
    pub fn is_lost(&self) -> bool {
        self.status.phase.as_deref() == Some("Lost")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_means_both_sides_say_so() {
        let bound = |text: &str| serde_json::from_str::<PersistentVolumeClaim>(text).unwrap().is_bound();
        assert!(bound(r#"{"spec":{"volumeName":"v"},"status":{"phase":"Bound"}}"#));
        assert!(!bound(r#"{"spec":{"volumeName":"v"},"status":{"phase":"Pending"}}"#));
        assert!(!bound(r#"{"status":{"phase":"Bound"}}"#));
    }
}
