//! Runtime classes: which ones there are. A pod that names one that is not there is refused.

use serde::Deserialize;

use crate::metadata::Metadata;
use crate::text::{Text, null_as_default};

/// A RuntimeClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RuntimeClass {
    /// What it says it is; `None` where its place says so.
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
