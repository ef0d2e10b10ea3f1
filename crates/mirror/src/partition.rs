//! The part of a cluster that one scheduler is for, by a label on nodes, queues and pod groups.

use kai_api::Metadata;

/// A part of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    key: String,
    value: Option<String>,
}

impl Partition {
    /// Objects with this value of the label; with an empty value those without the label.
    pub fn new(key: &str, value: &str) -> Partition {
        Partition {
            key: key.to_owned(),
            value: Some(value.to_owned()).filter(|value| !value.is_empty()),
        }
    }

    /// Whether the object is in it.
    pub fn takes(&self, metadata: &Metadata) -> bool {
        metadata.labels.text(&self.key) == self.value.as_deref()
    }

    /// Its name for people.
    pub fn name(&self) -> &str {
        self.value.as_deref().unwrap_or(kai_api::keys::DEFAULT_SHARD)
    }

    /// The label that objects of this partition carry; `None` if they are told by its absence.
    pub fn label(&self) -> Option<(&str, &str)> {
        self.value.as_deref().map(|value| (self.key.as_str(), value))
    }

    /// The label's key, and its value or nothing.
    pub fn parts(&self) -> (&str, &str) {
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
        assert!(rest.takes(&metadata("{}")));
        assert!(!rest.takes(&metadata(r#"{"pool":"a"}"#)));
        let named = Partition::new("pool", "a");
        assert!(named.takes(&metadata(r#"{"pool":"a"}"#)));
        assert!(!named.takes(&metadata("{}")));
        assert_eq!((rest.name(), named.name()), ("default", "a"));
    }
}
