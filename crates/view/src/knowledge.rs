//! Which lists of objects a view is based on. A scheduler has all of them; a person may lack the right to some.

use serde::{Deserialize, Serialize};

/// A list of objects that views need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum List {
    /// Nodes.
    Nodes,
    /// Pods of all namespaces.
    Pods,
    /// Queues.
    Queues,
    /// Pod groups of all namespaces.
    PodGroups,
    /// Bind requests of all namespaces.
    BindRequests,
    /// Topologies.
    Topologies,
    /// Priority classes.
    PriorityClasses,
    /// Volumes, their claims and storage classes.
    Volumes,
    /// ConfigMaps.
    ConfigMaps,
}

/// A list that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MissingList {
    /// The list.
    pub list: List,
    /// The namespace that was read instead of all; `None` = nothing was read.
    pub only_namespace: Option<String>,
    /// Why.
    pub message: String,
}

/// The lists that change decisions. Volumes and ConfigMaps only restrict pods that name them; without them these pods' own conditions tell.
const DECISIVE: [List; 7] = [
    List::Nodes,
    List::Pods,
    List::Queues,
    List::PodGroups,
    List::BindRequests,
    List::Topologies,
    List::PriorityClasses,
];

/// Whether every list that changes decisions is there as a whole.
pub(crate) fn is_complete(missing: &[MissingList]) -> bool {
    !missing.iter().any(|missing| DECISIVE.contains(&missing.list))
}

/// Whether the pods of a namespace are all there.
pub(crate) fn has_pods_of(missing: &[MissingList], namespace: &str) -> bool {
    let mut missing = missing.iter().filter(|missing| missing.list == List::Pods);
    missing.all(|missing| missing.only_namespace.as_deref() == Some(namespace))
}

/// Which lists the mirror was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Knowledge {
    /// The lists that it was not given, or of which it was given a part.
    pub missing: Vec<MissingList>,
}

impl Knowledge {
    /// All lists.
    pub fn complete() -> Knowledge {
        Knowledge::default()
    }

    fn lacks(&self, list: List) -> bool {
        self.missing.iter().any(|missing| missing.list == list)
    }

    fn lacks_all_of(&self, list: List) -> bool {
        let missing = self.missing.iter().find(|missing| missing.list == list);
        missing.is_some_and(|missing| missing.only_namespace.is_none())
    }

    /// Whether the engine decides as the scheduler does: it has every list that changes decisions. Without it no cycle may run before the
    /// view: the engine would place pods that wait in the cluster. Volumes and ConfigMaps only restrict pods that name them; without them
    /// these pods' own conditions tell ([`kai_mirror::ObjectList::ByCondition`]).
    pub fn is_complete(&self) -> bool {
        is_complete(&self.missing)
    }

    /// Whether every pod of the cluster is known, and with it what is free.
    pub(crate) fn all_pods(&self) -> bool {
        !self.lacks(List::Pods)
    }

    pub(crate) fn nodes(&self) -> bool {
        !self.lacks(List::Nodes)
    }

    pub(crate) fn queues(&self) -> bool {
        !self.lacks(List::Queues)
    }

    pub(crate) fn gangs(&self) -> bool {
        !self.lacks_all_of(List::PodGroups)
    }

    pub(crate) fn pods(&self) -> bool {
        !self.lacks_all_of(List::Pods)
    }

    /// Whether the numbers of queues are those of the whole cluster.
    pub(crate) fn shares(&self) -> bool {
        self.is_complete()
    }
}
