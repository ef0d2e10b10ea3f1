//! Namespaces, for their labels.

use serde::Deserialize;

use crate::metadata::Metadata;
use crate::text::{Text, null_as_default};

/// A Namespace.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// What it says it is; `None` where its place says so.
    pub kind: Option<Text>,
    /// Metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Metadata,
}

crate::object::object!(Namespace, "", "v1", "Namespace", "namespaces", Cluster);
