//! The input of the engine: events about objects, as plain values with names as strings, and the policy.
//!
//! These types know no Kubernetes types and no other objects. The cluster mirror and the scenario reader build them;
//! [`crate::Cluster::apply`] interns them into dense tables.

mod config;
mod gang;
mod gpu_fraction;
mod gpu_share;
mod node;
mod pod;
mod quantity;
mod queue;
mod resources;
mod selector;
mod topology;
mod volume;

pub use config::{Action, Config, GpuJobOrder, MinRuntimeResolve, PlacementStrategies, PlacementStrategy};
pub use gang::{
    GangKey, GangSpec, Preemptibility, SUB_GROUP_DEPTH_MAX, SUB_GROUPS_MAX, SubGroupSpec, TopologyConstraint,
};
pub use gpu_fraction::GpuFraction;
pub use gpu_share::{ComputeMode, Enforcement, EnforcementTier, FractioningCondition, ShareTerms};
pub use node::{
    MemoryKind, MigStrategy, NodeCondition, NodeSpec, Taint, TaintEffect, UNKNOWN_GPU_MEMORY_MIB,
    counted_gpu_memory_mib,
};
pub use pod::{
    AFFINITY_TERMS_MAX, Affinity, BindInFlight, Constraints, GpuRequest, HostPort, PodAffinityTerm, PodKind, PodPhase,
    PodSpec, Requests, TaskRank, Toleration, WeightedPodAffinityTerm,
};
pub use quantity::{Gpus, Millis, Quota, ResourceQuota};
pub use queue::{QueueSpec, Usage};
pub use resources::{PerResource, QueueResources};
pub use selector::{LabelSelector, Labels, NodeSelectorTerm, Operator, Requirement, WeightedNodeTerm};
pub use topology::{TopologyLevel, TopologySpec};
pub use volume::{
    AttachLimits, FreeVolume, NewVolumes, StorageRequest, StorageSegment, UnboundClaim, UsedVolumes, VolumeChoice,
    VolumePoolSpec,
};

/// A change of one object. The order of events about different objects has no effect on decisions.
#[derive(Clone, Debug, PartialEq)]
// Events are made and consumed one by one, so a box would cost an allocation per pod and save no memory.
#[allow(clippy::large_enum_variant)]
pub enum Event {
    /// A node was added or changed.
    Node(NodeSpec),
    /// The node of this name was removed.
    NodeGone(String),
    /// A pod was added or changed.
    Pod(PodSpec),
    /// The pod of this uid was removed.
    PodGone(String),
    /// A gang (PodGroup) was added or changed.
    Gang(GangSpec),
    /// The gang was removed; the engine keeps its pods.
    GangGone(GangKey),
    /// A queue was added or changed.
    Queue(QueueSpec),
    /// The queue of this name was removed.
    QueueGone(String),
    /// A topology was added or changed.
    Topology(TopologySpec),
    /// The topology of this name was removed.
    TopologyGone(String),
    /// The attach limits of a node changed.
    AttachLimits(AttachLimits),
    /// A pool of volumes was added or changed.
    VolumePool(VolumePoolSpec),
    /// The pool of this name was removed.
    VolumePoolGone(String),
    /// Historic usage of a queue, for time-based fair share.
    Usage(Usage),
}
