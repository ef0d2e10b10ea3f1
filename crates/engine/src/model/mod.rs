//! What the engine is told about the world: plain values with names as strings.
//!
//! These types carry no Kubernetes types and no behaviour that depends on other objects. The edge (manifest loader,
//! cluster mirror) builds them; [`crate::Cluster::apply`] interns them into dense tables.

mod config;
mod gang;
mod node;
mod pod;
mod quantity;
mod queue;
mod selector;
mod topology;

pub use config::{Action, Config, MinRuntimeResolve, Placement, PlacementStrategy};
pub use gang::{GangKey, GangSpec, SUB_GROUP_DEPTH_MAX, SUB_GROUPS_MAX, SubGroupSpec, TopologyConstraint};
pub use node::{MemoryKind, MigStrategy, NodeCondition, NodeSpec, Taint, TaintEffect};
pub use pod::{
    AFFINITY_TERMS_MAX, Affinity, BindInFlight, Constraints, GpuRequest, HostPort, PodAffinityTerm, PodKind, PodPhase,
    PodSpec, Requests, TaskRank, Toleration, WeightedPodAffinityTerm,
};
pub use quantity::{Gpus, Millis, Quota, ResourceQuota};
pub use queue::{QueueSpec, Usage};
pub use selector::{LabelSelector, Labels, NodeSelectorTerm, Operator, Requirement, WeightedNodeTerm};
pub use topology::{TopologyLevel, TopologySpec};

/// One change of the world. Applying the same events in any order that keeps the last event per object gives the same
/// decisions.
#[derive(Clone, Debug, PartialEq)]
// Events are made and consumed one by one; a box would cost an allocation per pod and save nothing.
#[allow(clippy::large_enum_variant)]
pub enum Event {
    /// A node appeared or changed.
    Node(NodeSpec),
    /// The node of this name is gone.
    NodeGone(String),
    /// A pod appeared or changed.
    Pod(PodSpec),
    /// The pod of this uid is gone.
    PodGone(String),
    /// A gang (pod group) appeared or changed.
    Gang(GangSpec),
    /// The gang is gone; its pods stay known and wait for it.
    GangGone(GangKey),
    /// A queue appeared or changed.
    Queue(QueueSpec),
    /// The queue of this name is gone.
    QueueGone(String),
    /// A topology appeared or changed.
    Topology(TopologySpec),
    /// The topology of this name is gone.
    TopologyGone(String),
    /// Historic usage of a queue as a share of the cluster, for time-based fair share.
    Usage(Usage),
}
