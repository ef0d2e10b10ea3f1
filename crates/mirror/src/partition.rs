//! The part of a cluster that one scheduler serves (KAI: shard, node pool), selected by a label of nodes, queues and pod groups.

use kai_api::Metadata;

/// A label selector for one part of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    key: String,
    value: Option<String>,
}

impl Partition {
    /// Selects objects whose label `key` has this value or, with an empty value, objects without the label.
    pub fn new(key: &str, value: &str) -> Partition {
        Partition {
            key: key.to_owned(),
            value: Some(value.to_owned()).filter(|value| !value.is_empty()),
        }
    }

    /// Whether the object is in the partition.
    pub fn contains(&self, metadata: &Metadata) -> bool {
        metadata.labels.text(&self.key) == self.value.as_deref()
    }

    /// The name in messages: the label's value or `default`.
    pub fn name(&self) -> &str {
        self.value.as_deref().unwrap_or(kai_api::keys::DEFAULT_SHARD)
    }

    /// The label of objects in this partition; `None` if its objects lack the label.
    pub fn label(&self) -> Option<(&str, &str)> {
        self.value.as_deref().map(|value| (self.key.as_str(), value))
    }

    /// The label's key, and its value or an empty text.
    pub fn label_key_and_value(&self) -> (&str, &str) {
        (&self.key, self.value.as_deref().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_means_no_label() {
        let metadata = |labels: &str| -> Metadata {
            serde_json::from_str(&format!(r#"{{"name":"n","labels":{labels}}}"#)).unwrap()
        };
        let rest = Partition::new("pool", "");
        assert!(rest.contains(&metadata("{}")));
        assert!(!rest.contains(&metadata(r#"{"pool":"a"}"#)));
        let named = Partition::new("pool", "a");
        assert!(named.contains(&metadata(r#"{"pool":"a"}"#)));
        assert!(!named.contains(&metadata("{}")));
        assert_eq!((rest.name(), named.name()), ("default", "a"));
    }
}
