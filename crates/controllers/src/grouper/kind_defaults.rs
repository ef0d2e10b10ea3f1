//! The kind defaults: priority class and preemptibility by kind, as an administrator lists them in a ConfigMap (key `types`, a JSON
//! list). Parsing only.

use std::collections::BTreeMap;

use kai_api::crd::Preemptibility;
use serde::Deserialize;

/// The key of the ConfigMap's data.
pub const TYPES_KEY: &str = "types";

/// The parsed kind defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindDefaults {
    /// By `Kind.group`, or the kind alone for the core group.
    by_kind: BTreeMap<String, KindDefault>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct KindDefault {
    type_name: String,
    group: String,
    priority_name: String,
    preemptibility: String,
}

impl KindDefaults {
    /// Parses the JSON list.
    pub fn parse(text: &str) -> Result<KindDefaults, serde_json::Error> {
        let entries: Vec<KindDefault> = serde_json::from_str(text)?;
        let by_kind = entries
            .into_iter()
            .map(|entry| (name(&entry.type_name, &entry.group), entry));
        Ok(KindDefaults {
            by_kind: by_kind.collect(),
        })
    }

    /// The priority class of a kind.
    pub fn priority_class(&self, kind: &str, group: &str) -> Option<&str> {
        let name = &self.entry(kind, group)?.priority_name;
        (!name.is_empty()).then_some(name)
    }

    /// The preemptibility of a kind.
    pub fn preemptibility(&self, kind: &str, group: &str) -> Option<Preemptibility> {
        Preemptibility::parse(&self.entry(kind, group)?.preemptibility.to_lowercase())
    }

    fn entry(&self, kind: &str, group: &str) -> Option<&KindDefault> {
        self.by_kind.get(&name(kind, group)).or_else(|| self.by_kind.get(kind))
    }
}

fn name(kind: &str, group: &str) -> String {
    match group {
        "" => kind.to_owned(),
        group => format!("{kind}.{group}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_s_entry_comes_before_the_kind_s() {
        let text = r#"[{"typeName":"Job","priorityName":"low"},
                       {"typeName":"Deployment","group":"apps","preemptibility":"Semi-Preemptible"},
                       {"typeName":"Job","group":"batch","priorityName":"high","preemptibility":"Non-Preemptible"}]"#;
        let defaults = KindDefaults::parse(text).unwrap();
        assert_eq!(defaults.priority_class("Job", "batch"), Some("high"));
        assert_eq!(
            defaults.preemptibility("Job", "batch"),
            Some(Preemptibility::NonPreemptible)
        );
        assert_eq!(
            defaults.preemptibility("Deployment", "apps"),
            Some(Preemptibility::SemiPreemptible)
        );
        assert_eq!(defaults.priority_class("Job", "other"), Some("low"));
        assert_eq!(defaults.priority_class("Pod", ""), None);
        assert!(KindDefaults::parse("{}").is_err());
    }
}
