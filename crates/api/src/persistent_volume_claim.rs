//! Persistent volume claims: phase, volume and storage class.

use serde::Deserialize;

use crate::metadata::Metadata;
use crate::text::{Text, null_as_default};

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
