//! Nodes as the engine sees them.

use super::Labels;

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSpec {
    /// Unique name; the tie-break between equally good nodes.
    pub name: String,
    /// All labels: selectors, topologies and affinity read them.
    pub labels: Labels,
    /// Taints.
    pub taints: Vec<Taint>,
    /// Cordoned.
    pub unschedulable: bool,
    /// Conditions that keep pods away; empty = ready.
    pub conditions: Vec<NodeCondition>,
    /// Allocatable milli-cores.
    pub cpu_milli: i64,
    /// Allocatable bytes.
    pub memory_bytes: i64,
    /// Allocatable GPU devices (replicas, where the device plugin shares them by time).
    pub gpus: i64,
    /// Pod slots.
    pub pods: i64,
    /// Every other allocatable resource in its own unit, MIG slices included.
    pub extended: Vec<(String, i64)>,
    /// Physical GPUs by label, where known.
    pub gpu_count_label: Option<i64>,
    /// MiB of memory per GPU by label, normalised; `None` = unknown.
    pub gpu_memory_mib: Option<i64>,
    /// Whether GPU memory is the node's own RAM.
    pub gpu_memory_kind: MemoryKind,
    /// Whether the node hands out MIG slices.
    pub mig_enabled: bool,
    /// How MIG slices are named.
    pub mig_strategy: MigStrategy,
}

/// Where GPU memory lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryKind {
    /// Memory of its own.
    #[default]
    Dedicated,
    /// One pool with the node's RAM (Tegra, GB10): GPU memory is charged to the node's memory too.
    Unified,
}

/// How a node names its MIG slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MigStrategy {
    /// No statement.
    #[default]
    None,
    /// All slices are alike and called GPUs.
    Single,
    /// Slices are resources by profile.
    Mixed,
}

/// A reason why the kubelet of a node can't take pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeCondition {
    /// Ready is not True.
    NotReady,
    /// Memory is short.
    MemoryPressure,
    /// Disk is short.
    DiskPressure,
    /// Process ids are short.
    PidPressure,
    /// The network is not set up.
    NetworkUnavailable,
}

/// A taint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Taint {
    /// Key.
    pub key: String,
    /// Value, possibly empty.
    pub value: String,
    /// Effect.
    pub effect: TaintEffect,
}

/// What a taint does to pods that don't tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaintEffect {
    /// Keeps them away.
    NoSchedule,
    /// Keeps them away and removes them.
    NoExecute,
    /// Is a last resort.
    PreferNoSchedule,
}
