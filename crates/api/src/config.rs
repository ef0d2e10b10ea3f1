//! The configuration of an installation. There is one object, so the type keeps its whole spec.

use serde::Deserialize;

use crate::crd::ConfigSpec;
use crate::keys;
use crate::metadata::Metadata;
use crate::text::{Text, null_as_default};

/// A Config.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The kind as written; `None` in items of a list, which leaves it out.
    pub kind: Option<Text>,
    /// Metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Metadata,
    /// The components of the installation.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: ConfigSpec,
}

crate::object::object!(Config, "kai.scheduler", "v1", "Config", "configs", Cluster);

impl Config {
    /// Whether the name is [`keys::CONFIG_NAME`]: other Config objects have no effect.
    pub fn is_the_one(&self) -> bool {
        self.metadata.name.as_deref() == Some(keys::CONFIG_NAME)
    }
}
