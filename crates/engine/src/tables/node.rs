//! Nodes, their GPU groups and their free resources.

use crate::ids::{GpuGroupId, PodId, ResourceId, Symbol};
use crate::model::{
    ComputeMode, EnforcementTier, FractioningCondition, Gpus, Labels, MemoryKind, MigStrategy, PodKind, QueueResources,
    Taint,
};
use crate::tables::{MIB, NodeResources, Shape, ceil_hundredths};

/// A GPU group: a GPU of a node that pods share, with its memory by the status of the pods that hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpuGroup {
    pub(crate) id: GpuGroupId,
    /// Held by pods that are neither releasing nor pipelined.
    pub(crate) active_mib: i64,
    /// Held by releasing pods.
    pub(crate) releasing_mib: i64,
    /// Reserved for pipelined pods.
    pub(crate) pipelined_mib: i64,
    /// Its pods of any status, pipelined ones included.
    pub(crate) pods: u32,
    /// The part of them whose compute mode is SM sharing.
    pub(crate) sm_sharing_pods: u32,
}

impl GpuGroup {
    /// A group without pods.
    pub(crate) fn empty(id: GpuGroupId) -> GpuGroup {
        GpuGroup {
            id,
            active_mib: 0,
            releasing_mib: 0,
            pipelined_mib: 0,
            pods: 0,
            sm_sharing_pods: 0,
        }
    }

    /// The compute mode of its pods; `None` if they differ, which no decision causes.
    pub(crate) fn compute_mode(&self) -> Option<ComputeMode> {
        match self.sm_sharing_pods {
            0 => Some(ComputeMode::TimeSlicing),
            pods if pods == self.pods => Some(ComputeMode::SmSharing),
            _ => None,
        }
    }

    /// Held by pods of any status, pipelined ones included.
    pub(crate) fn used_mib(&self) -> i64 {
        self.active_mib + self.releasing_mib + self.pipelined_mib
    }

    /// Held by pods that are on the node, releasing ones included.
    pub(crate) fn allocated_mib(&self) -> i64 {
        self.active_mib + self.releasing_mib
    }

    /// Releasing memory that is not reserved for pipelined pods yet.
    pub(crate) fn unreserved_releasing_mib(&self) -> i64 {
        self.releasing_mib - self.pipelined_mib
    }

    /// Whether all its pods are releasing.
    pub(crate) fn is_emptying(&self) -> bool {
        self.releasing_mib > 0 && self.active_mib == 0 && self.pipelined_mib == 0
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.active_mib == 0 && self.releasing_mib == 0 && self.pipelined_mib == 0
    }

    /// Whole GPUs that the group takes from the idle ones of its node: 1 while a pod is on the GPU.
    pub(crate) fn idle_gpus_taken(&self) -> i64 {
        i64::from(self.allocated_mib() > 0)
    }

    /// Whole GPUs that the group adds to the releasing ones of its node: a GPU with releasing pods only is one more, and the first
    /// pipelined pod of a GPU without active pods takes one.
    pub(crate) fn releasing_gpus_given(&self) -> i64 {
        i64::from(self.active_mib == 0 && self.releasing_mib > 0)
            - i64::from(self.active_mib == 0 && self.pipelined_mib > 0)
    }
}

/// An extended resource of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtendedResource {
    pub(crate) resource: ResourceId,
    pub(crate) allocatable: i64,
    pub(crate) idle: i64,
    pub(crate) releasing: i64,
}

/// Which resources count as free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// Idle ones.
    Now,
    /// Idle and releasing ones.
    AfterRelease,
}

/// The resources of a node that pods can still get. Copied as a whole into the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FreeResources {
    pub(crate) idle: NodeResources,
    /// Negative where pods are pipelined to resources that are idle; only the sum with `idle` has a meaning.
    pub(crate) releasing: NodeResources,
    /// GPUs of pods that use whole GPUs, pipelined pods included.
    pub(crate) whole_gpus_used: i64,
    /// The part of them whose pods are releasing.
    pub(crate) whole_gpus_releasing: i64,
}

impl FreeResources {
    /// Idle and releasing resources together: what a pipelined pod can get.
    pub(crate) fn total(&self) -> NodeResources {
        self.idle + self.releasing
    }
}

