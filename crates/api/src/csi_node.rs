//! CSINodes: how many volumes of each driver a node takes. The kubelet writes a node's object, which has the node's name.

use kai_engine::model::AttachLimits;
use serde::Deserialize;

use crate::metadata::Metadata;
use crate::text::{Text, null_as_default};

/// A CSINode.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNode {
    /// The kind as written; `None` in items of a list, which leaves it out.
    pub kind: Option<Text>,
    /// Metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "null_as_default")]
    spec: Spec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(deserialize_with = "null_as_default")]
    drivers: Vec<Driver>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Driver {
    #[serde(deserialize_with = "null_as_default")]
    name: Text,
    #[serde(deserialize_with = "null_as_default")]
    allocatable: Allocatable,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Allocatable {
    count: Option<i64>,
}

crate::object::object!(CsiNode, "storage.k8s.io", "v1", "CSINode", "csinodes", Cluster);

impl CsiNode {
    /// The limits of the drivers that report one.
    pub fn attach_limits(&self) -> AttachLimits {
        let limit = |driver: &Driver| {
            let max = u32::try_from(driver.allocatable.count?.max(0)).unwrap_or(u32::MAX);
            Some((driver.name.to_string(), max))
        };
        AttachLimits {
            node: self.metadata.plain_name().to_owned(),
            volumes: self.spec.drivers.iter().filter_map(limit).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_without_a_count_have_no_limit() {
        let text = r#"{"metadata":{"name":"n"},"spec":{"drivers":[{"name":"a","allocatable":{"count":2}},
                       {"name":"b"},{"name":"c","allocatable":null},{"name":"d","allocatable":{"count":0}}]}}"#;
        let node: CsiNode = serde_json::from_str(text).unwrap();
        let limits = node.attach_limits();
        assert_eq!(limits.node, "n");
        assert_eq!(limits.volumes, [("a".to_owned(), 2), ("d".to_owned(), 0)]);
        let empty: CsiNode = serde_json::from_str(r#"{"spec":{"drivers":null}}"#).unwrap();
        assert_eq!(empty.attach_limits().volumes, []);
    }
}
