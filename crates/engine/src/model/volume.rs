//! Volumes that pods still have to get.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::NodeSelectorTerm;

/// A claim of a pod that has no volume yet. It gets one together with the pod's node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct UnboundClaim {
    /// Unique name. Several pods may have one claim; they get one volume.
    pub claim: String,
    /// The [`VolumePoolSpec`] with what the claim can get. No node takes the pod while there is no such pool.
    pub pool: String,
    /// Whether pods on several nodes can use the new volume at a time. Otherwise all pods of the claim go to one node until it exists.
    pub many_nodes: bool,
    /// The storage that a new volume takes; `None` = nobody counts it.
    pub storage: Option<StorageRequest>,
}

/// The storage that a new volume takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StorageRequest {
    /// The class. New volumes of a class share its [`StorageSegment`]s.
    pub class: String,
    /// The size of the volume.
    pub bytes: i64,
}

/// What claims with equal requirements can get: a volume that exists, or a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePoolSpec {
    /// Unique name.
    pub name: String,
    /// Volumes that are free and meet the requirements, the best one first. A volume may be in several pools; one claim gets it.
    pub volumes: Vec<Arc<FreeVolume>>,
    /// Where a new volume can be made.
    pub new_volumes: NewVolumes,
    /// The free storage of the class that has room for one such volume; `None` = nobody counts it. A node that no segment serves gets no
    /// new volume.
    pub storage: Option<Vec<Arc<StorageSegment>>>,
}

/// Free storage for the new volumes of some nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageSegment {
    /// One of the terms must match a node that the segment serves; `None` = it serves every node.
    pub nodes: Option<Vec<NodeSelectorTerm>>,
    /// The free storage.
    pub bytes: i64,
}

/// A volume without a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeVolume {
    /// Unique name.
    pub name: Arc<str>,
    /// One of the terms must match a node that uses the volume; `None` = every node can.
    pub nodes: Option<Vec<NodeSelectorTerm>>,
}

/// Where new volumes can be made for a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewVolumes {
    /// Nowhere: somebody has to create volumes.
    Nowhere,
    /// For a pod on any node.
    Everywhere,
    /// For a pod on a node that one of the terms matches.
    On(Vec<NodeSelectorTerm>),
}

/// What a claim gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeChoice {
    /// The claim.
    pub claim: String,
    /// The volume; `None` = a new one for the pod's node.
    pub volume: Option<String>,
}

/// What a pod uses, or will use, of the volumes that its claims are bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsedVolumes {
    /// Unique names of claims that one pod alone can use.
    pub exclusive_claims: BTreeSet<String>,
    /// Unique names of the volumes that a driver attaches to the pod's node, by driver. Pods of one node may share a volume.
    pub attached: BTreeMap<String, BTreeSet<String>>,
}

/// How many volumes a node takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachLimits {
    /// The node.
    pub node: String,
    /// The most different volumes by driver; drivers that are not named have no limit.
    pub volumes: Vec<(String, u32)>,
}
