//! Scheduling shards. A cluster has few, so the type keeps the whole spec. A shard without a spec has all defaults.

use serde::Deserialize;

use crate::crd::SchedulingShardSpec;
use crate::metadata::Metadata;
use crate::text::{Text, null_as_default};

/// A SchedulingShard.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SchedulingShard {
    /// The kind as written; `None` in items of a list, which leaves it out.
    pub kind: Option<Text>,
    /// Metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Metadata,
    /// The settings of the shard.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: SchedulingShardSpec,
}

crate::object::object!(
    SchedulingShard,
    "kai.scheduler",
    "v1",
    "SchedulingShard",
    "schedulingshards",
    Cluster
);

impl SchedulingShard {
    /// The value of the node-pool label of the shard's objects; `None`: objects without the label.
    pub fn node_pool(&self) -> Option<&str> {
        let value = self.spec.partition_label_value.as_deref();
        value.filter(|value| !value.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_without_a_spec_has_all_defaults() {
        let shard: SchedulingShard = serde_json::from_str(r#"{"metadata":{"name":"default"}}"#).unwrap();
        assert_eq!(shard.node_pool(), None);
        assert_eq!(shard.spec, SchedulingShardSpec::default());
        let shard: SchedulingShard = serde_json::from_str(r#"{"spec":{"partitionLabelValue":"a100"}}"#).unwrap();
        assert_eq!(shard.node_pool(), Some("a100"));
    }
}
