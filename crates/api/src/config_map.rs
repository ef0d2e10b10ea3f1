//! ConfigMaps, of which only the names and owners matter here; their data is never kept.

use serde::Deserialize;

use crate::metadata::Metadata;
use crate::text::{Text, null_as_default};

/// A ConfigMap.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    /// What it says it is; `None` where its place says so.
    pub kind: Option<Text>,
    /// Metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Metadata,
}

crate::object::object!(ConfigMap, "", "v1", "ConfigMap", "configmaps", Namespaced);
