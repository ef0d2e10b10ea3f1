//! Storage classes: who provisions volumes, and whether that waits for a node.

use serde::Deserialize;

use crate::metadata::Metadata;
use crate::text::{Text, null_as_default};

/// Provisioner of classes whose volumes are made by hand.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// Annotation of the class that claims without a class get.
const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

/// A StorageClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StorageClass {
    /// What it says it is; `None` where its place says so.
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

/// When a claim gets its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeBinding {
    /// When it is created.
    Immediate,
    /// When the first pod that uses it has a node.
    WaitForFirstConsumer,
}

impl StorageClass {
    /// Who makes volumes; `None` where they are made by hand.
    pub fn provisioner(&self) -> Option<&str> {
        self.provisioner.as_deref().filter(|name| *name != NO_PROVISIONER)
    }

    /// When a claim gets its volume.
    pub fn volume_binding(&self) -> VolumeBinding {
        match self.volume_binding_mode.as_deref() {
            Some("WaitForFirstConsumer") => VolumeBinding::WaitForFirstConsumer,
            _ => VolumeBinding::Immediate,
        }
    }

    /// Whether claims that name no class get this one.
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
