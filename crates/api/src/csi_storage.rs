//! What CSI drivers say about their storage: whether they report its capacity, and how much of it is free for which nodes.

use kai_engine::model::{LabelSelector, NodeSelectorTerm};
use serde::Deserialize;

use crate::metadata::Metadata;
use crate::pod::constraints::RawSelector;
use crate::text::{Text, null_as_default};
use crate::{Problem, Quantity, QuantityText};

const REFUSED: &str = "no volumes are made from it";

/// A CSIDriver.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiDriver {
    /// The kind as written; `None` in items of a list, which leaves it out.
    pub kind: Option<Text>,
    /// Metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "null_as_default")]
    spec: DriverSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DriverSpec {
    storage_capacity: Option<bool>,
}

crate::object::object!(CsiDriver, "storage.k8s.io", "v1", "CSIDriver", "csidrivers", Cluster);

impl CsiDriver {
    /// Whether the driver reports the capacity of its storage. Otherwise its storage counts as unlimited.
    pub fn reports_capacity(&self) -> bool {
        self.spec.storage_capacity == Some(true)
    }
}

/// A CSIStorageCapacity: free storage of a class for the nodes of one part of the cluster.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiStorageCapacity {
    /// The kind as written; `None` in items of a list, which leaves it out.
    pub kind: Option<Text>,
    /// Metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "null_as_default")]
    storage_class_name: Text,
    node_topology: Option<Box<RawSelector>>,
    capacity: Option<QuantityText>,
    maximum_volume_size: Option<QuantityText>,
}

crate::object::object!(
    CsiStorageCapacity,
    "storage.k8s.io",
    "v1",
    "CSIStorageCapacity",
    "csistoragecapacities",
    Namespaced
);

/// Free storage for the nodes of one part of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageCapacity {
    /// The nodes that the storage serves; an empty term would match no node, so an empty selector is `None`: every node.
    pub nodes: Option<Vec<NodeSelectorTerm>>,
    /// The free storage.
    pub bytes: i64,
    /// The largest volume that can be made.
    pub volume_bytes_max: i64,
}

impl CsiStorageCapacity {
    /// The storage class whose volumes are made from the storage.
    pub fn storage_class_name(&self) -> &str {
        &self.storage_class_name
    }

    /// The storage; `None` if no node can use it, or if it is not known how much there is.
    pub fn read(&self) -> Result<Option<StorageCapacity>, Problem> {
        let object = || format!("CSIStorageCapacity {}", self.metadata.qualified_name());
        let mut errors = Vec::new();
        let nodes = self.node_topology.as_ref();
        let nodes = nodes.map(|selector| selector.read("nodeTopology", &mut errors));
        if let Some(error) = errors.into_iter().next() {
            return Err(error.of(object(), REFUSED));
        }
        let (Some(LabelSelector { requirements }), Some(capacity)) = (nodes, &self.capacity) else {
            return Ok(None);
        };
        let bytes = |field: &'static str, text: &QuantityText| {
            let read = Quantity::parse(text.as_str()).map_err(|error| crate::error::FieldError::new(field, error));
            read.map(Quantity::units_down)
                .map_err(|error| error.of(object(), REFUSED))
        };
        let capacity = bytes("capacity", capacity)?.max(0);
        let largest = self.maximum_volume_size.as_ref();
        let largest = largest.map(|size| bytes("maximumVolumeSize", size)).transpose()?;
        Ok(Some(StorageCapacity {
            nodes: (!requirements.is_empty()).then(|| {
                vec![NodeSelectorTerm {
                    labels: requirements,
                    fields: Vec::new(),
                }]
            }),
            bytes: capacity,
            volume_bytes_max: largest.unwrap_or(capacity).min(capacity),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capacity(text: &str) -> Result<Option<StorageCapacity>, Problem> {
        serde_json::from_str::<CsiStorageCapacity>(text).unwrap().read()
    }

    #[test]
    fn how_much_storage_there_is_for_which_nodes() {
        let zone = capacity(
            r#"{"metadata":{"name":"c","namespace":"csi"},"storageClassName":"fast","capacity":"10Gi","maximumVolumeSize":"4Gi",
                "nodeTopology":{"matchLabels":{"zone":"a"}}}"#,
        );
        let zone = zone.unwrap().unwrap();
        assert_eq!((zone.bytes, zone.volume_bytes_max), (10 << 30, 4 << 30));
        assert_eq!(zone.nodes.unwrap()[0].labels[0].key, "zone");
        let all = capacity(r#"{"capacity":"1Gi","nodeTopology":{}}"#).unwrap().unwrap();
        assert_eq!((all.nodes, all.volume_bytes_max), (None, 1 << 30));
        assert_eq!(
            capacity(r#"{"capacity":"1Gi"}"#),
            Ok(None),
            "without a selector no node can use it"
        );
        assert_eq!(capacity(r#"{"nodeTopology":{}}"#), Ok(None));
        let odd = capacity(r#"{"metadata":{"name":"c","namespace":"csi"},"capacity":"much","nodeTopology":{}}"#);
        assert!(
            odd.unwrap_err()
                .to_string()
                .starts_with("CSIStorageCapacity csi/c: capacity")
        );
        let driver: CsiDriver = serde_json::from_str(r#"{"spec":{"storageCapacity":true}}"#).unwrap();
        assert!(driver.reports_capacity() && !CsiDriver::default().reports_capacity());
    }
}
