//! The configuration of an installation. There is one, so all of its spec is kept.

use serde::Deserialize;

use crate::crd::ConfigSpec;
use crate::keys;
use crate::metadata::Metadata;
use crate::text::{Text, null_as_default};

/// A Config.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    /// What it says it is; `None` where its place says so.
    pub kind: Option<Text>,
    /// Metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Metadata,
    /// What the installation consists of.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: ConfigSpec,
}

crate::object::object!(Config, "kai.scheduler", "v1", "Config", "configs", Cluster);

impl Config {
    /// Whether it is the one that counts.
    pub fn is_the_one(&self) -> bool {
        self.metadata.name.as_deref() == Some(keys::CONFIG_NAME)
    }
}
