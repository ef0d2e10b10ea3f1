//! Pods and their placements.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::affinity::{LabelSetMember, TermsState};
use crate::ids::{GangId, GpuGroupId, NodeId, ShapeId, Symbol};
use crate::model::{Millis, PodKind, TaskRank, UsedVolumes};
use crate::reasons::Refusal;
use crate::report::Status;
use crate::tables::PackedLabels;

/// The GPU groups of a pod: one in nearly all cases.
pub(crate) type GpuGroupIds = SmallVec<[GpuGroupId; 1]>;

/// What the claims of a pod get that had no volume; `None` if there are no such claims.
pub(crate) type ChosenVolumes = Option<Arc<[ChosenVolume]>>;

/// What a claim gets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChosenVolume {
    pub(crate) claim: Arc<str>,
    /// `None` = a new volume for the pod's node.
    pub(crate) volume: Option<Arc<str>>,
    /// The storage that a new volume takes: class and bytes; `None` = nobody counts it.
    pub(crate) storage: Option<(Arc<str>, i64)>,
}

/// What a pod uses of volumes that are bound or will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodVolumes {
    /// Claims that one pod alone can use.
    pub(crate) exclusive_claims: Box<[Arc<str>]>,
    /// Volumes to be attached to the pod's node, by driver.
    pub(crate) attached: Box<[DriverVolumes]>,
}

/// The volumes of a pod that one driver attaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DriverVolumes {
    pub(crate) driver: Arc<str>,
    pub(crate) volumes: Box<[Arc<str>]>,
}

impl PodVolumes {
    pub(crate) fn count(&self) -> usize {
        let attached = self.attached.iter().map(|of_driver| of_driver.volumes.len());
        self.exclusive_claims.len() + attached.sum::<usize>()
    }

    pub(crate) fn to_spec(&self) -> UsedVolumes {
        let names = |names: &[Arc<str>]| names.iter().map(|name| name.to_string()).collect();
        UsedVolumes {
            exclusive_claims: names(&self.exclusive_claims),
            attached: self
                .attached
                .iter()
                .map(|of_driver| (of_driver.driver.to_string(), names(&of_driver.volumes)))
                .collect(),
        }
    }
}

/// Status, node, GPU groups and volumes of a pod, as accounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) status: Status,
    pub(crate) node: Option<NodeId>,
    pub(crate) gpu_groups: GpuGroupIds,
    pub(crate) volumes: ChosenVolumes,
}

impl Placement {
    /// A placement without a node.
    pub(crate) fn none(status: Status) -> Placement {
        Placement {
            status,
            node: None,
            gpu_groups: GpuGroupIds::new(),
            volumes: None,
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
    /// The pod's rank within its gang; `None` = the default, by age.
    pub(crate) rank: Option<Box<TaskRank>>,
    pub(crate) kind: PodKind,
    pub(crate) background: bool,
    pub(crate) gang: Option<GangId>,
    /// Name of the subgroup; it and the gang determine the pod set.
    pub(crate) sub_group: Option<Symbol>,
    /// Index into the gang's pod sets; `None` = the gang has no such subgroup.
    pub(crate) pod_set: Option<u32>,
    pub(crate) shape: ShapeId,
    /// Read by the affinity terms of other pods.
    pub(crate) labels: PackedLabels,
    /// The same for all pods of a namespace with equal labels; `None` while no pod of the cluster has affinity terms.
    pub(crate) label_set: Option<LabelSetMember>,
    pub(crate) terms: TermsState,
    pub(crate) deletion: Option<Millis>,
    pub(crate) nominated: Option<Symbol>,
    pub(crate) refused: Option<Box<Refusal>>,
    /// The names of the shape's claims, in the same order; `None` if there are none.
    pub(crate) claims: Option<Box<[Arc<str>]>>,
    /// `None` = the pod uses no volume that another pod could miss.
    pub(crate) volumes: Option<Arc<PodVolumes>>,
    /// Name of the node of `observed`, also while the engine knows no such node.
    pub(crate) observed_node_name: Option<Symbol>,
    /// The placement that events show, or that a reported decision assumes.
    pub(crate) observed: Placement,
    /// The placement by the decisions of this cycle.
    pub(crate) placement: Placement,
    /// For a pod that was evicted and placed again: the placement that it occupies until it has terminated.
    pub(crate) old_placement: Option<Box<Placement>>,
    /// The status from which this cycle evicted the pod.
    pub(crate) evicted_from: Option<Status>,
}

impl Pod {
    /// Whether a decision can start the pod now.
    pub(crate) fn is_waiting(&self) -> bool {
        self.placement.status == Status::Pending && !self.is_refused()
    }

    /// Whether no decision of this cycle can start the pod, wherever there is room.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.is_some() || self.terms != TermsState::Indexed
    }

    /// The nodes on which the pod's resources are accounted.
    pub(crate) fn nodes_in_use(&self) -> impl Iterator<Item = NodeId> {
        let placements = self.old_placement.iter().map(|old| &**old).chain([&self.placement]);
        placements
            .filter(|placement| placement.status.is_active_used())
            .filter_map(|placement| placement.node)
    }

    /// Whether a simulation can place the pod: it is waiting, or the simulation evicted it.
    pub(crate) fn is_placeable(&self) -> bool {
        self.is_waiting() || (self.placement.status == Status::Releasing && self.evicted_from.is_some())
    }
}
