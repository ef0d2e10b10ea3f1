//! Nodes.

use super::{EnforcementTier, FractioningCondition, Labels};

/// MiB of a GPU whose memory is not known: a fraction of the GPU is then a number of hundredths, and fractions still add up. KAI has the
/// same value.
pub const UNKNOWN_GPU_MEMORY_MIB: i64 = 100;

/// MiB of each GPU that a node's accounts are kept in. No GPU has no memory: zero means that the label is wrong.
pub fn counted_gpu_memory_mib(known: Option<i64>) -> i64 {
    known.filter(|mib| *mib > 0).unwrap_or(UNKNOWN_GPU_MEMORY_MIB)
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSpec {
    /// Unique name; the tie-break between equally good nodes.
    pub name: String,
    /// All labels; selectors, topologies and affinity terms read them.
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
    /// Allocatable GPUs; replicas, where the device plugin time-slices GPUs.
    pub gpus: i64,
    /// Pod slots.
    pub pods: i64,
    /// Every other allocatable resource in its own unit, MIG slices included.
    pub extended: Vec<(String, i64)>,
    /// Number of physical GPUs by label; `None` = unknown.
    pub gpu_count_label: Option<i64>,
    /// MiB of memory per GPU by label; `None` = unknown.
    pub gpu_memory_mib: Option<i64>,
    /// Whether GPU memory is part of the node's RAM.
    pub gpu_memory_kind: MemoryKind,
    /// Whether the node offers MIG slices.
    pub mig_enabled: bool,
    /// How MIG slices are named.
    pub mig_strategy: MigStrategy,
    /// What the node enforces for pods with GPU shares.
    pub enforcement: EnforcementTier,
    /// Whether the node takes pods with GPU shares, by its condition.
    pub fractioning: FractioningCondition,
}

/// The kind of GPU memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryKind {
    /// The GPU has its own memory.
    #[default]
    Dedicated,
    /// The GPU uses the node's RAM (Tegra, GB10): GPU memory is charged to the node's memory too.
    Unified,
}

/// How a node names its MIG slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MigStrategy {
    /// Not labelled.
    #[default]
    None,
    /// All slices have one profile and are offered as GPUs.
    Single,
    /// Each profile is a resource.
    Mixed,
}

/// A node condition that keeps pods away.
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
    /// The node is being removed on purpose: by a cluster autoscaler, or because it was shut down or deleted.
    Leaving,
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
    /// No new pods.
    NoSchedule,
    /// No new pods, and running ones are evicted.
    NoExecute,
    /// New pods only if no other node fits.
    PreferNoSchedule,
}
