//! Storage classes: provisioner and volume binding mode.

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
    }
}
