//! Pods and where they are.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::ids::{GangId, GroupId, LabelSetId, NodeId, ShapeId, Symbol};
use crate::model::{Millis, PodKind, TaskRank};
use crate::report::Status;
use crate::tables::PackedLabels;

/// GPU groups of a pod: one in nearly all cases.
pub(crate) type Groups = SmallVec<[GroupId; 1]>;

/// Where a pod is, as accounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) status: Status,
    pub(crate) node: Option<NodeId>,
    pub(crate) groups: Groups,
}

impl Place {
    pub(crate) fn none(status: Status) -> Place {
        Place {
            status,
            node: None,
            groups: Groups::new(),
        }
    }
}

/// A pod.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) uid: Arc<str>,
    pub(crate) namespace: Symbol,
    pub(crate) name: Box<str>,
    pub(crate) created: Millis,
    /// Where it comes before or after others of its gang, if not by age.
    pub(crate) rank: Option<Box<TaskRank>>,
    pub(crate) kind: PodKind,
    pub(crate) gang: Option<GangId>,
    /// Subgroup by name; the pod set follows from it and the gang.
    pub(crate) sub_group: Option<Symbol>,
    /// Index into the gang's pod sets; `None` = the gang has no such subgroup.
    pub(crate) pod_set: Option<u32>,
    pub(crate) shape: ShapeId,
    /// For the affinity of others.
    pub(crate) labels: PackedLabels,
    /// Shared by the pods of a namespace with the same labels; `None` = no pod has affinity terms yet.
    pub(crate) label_set: Option<LabelSetId>,
    pub(crate) deletion: Option<Millis>,
    pub(crate) nominated: Option<Symbol>,
    pub(crate) refused: Option<Box<str>>,
    /// The node that the world says it is on, known or not.
    pub(crate) world_node: Option<Symbol>,
    /// Where the world (and decisions that were handed out) has it.
    pub(crate) observed: Place,
    /// Where this cycle's decisions have it.
    pub(crate) place: Place,
    /// Evicted and placed anew: what it still occupies until it is gone.
    pub(crate) leaving: Option<Box<Place>>,
    /// Its status before it was evicted in this cycle.
    pub(crate) evicted_from: Option<Status>,
}

impl Pod {
    /// Whether the pod is one of those that a decision can start now.
    pub(crate) fn is_waiting(&self) -> bool {
        self.place.status == Status::Pending && self.refused.is_none()
    }

    /// The nodes on which the pod occupies a place.
    pub(crate) fn nodes_in_use(&self) -> impl Iterator<Item = NodeId> {
        let places = self.leaving.iter().map(|place| &**place).chain([&self.place]);
        places
            .filter(|place| place.status.is_active_used())
            .filter_map(|place| place.node)
    }

    /// Whether it could be placed in a simulation: waiting, or evicted within it.
    pub(crate) fn is_placeable(&self) -> bool {
        self.is_waiting() || (self.place.status == Status::Releasing && self.evicted_from.is_some())
    }
}
