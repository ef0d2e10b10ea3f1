//! The input of the grouping rules: a pod, its owners, objects read so far, and read access to the cluster. A rule never calls the API:
//! it returns [`GroupingError::NeedsObject`], and the caller reads the object and tries again.

use std::collections::BTreeMap;
use std::sync::Arc;

use kai_api::{Metadata, Pod, TextMap, keys};
use serde_json::Value;

use super::cluster_reader::ClusterReader;
use super::kind_defaults::KindDefaults;
use super::rules::RuleSet;

/// An owner of a pod, by its metadata only.
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
    /// An owner with this metadata, which has neither API version nor kind.
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

    /// The pod as its own top owner, for bare pods.
    pub fn of_pod(pod: &Pod) -> Owner {
        Owner::new("v1", "Pod", &pod.metadata)
    }

    /// The owner from a complete object.
    pub fn of_object(object: &Value) -> Option<Owner> {
        let metadata: Metadata = serde_json::from_value(object.get("metadata")?.clone()).ok()?;
        Some(Owner::new(
            object.get("apiVersion")?.as_str()?,
            object.get("kind")?.as_str()?,
            &metadata,
        ))
    }

    /// API group; empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// API version without the group.
    pub fn version(&self) -> &str {
        self.api_version
            .split_once('/')
            .map_or(&self.api_version, |(_, version)| version)
    }

    /// Whether the owner's annotation turns grouping off.
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

/// A reference to an object in the pod's namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRef {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
}

/// Complete objects that were read so far; `None` for objects that do not exist.
pub type Objects = BTreeMap<ObjectRef, Option<Value>>;

/// Why a rule returned no pod group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupingError {
    /// The rule needs this object. The caller reads it and calls the rule again.
    NeedsObject(ObjectRef),
    /// The workload is invalid.
    Refused(Refusal),
}

/// An invalid field of the pod or of an owner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {field}: {reason}")]
pub struct Refusal {
    /// Kind, namespace and name of the object.
    pub object: String,
    /// Path of the field.
    pub field: String,
    /// The problem and the remedy.
    pub reason: String,
}

/// Options of the grouping rules, from the flags.
#[derive(Clone, Debug)]
pub struct GroupingOptions {
    /// Label that names the queue.
    pub queue_label: String,
    /// Label that names the node pool; empty for none.
    pub node_pool_label: String,
    /// Whether existing pod groups with names of older versions are kept.
    pub search_legacy: bool,
    /// Whether the pods of a Knative revision are a gang.
    pub knative_gang: bool,
    /// Whether the pods of a Deployment have one pod group.
    pub deployment_gang: bool,
    /// Priority classes and preemptibility by kind.
    pub kind_defaults: KindDefaults,
    /// Declared rules.
    pub rules: Arc<RuleSet>,
}

impl Default for GroupingOptions {
    fn default() -> GroupingOptions {
        GroupingOptions {
            queue_label: keys::QUEUE.to_owned(),
            node_pool_label: keys::NODE_POOL.to_owned(),
            search_legacy: true,
            knative_gang: true,
            deployment_gang: true,
            kind_defaults: KindDefaults::default(),
            rules: Arc::new(RuleSet::shipped()),
        }
    }
}

/// Where the pod of a workload comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodOrigin {
    /// It exists, with all labels that its controller gives it.
    #[default]
    Pod,
    /// It is the template of pods in a workload. Labels by which pods find their subgroup may be missing.
    Template,
}

/// The input of a grouping rule.
#[derive(Clone, Copy)]
pub struct Workload<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Where the pod comes from.
    pub pod_origin: PodOrigin,
    /// The pod's owners, the nearest first; none for a bare pod, or if RBAC does not let us read them.
    pub owners: &'a [Owner],
    /// Complete objects that were read so far.
    pub objects: &'a Objects,
    /// Read access to pod groups, pods and priority classes.
    pub cluster: &'a dyn ClusterReader,
    /// Options of the grouping rules.
    pub options: &'a GroupingOptions,
}

impl<'a> Workload<'a> {
    /// The namespace of the pod, its owners and its pod group.
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

    /// A complete object, or the error that asks for it.
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

    /// An invalid field of the pod.
    pub fn refuse_pod(&self, field: String, reason: impl Into<String>) -> GroupingError {
        GroupingError::Refused(Refusal {
            object: format!("Pod {}/{}", self.namespace(), self.pod_name()),
            field,
            reason: reason.into(),
        })
    }

    /// An invalid field of an owner.
    pub fn refuse_owner(&self, owner: &Owner, field: String, reason: impl Into<String>) -> GroupingError {
        GroupingError::Refused(Refusal {
            object: format!("{} {}/{}", owner.kind, self.namespace(), owner.name),
            field,
            reason: reason.into(),
        })
    }
}
