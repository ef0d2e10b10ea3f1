//! The replacements of names: `node-1`, `queue-3`.
//!
//! Names are numbered in their order, with leading zeros. The scheduler breaks ties by name and uid, so that the redacted cluster has to
//! sort as the original one does.

use std::collections::{BTreeMap, BTreeSet};

use kai_api::keys;

/// What a name belongs to. Equal names of one class have one replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameClass {
    /// A namespace.
    Namespace,
    /// A node.
    Node,
    /// A node pool.
    NodePool,
    /// A queue.
    Queue,
    /// A pod group.
    PodGroup,
    /// A subgroup.
    SubGroup,
    /// A pod, or the bind request of its name.
    Pod,
    /// An owner of pods.
    Workload,
    /// A container.
    Container,
    /// A volume of a pod.
    PodVolume,
    /// A priority class.
    PriorityClass,
    /// A topology.
    Topology,
    /// A persistent volume claim.
    VolumeClaim,
    /// A persistent volume.
    Volume,
    /// A storage class.
    StorageClass,
    /// A ConfigMap.
    ConfigMap,
    /// A group of pods that share a GPU.
    GpuGroup,
    /// The UUID of a GPU.
    Gpu,
    /// A scheduler.
    Scheduler,
    /// A uid.
    Uid,
    /// A key of labels or taints, or a level of a topology.
    LabelKey,
    /// A value of labels or taints, and any other text.
    Value,
    /// A resource of nodes and pods.
    Resource,
    /// An environment variable.
    Variable,
    /// A kind.
    Kind,
    /// An API group.
    ApiGroup,
    /// An IP address.
    Address,
}

impl NameClass {
    /// The word that replacements begin with, and the word for people.
    pub fn word(self) -> &'static str {
        match self {
            NameClass::Namespace => "namespace",
            NameClass::Node => "node",
            NameClass::NodePool => "pool",
            NameClass::Queue => "queue",
            NameClass::PodGroup => "podgroup",
            NameClass::SubGroup => "subgroup",
            NameClass::Pod => "pod",
            NameClass::Workload => "workload",
            NameClass::Container => "container",
            NameClass::PodVolume => "mount",
            NameClass::PriorityClass => "priority",
            NameClass::Topology => "topology",
            NameClass::VolumeClaim => "claim",
            NameClass::Volume => "volume",
            NameClass::StorageClass => "storage",
            NameClass::ConfigMap => "config",
            NameClass::GpuGroup => "gpugroup",
            NameClass::Gpu => "gpu",
            NameClass::Scheduler => "scheduler",
            NameClass::Uid => "uid",
            NameClass::LabelKey => "label",
            NameClass::Value => "value",
            NameClass::Resource => "resource",
            NameClass::Variable => "VARIABLE",
            NameClass::Kind => "Kind",
            NameClass::ApiGroup => "apigroup",
            NameClass::Address => "address",
        }
    }

    /// Names that the product defines: they tell nothing about a cluster, and the scheduler knows them.
    fn is_fixed(self, name: &str) -> bool {
        let fixed: &[&str] = match self {
            NameClass::Namespace => &[
                "default",
                "kube-system",
                keys::RESERVATION,
                keys::SYSTEM_NAMESPACE,
                keys::SCALE_ADJUST_NAMESPACE,
            ],
            NameClass::Queue => &[keys::DEFAULT_QUEUE, keys::DEFAULT_PARENT_QUEUE],
            NameClass::SubGroup | NameClass::NodePool => &[keys::DEFAULT_SUB_GROUP],
            NameClass::PriorityClass => &[
                "system-cluster-critical",
                "system-node-critical",
                keys::RESERVATION_PRIORITY_CLASS,
                keys::PRIORITY_TRAIN,
                keys::PRIORITY_BUILD_PREEMPTIBLE,
                keys::PRIORITY_BUILD,
                keys::PRIORITY_INFERENCE,
            ],
            NameClass::ConfigMap => &["kube-root-ca.crt"],
            NameClass::Scheduler => &[keys::SCHEDULER_NAME, "default-scheduler"],
            NameClass::Container => &[keys::RESERVATION_CONTAINER],
            NameClass::Address => &["0.0.0.0", "127.0.0.1", "::", "::1"],
            NameClass::Node
            | NameClass::PodGroup
            | NameClass::Pod
            | NameClass::Workload
            | NameClass::PodVolume
            | NameClass::Topology
            | NameClass::VolumeClaim
            | NameClass::Volume
            | NameClass::StorageClass
            | NameClass::GpuGroup
            | NameClass::Gpu
            | NameClass::Uid
            | NameClass::LabelKey
            | NameClass::Value
            | NameClass::Resource
            | NameClass::Variable
            | NameClass::Kind
            | NameClass::ApiGroup => &[],
        };
        name.is_empty() || fixed.contains(&name)
    }

    /// The replacement with this number.
    fn replacement(self, number: usize, width: usize) -> String {
        let word = self.word();
        match self {
            NameClass::Resource => format!("example.com/{word}-{number:0width$}"),
            NameClass::ApiGroup => format!("{word}-{number:0width$}.example.com"),
            NameClass::Variable => format!("{word}_{number:0width$}"),
            NameClass::Kind => format!("{word}{number:0width$}"),
            // The range for private networks; no cluster has more host addresses in its ports.
            NameClass::Address => format!("10.{}.{}.{}", number >> 16 & 255, number >> 8 & 255, number & 255),
            _ => format!("{word}-{number:0width$}"),
        }
    }
}