/// A node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: std::sync::Arc<str>,
    /// The name, interned.
    pub(crate) symbol: Symbol,
    /// False for an unused row.
    pub(crate) present: bool,
    /// Position among all nodes by name.
    pub(crate) rank: u32,
    pub(crate) labels: Labels,
    pub(crate) taints: Vec<Taint>,
    pub(crate) unschedulable: bool,
    /// It has a condition that keeps pods away; leaving is one.
    pub(crate) not_ready: bool,
    /// It is being removed.
    pub(crate) leaving: bool,
    pub(crate) allocatable: NodeResources,
    pub(crate) free: FreeResources,
    pub(crate) extended: Vec<ExtendedResource>,
    /// Sorted by id.
    pub(crate) gpu_groups: Vec<GpuGroup>,
    /// Pods whose resources `free` accounts for.
    pub(crate) pods: Vec<PodId>,
    /// GPUs as the device plugin counts them.
    pub(crate) gpu_units: i64,
    /// Physical GPUs.
    pub(crate) gpu_physical: i64,
    /// MiB per GPU. 100 where unknown, so that a fraction of a GPU is a number of MiB all the same.
    pub(crate) memory_mib: i64,
    pub(crate) memory_known: bool,
    pub(crate) memory_kind: MemoryKind,
    pub(crate) mig_enabled: bool,
    pub(crate) mig_strategy: MigStrategy,
    pub(crate) enforcement: EnforcementTier,
    pub(crate) fractioning: FractioningCondition,
    pub(crate) has_mig: bool,
    /// Pods on the node that request MIG slices by the legacy annotation.
    pub(crate) legacy_mig_pods: u32,
    /// Resources of pods of other schedulers.
    pub(crate) foreign: QueueResources,
}

impl Node {
    /// Whether the device plugin offers each physical GPU several times.
    pub(crate) fn is_time_sliced(&self) -> bool {
        self.gpu_units > self.gpu_physical
    }

    pub(crate) fn gpu_group(&self, id: GpuGroupId) -> Option<&GpuGroup> {
        self.gpu_groups
            .binary_search_by_key(&id, |group| group.id)
            .ok()
            .map(|at| &self.gpu_groups[at])
    }

    /// The resources of the node that a pod of this shape takes, besides GPU groups and extended resources.
    pub(crate) fn charge(&self, shape: &Shape, kind: PodKind) -> NodeResources {
        let mut charge = shape.base;
        if kind == PodKind::Reservation {
            charge.gpus = 0;
        }
        charge.memory_bytes += self.unified_bytes(shape);
        charge.offered_by(&self.allocatable)
    }

    /// Bytes of RAM that the GPU memory of a pod takes on a node with unified memory.
    pub(crate) fn unified_bytes(&self, shape: &Shape) -> i64 {
        match self.memory_kind {
            MemoryKind::Unified if shape.is_shared() && self.memory_known => shape
                .need_mib(self.memory_mib)
                .saturating_mul(shape.devices())
                .saturating_mul(MIB),
            MemoryKind::Unified | MemoryKind::Dedicated => 0,
        }
    }

    /// Idle GPUs, including idle parts of shared GPUs and idle MIG slices.
    pub(crate) fn idle_gpus(&self, mig_gpus: impl Fn(ResourceId) -> Gpus) -> Gpus {
        let shared: Gpus = self
            .gpu_groups
            .iter()
            .filter(|group| group.allocated_mib() > 0)
            .map(|group| Gpus::hundredths(100 - ceil_hundredths(group.allocated_mib(), self.memory_mib)))
            .sum();
        let mig: Gpus = self
            .extended
            .iter()
            .map(|extended| mig_gpus(extended.resource) * extended.idle)
            .sum();
        shared + mig + Gpus::whole(self.free.idle.gpus)
    }

    /// Releasing GPUs, including parts of shared GPUs and MIG slices.
    pub(crate) fn releasing_gpus(&self, mig_gpus: impl Fn(ResourceId) -> Gpus) -> Gpus {
        let shared: Gpus = self
            .gpu_groups
            .iter()
            .filter(|group| group.unreserved_releasing_mib() > 0 && !group.is_emptying())
            .map(|group| Gpus::hundredths(ceil_hundredths(group.unreserved_releasing_mib(), self.memory_mib)))
            .sum();
        let mig: Gpus = self
            .extended
            .iter()
            .map(|extended| mig_gpus(extended.resource) * extended.releasing)
            .sum();
        shared + mig + Gpus::whole(self.free.releasing.gpus)
    }

    /// Idle and releasing GPU memory together.
    pub(crate) fn available_memory_mib(&self) -> i64 {
        let shared: i64 = self
            .gpu_groups
            .iter()
            .map(|group| {
                let idle = if group.allocated_mib() > 0 {
                    self.memory_mib - group.allocated_mib()
                } else {
                    0
                };
                let releasing = if group.is_emptying() {
                    0
                } else {
                    group.unreserved_releasing_mib().max(0)
                };
                idle + releasing
            })
            .sum();
        shared + (self.free.idle.gpus + self.free.releasing.gpus) * self.memory_mib
    }
}
