//! Runtime classes: only their names. The API server rejects a pod whose runtime class does not exist.

use serde::Deserialize;

use crate::metadata::Metadata;
use crate::text::{Text, null_as_default};

/// A RuntimeClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RuntimeClass {
    /// The kind as written; `None` in items of a list, which leaves it out.
    pub kind: Option<Text>,
    /// Metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Metadata,
}

crate::object::object!(
    RuntimeClass,
    "node.k8s.io",
    "v1",
    "RuntimeClass",
    "runtimeclasses",
    Cluster
);