/// A part of a name that controllers form from other names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Name(NameClass, String),
    Text(String),
}

/// The names of a cluster, before they are numbered.
#[derive(Debug, Default)]
pub(super) struct FoundNames {
    names: BTreeMap<NameClass, BTreeSet<String>>,
    derived: BTreeMap<(NameClass, String), Vec<Part>>,
}

impl FoundNames {
    pub(super) fn add(&mut self, class: NameClass, name: &str) {
        self.names.entry(class).or_default().insert(name.to_owned());
    }

    /// Adds a name that a controller forms from others.
    pub(super) fn add_derived(&mut self, class: NameClass, name: String, parts: Vec<Part>) {
        for part in &parts {
            if let Part::Name(class, name) = part {
                self.add(*class, name);
            }
        }
        self.derived.insert((class, name), parts);
    }

    /// Numbers the names.
    pub(super) fn numbered(self) -> Replacements {
        let mut replacements = Replacements::default();
        for (class, names) in self.names {
            let is_numbered =
                |name: &&String| !class.is_fixed(name) && !self.derived.contains_key(&(class, (*name).clone()));
            let width = names.iter().filter(is_numbered).count().max(1).to_string().len();
            let fixed: Vec<&String> = names.iter().filter(|name| class.is_fixed(name)).collect();
            for (at, name) in names.iter().filter(is_numbered).enumerate() {
                let above = fixed.partition_point(|fixed| *fixed < name);
                let lower = above.checked_sub(1).and_then(|at| fixed.get(at));
                let replacement = between(
                    class.replacement(at + 1, width),
                    lower.map_or("", |name| name.as_str()),
                    fixed.get(above).map(|name| name.as_str()),
                );
                replacements.names.insert((class, name.clone()), replacement);
            }
        }
        for ((class, name), parts) in self.derived {
            let part = |part: Part| match part {
                Part::Name(class, name) => replacements.of(class, &name),
                Part::Text(text) => text,
            };
            let replacement: String = parts.into_iter().map(part).collect();
            replacements.names.insert((class, name), replacement);
        }
        replacements
    }
}

/// Moves a replacement between the fixed names that the original is between.
fn between(replacement: String, lower: &str, upper: Option<&str>) -> String {
    let fits = |name: &String| name.as_str() > lower && upper.is_none_or(|upper| name.as_str() < upper);
    let candidates = [format!("a-{replacement}"), format!("{lower}-{replacement}")];
    match fits(&replacement) {
        true => replacement,
        false => candidates.into_iter().find(fits).unwrap_or(replacement),
    }
}

/// The replacements of all names of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replacements {
    names: BTreeMap<(NameClass, String), String>,
}

impl Replacements {
    /// The replacement of a name. Fixed names of the product keep theirs, and so does a name that is not in the cluster.
    pub fn of(&self, class: NameClass, name: &str) -> String {
        let replacement = self.names.get(&(class, name.to_owned()));
        replacement.cloned().unwrap_or_else(|| name.to_owned())
    }

    /// Whether the cluster has this name, and it is replaced.
    pub(super) fn contains(&self, class: NameClass, name: &str) -> bool {
        self.names.contains_key(&(class, name.to_owned()))
    }

    /// Class, name and replacement of all replaced names.
    pub fn iter(&self) -> impl Iterator<Item = (NameClass, &str, &str)> {
        let names = self.names.iter();
        names.map(|((class, name), replacement)| (*class, name.as_str(), replacement.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(class: NameClass, names: &[&str]) -> Vec<String> {
        let mut found = FoundNames::default();
        names.iter().for_each(|name| found.add(class, name));
        let replacements = found.numbered();
        names.iter().map(|name| replacements.of(class, name)).collect()
    }

    #[test]
    fn numbers_follow_the_order_of_names() {
        assert_eq!(
            replaced(NameClass::Node, &["b", "a", "c"]),
            ["node-2", "node-1", "node-3"]
        );
        let many: Vec<String> = (0..12).map(|number| format!("x{number:02}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let replaced = replaced(NameClass::Node, &many);
        assert_eq!((replaced[0].as_str(), replaced[11].as_str()), ("node-01", "node-12"));
        assert!(replaced.is_sorted());
    }

    #[test]
    fn names_stay_on_their_side_of_fixed_names() {
        let names = [
            "aaa",
            "default-parent-queue",
            "default-prod",
            "default-queue",
            "research",
        ];
        let replaced = replaced(NameClass::Queue, &names);
        assert_eq!(
            replaced,
            [
                "a-queue-1",
                "default-parent-queue",
                "default-parent-queue-queue-2",
                "default-queue",
                "queue-3"
            ]
        );
        assert!(replaced.is_sorted());
    }

    #[test]
    fn derived_names_are_made_of_the_replacements() {
        let mut found = FoundNames::default();
        let parts = vec![
            Part::Name(NameClass::Workload, "web".to_owned()),
            Part::Text("-0".to_owned()),
        ];
        found.add(NameClass::Pod, "other");
        found.add_derived(NameClass::Pod, "web-0".to_owned(), parts);
        let replacements = found.numbered();
        assert_eq!(replacements.of(NameClass::Pod, "web-0"), "workload-1-0");
        assert_eq!(replacements.of(NameClass::Pod, "other"), "pod-1");
    }
}
