//! ConfigMaps: only their names, never their data.

use serde::{Deserialize, Deserializer};

use crate::metadata::Metadata;
use crate::text::{Text, null_as_default};
use crate::{Object, Resource, Scope};

/// The name of a ConfigMap. A cluster has many, so the type keeps nothing else.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    /// The kind as written; `None` in items of a list, which leaves it out.
    pub kind: Option<Text>,
    /// Name, namespace and version.
    #[serde(deserialize_with = "name_only")]
    pub metadata: Metadata,
}

impl Object for ConfigMap {
    const RESOURCE: Resource = Resource::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced);
    const METADATA_ONLY: bool = true;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

fn name_only<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Metadata, D::Error> {
    let whole: Metadata = null_as_default(deserializer)?;
    Ok(Metadata {
        name: whole.name,
        namespace: whole.namespace,
        resource_version: whole.resource_version,
        ..Metadata::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_is_kept() {
        let text = r#"{"metadata":{"name":"c","namespace":"a","resourceVersion":"7","uid":"u","labels":{"x":"y"}},"data":{"k":"v"}}"#;
        let map: ConfigMap = serde_json::from_str(text).unwrap();
        assert_eq!(map.metadata.qualified_name(), "a/c");
        assert!(map.metadata.labels.is_empty() && map.metadata.uid.is_none());
    }
}
