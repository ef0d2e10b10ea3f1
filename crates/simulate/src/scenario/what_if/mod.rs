//! Changes of a cluster that a user asks for in words, such as `add 4 nodes like node-3`.
//!
//! `parse` reads the words. `apply` changes the API objects as a user of the cluster would, before workloads are expanded and the mirror
//! sees them, so that the changed cluster takes the same way as every other.

mod apply;
mod parse;

use std::fmt;
use std::path::PathBuf;

pub(super) use apply::apply;
pub use parse::ParseError;

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// `add COUNT nodes like NODE`
    AddNodes {
        /// The number of new nodes.
        count: u32,
        /// The node whose labels, taints and resources they have.
        like: String,
    },
    /// `remove node NODE`. Its pods are pending again.
    RemoveNode {
        /// The node.
        node: String,
    },
    /// `cordon node NODE`. Its pods stay.
    CordonNode {
        /// The node.
        node: String,
    },
    /// `uncordon node NODE`
    UncordonNode {
        /// The node.
        node: String,
    },
    /// `queue QUEUE FIELD=VALUE`
    SetQueue {
        /// The queue.
        queue: String,
        /// The field.
        field: QueueField,
        /// The value, in the unit of the field; -1 is unlimited.
        value: f64,
    },
    /// `delete pod NAMESPACE/NAME`
    DeletePod(ObjectName),
    /// `delete podgroup NAMESPACE/NAME`, with its pods.
    DeletePodGroup(ObjectName),
    /// `submit FILE`: manifests.
    Submit(PathBuf),
}

/// An object of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// A field of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueField {
    /// `spec.priority`
    Priority,
    /// `spec.resources.RESOURCE.FIELD`
    Share(&'static str, ShareField),
}

/// A field of a queue's share of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareField {
    /// The guaranteed amount.
    Quota,
    /// The upper bound.
    Limit,
    /// The weight in the division of resources above the quotas.
    OverQuotaWeight,
}

impl ShareField {
    const ALL: [ShareField; 3] = [ShareField::Quota, ShareField::Limit, ShareField::OverQuotaWeight];

    fn name(self) -> &'static str {
        match self {
            ShareField::Quota => "quota",
            ShareField::Limit => "limit",
            ShareField::OverQuotaWeight => "overQuotaWeight",
        }
    }
}

impl fmt::Display for QueueField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueField::Priority => f.write_str("priority"),
            QueueField::Share(resource, field) => write!(f, "{resource}.{}", field.name()),
        }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The words that give this change.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::AddNodes { count: 1, like } => write!(f, "add 1 node like {like}"),
            Change::AddNodes { count, like } => write!(f, "add {count} nodes like {like}"),
            Change::RemoveNode { node } => write!(f, "remove node {node}"),
            Change::CordonNode { node } => write!(f, "cordon node {node}"),
            Change::UncordonNode { node } => write!(f, "uncordon node {node}"),
            Change::SetQueue { queue, field, value } => write!(f, "queue {queue} {field}={value}"),
            Change::DeletePod(name) => write!(f, "delete pod {name}"),
            Change::DeletePodGroup(name) => write!(f, "delete podgroup {name}"),
            Change::Submit(file) => write!(f, "submit {}", file.display()),
        }
    }
}
