//! What the groupers look at: a pod, its owners, objects read on the way, and a view of the cluster. Nothing here reads the API:
//! what is missing is asked for with [`GroupingError::NeedsObject`].

use std::collections::BTreeMap;

use kai_api::{Metadata, Pod, TextMap, keys};
use serde_json::Value;

use super::cluster_reader::ClusterReader;
use super::kind_defaults::KindDefaults;

/// One object above a pod, by its metadata alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Unique id.
    pub uid: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

impl Owner {
    /// An owner of this metadata. What it is, its metadata does not say.
    pub fn new(api_version: &str, kind: &str, metadata: &Metadata) -> Owner {
        let map = |map: &TextMap| {
            map.iter()
                .map(|(key, value)| (key.to_owned(), value.to_string()))
                .collect()
        };
        Owner {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            name: metadata.name.as_deref().unwrap_or_default().to_owned(),
            uid: metadata.uid.as_deref().unwrap_or_default().to_owned(),
            labels: map(&metadata.labels),
            annotations: map(&metadata.annotations),
        }
    }

    /// A pod that nobody owns owns itself.
    pub fn of_pod(pod: &Pod) -> Owner {
        Owner::new("v1", "Pod", &pod.metadata)
    }

    /// An object that was read whole.
    pub fn of_object(object: &Value) -> Option<Owner> {
        let metadata: Metadata = serde_json::from_value(object.get("metadata")?.clone()).ok()?;
        Some(Owner::new(
            object.get("apiVersion")?.as_str()?,
            object.get("kind")?.as_str()?,
            &metadata,
        ))
    }

    /// API group; empty for the core.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// API version without the group.
    pub fn version(&self) -> &str {
        self.api_version
            .split_once('/')
            .map_or(&self.api_version, |(_, version)| version)
    }

    /// Whether it keeps the grouper away.
    pub fn opts_out(&self) -> bool {
        self.annotations
            .get(keys::SKIP_POD_GROUPER)
            .is_some_and(|value| value == "true")
    }

    pub(super) fn reference(&self) -> ObjectRef {
        ObjectRef {
            api_version: self.api_version.clone(),
            kind: self.kind.clone(),
            name: self.name.clone(),
        }
    }
}

/// An object beside the pod, in the pod's namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRef {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
}

/// Objects that were read whole so far; `None` for those that are not there.
pub type Objects = BTreeMap<ObjectRef, Option<Value>>;

/// Why there is no plan (yet).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupingError {
    /// This object has to be read first.
    NeedsObject(ObjectRef),
    /// The workload can't be grouped as it is.
    Refused(Refusal),
}

/// What is wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {field}: {reason}")]
pub struct Refusal {
    /// Which object.
    pub object: String,
    /// Which field of it.
    pub field: String,
    /// What is wrong, and what to do.
    pub reason: String,
}

/// How to group, from the settings.
#[derive(Clone, Debug)]
pub struct GroupingOptions {
    /// Label that names the queue.
    pub queue_label: String,
    /// Label that names the node pool; empty for none.
    pub node_pool_label: String,
    /// Whether pod groups named as in older versions are kept.
    pub search_legacy: bool,
    /// Whether the pods of a Knative revision are a gang.
    pub knative_gang: bool,
    /// Priority classes and preemptibility by kind.
    pub kind_defaults: KindDefaults,
}

impl Default for GroupingOptions {
    fn default() -> GroupingOptions {
        GroupingOptions {
            queue_label: keys::QUEUE.to_owned(),
            node_pool_label: keys::NODE_POOL.to_owned(),
            search_legacy: true,
            knative_gang: true,
            kind_defaults: KindDefaults::default(),
        }
    }
}

/// All that a grouper looks at.
#[derive(Clone, Copy)]
pub struct Workload<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its owners, the nearest first; none for a bare pod, or where nobody may be asked.
    pub owners: &'a [Owner],
    /// What was read whole so far.
    pub objects: &'a Objects,
    /// The rest of the cluster.
    pub cluster: &'a dyn ClusterReader,
    /// How to group.
    pub options: &'a GroupingOptions,
}

impl<'a> Workload<'a> {
    /// The namespace of all of it.
    pub fn namespace(&self) -> &'a str {
        self.pod.metadata.namespace()
    }

    /// The pod's name.
    pub fn pod_name(&self) -> &'a str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    /// A label of the pod.
    pub fn label(&self, key: &str) -> Option<&'a str> {
        self.pod.metadata.labels.text(key)
    }

    /// An annotation of the pod.
    pub fn annotation(&self, key: &str) -> Option<&'a str> {
        self.pod.metadata.annotations.text(key)
    }

    /// An object, whole.
    pub fn object(&self, reference: ObjectRef) -> Result<&'a Value, GroupingError> {
        match self.objects.get(&reference) {
            None => Err(GroupingError::NeedsObject(reference)),
            Some(Some(object)) => Ok(object),
            Some(None) => Err(GroupingError::Refused(Refusal {
                object: format!("Pod {}/{}", self.namespace(), self.pod_name()),
                field: "metadata.ownerReferences".to_owned(),
                reason: format!(
                    "there is no {} {} (any more); the pod is grouped when it appears",
                    reference.kind, reference.name
                ),
            })),
        }
    }

    /// The pod itself is wrong.
    pub fn refuse_pod(&self, field: String, reason: impl Into<String>) -> GroupingError {
        GroupingError::Refused(Refusal {
            object: format!("Pod {}/{}", self.namespace(), self.pod_name()),
            field,
            reason: reason.into(),
        })
    }

    /// An owner is wrong.
    pub fn refuse_owner(&self, owner: &Owner, field: String, reason: impl Into<String>) -> GroupingError {
        GroupingError::Refused(Refusal {
            object: format!("{} {}/{}", owner.kind, self.namespace(), owner.name),
            field,
            reason: reason.into(),
        })
    }
}
