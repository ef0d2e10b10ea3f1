//! What a pod with a GPU share requires besides its size, and what nodes offer to such pods.

/// The requirements of a pod with a GPU share. They have no effect on other pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShareTerms {
    /// How the pod uses the multiprocessors of its GPUs. Pods of different modes never share a GPU.
    pub compute_mode: ComputeMode,
    /// Whether the pod requires a node that limits GPU memory.
    pub enforcement: Enforcement,
}

/// How pods that share a GPU use its multiprocessors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ComputeMode {
    /// One after the other.
    #[default]
    TimeSlicing,
    /// Each has a part of them, through a multi-process server.
    SmSharing,
}

/// Whether a pod requires that its node limits the GPU memory of containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Enforcement {
    /// The pod also starts on a node that limits nothing.
    #[default]
    Preferred,
    /// The pod waits for a node that does.
    Required,
}

/// What a node enforces for pods with GPU shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EnforcementTier {
    /// The driver limits the GPU memory of each container.
    Driver,
    /// A multi-process server limits the multiprocessors of each container.
    Mps,
    /// Nothing; containers above their share are reported.
    Watch,
    /// Nothing. Also the tier of a node whose tier is not known.
    #[default]
    None,
}

impl EnforcementTier {
    /// Whether a container can't get more GPU memory than its limit.
    pub fn limits_memory(self) -> bool {
        match self {
            EnforcementTier::Driver => true,
            EnforcementTier::Mps | EnforcementTier::Watch | EnforcementTier::None => false,
        }
    }

    /// Whether pods of this compute mode can run on the node.
    pub fn offers(self, mode: ComputeMode) -> bool {
        match (mode, self) {
            (ComputeMode::TimeSlicing, tier) => !tier.is_for_sm_sharing_alone(),
            (ComputeMode::SmSharing, tier) => tier.is_for_sm_sharing_alone(),
        }
    }

    /// Whether programs reach the node's GPUs through its multi-process server alone. The GPUs have the compute mode EXCLUSIVE_PROCESS, and the
    /// server is the one process: neither whole GPUs nor shares by time-slicing work there.
    pub fn is_for_sm_sharing_alone(self) -> bool {
        match self {
            EnforcementTier::Mps => true,
            EnforcementTier::Driver | EnforcementTier::Watch | EnforcementTier::None => false,
        }
    }
}

/// The node condition `gpu-fractioning.nvidia.com/Ready`, where the mode of GPU sharing requires it of nodes for GPU shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FractioningCondition {
    /// The condition is true, or not required.
    #[default]
    Met,
    /// The condition is false.
    False,
    /// The status of the condition is unknown.
    Unknown,
    /// The node has no such condition.
    NotFound,
}
