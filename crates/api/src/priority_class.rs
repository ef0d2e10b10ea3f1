//! Priority classes, and the priority and preemptibility of pod groups.

use std::collections::BTreeMap;

use kai_engine::model::Preemptibility;
use serde::Deserialize;

use crate::keys;
use crate::metadata::Metadata;
use crate::text::{Text, null_as_default};

/// Priority of a gang whose class is unknown, in a cluster without a default class.
const PRIORITY_DEFAULT: i32 = 50;
/// Gangs of this priority or more are non-preemptible by default.
const NON_PREEMPTIBLE_FROM: i32 = 100;

/// The classes that every Kubernetes cluster has, with their values. Files of a cluster seldom have them.
const SYSTEM_CLASSES: [(&str, i32); 2] = [
    ("system-cluster-critical", 2_000_000_000),
    ("system-node-critical", 2_000_001_000),
];

/// A PriorityClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PriorityClass {
    /// The kind as written; `None` in items of a list, which leaves it out.
    pub kind: Option<Text>,
    /// Metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Metadata,
    /// Priority.
    pub value: i32,
    /// Whether it is the cluster's default class.
    pub global_default: Option<bool>,
}

crate::object::object!(
    PriorityClass,
    "scheduling.k8s.io",
    "v1",
    "PriorityClass",
    "priorityclasses",
    Cluster
);

impl PriorityClass {
    /// The classes of an installation.
    pub fn installed() -> impl Iterator<Item = PriorityClass> {
        // An older name of `build-preemptible`, which many test clusters still use.
        let old_name = ("interactive-preemptible", 75);
        keys::PRIORITY_CLASSES
            .into_iter()
            .chain([old_name])
            .map(|(name, value)| PriorityClass {
                metadata: Metadata {
                    name: Some(name.into()),
                    ..Metadata::default()
                },
                value,
                ..PriorityClass::default()
            })
    }
}

/// All priority classes of a cluster. The two of Kubernetes are always there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriorityClasses {
    values: BTreeMap<String, i32>,
    global_default: Option<i32>,
}

impl PriorityClasses {
    /// The classes of an installation.
    pub fn installed() -> PriorityClasses {
        let mut classes = PriorityClasses::default();
        PriorityClass::installed().for_each(|class| classes.insert(&class));
        classes
    }

    /// Adds or replaces a class. Ignores the class of reservation pods, which workloads can't use.
    pub fn insert(&mut self, class: &PriorityClass) {
        if class.metadata.plain_name() == keys::RESERVATION_PRIORITY_CLASS {
            return;
        }
        self.values.insert(class.metadata.plain_name().to_owned(), class.value);
        if class.global_default == Some(true) {
            self.global_default = Some(class.value);
        }
    }

    /// Whether a class of this name exists.
    pub fn contains(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    fn value(&self, name: &str) -> Option<i32> {
        let system = || SYSTEM_CLASSES.iter().find(|(class, _)| *class == name);
        self.values
            .get(name)
            .copied()
            .or_else(|| system().map(|(_, value)| *value))
    }

    /// Whether no class was added.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The priority of a gang that names this class: its value, else the cluster's default, else 50.
    pub fn priority(&self, name: Option<&str>) -> i32 {
        let named = name.and_then(|name| self.value(name));
        named.or(self.global_default).unwrap_or(PRIORITY_DEFAULT)
    }
}

/// The default preemptibility of a gang with this priority.
pub(crate) fn preemptibility_by_priority(priority: i32) -> Preemptibility {
    if priority < NON_PREEMPTIBLE_FROM {
        Preemptibility::Preemptible
    } else {
        Preemptibility::NonPreemptible
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_falls_back_to_the_default_class_and_then_to_50() {
        let mut classes = PriorityClasses::default();
        assert_eq!(classes.priority(Some("gone")), 50);
        let class = |text| serde_json::from_str::<PriorityClass>(text).unwrap();
        classes.insert(&class(r#"{"metadata":{"name":"high"},"value":200}"#));
        classes.insert(&class(
            r#"{"metadata":{"name":"usual"},"value":70,"globalDefault":true}"#,
        ));
        assert_eq!(classes.priority(Some("high")), 200);
        assert_eq!(classes.priority(Some("gone")), 70);
        assert_eq!(classes.priority(None), 70);
        assert_eq!(PriorityClasses::installed().priority(Some("inference")), 125);
    }

    #[test]
    fn the_two_classes_of_kubernetes_are_always_known() {
        let classes = PriorityClasses::default();
        assert!(classes.is_empty() && !classes.contains("system-anything"));
        assert!(classes.contains("system-node-critical"));
        assert_eq!(classes.priority(Some("system-cluster-critical")), 2_000_000_000);
    }
}
