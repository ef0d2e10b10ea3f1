//! Nodes, their shared devices, and what is free on them.

use crate::ids::{GroupId, PodId, ResourceId, Symbol};
use crate::model::{Gpus, Labels, MemoryKind, MigStrategy, PodKind, Taint};
use crate::tables::{GPU, MEMORY, MIB, Shape, Share, Vector, ceil_hundredths};

/// A shared device of a node: MiB by what becomes of those who hold them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    /// Held by pods that stay.
    pub(crate) staying: i64,
    /// Held by pods that are leaving.
    pub(crate) leaving: i64,
    /// Promised to pods that wait for room.
    pub(crate) promised: i64,
}

impl Group {
    /// Held or promised.
    pub(crate) fn used(&self) -> i64 {
        self.staying + self.leaving + self.promised
    }

    /// Held by pods that are there, leaving ones included.
    pub(crate) fn allocated(&self) -> i64 {
        self.staying + self.leaving
    }

    /// Being freed, less what is promised.
    pub(crate) fn releasing(&self) -> i64 {
        self.leaving - self.promised
    }

    /// MiB that one more pod could be promised.
    pub(crate) fn room(&self, memory_mib: i64) -> i64 {
        memory_mib - self.staying - self.promised
    }

    /// Whether `need` MiB fit, counting what is being freed. A device that everyone is leaving counts as whole.
    pub(crate) fn fits(&self, need: i64, memory_mib: i64) -> bool {
        self.room(memory_mib) >= need && !self.is_emptying() && !self.is_unused()
    }

    /// Whether `need` MiB fit at once.
    pub(crate) fn fits_now(&self, need: i64, memory_mib: i64) -> bool {
        self.allocated() > 0 && memory_mib - self.allocated() >= need
    }

    /// Whether all who use it are leaving.
    pub(crate) fn is_emptying(&self) -> bool {
        self.leaving > 0 && self.staying == 0 && self.promised == 0
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.staying == 0 && self.leaving == 0 && self.promised == 0
    }

    /// A device with anyone on it is not idle.
    pub(crate) fn takes_idle(&self) -> i64 {
        i64::from(self.allocated() > 0)
    }

    /// A device that everyone leaves is one more to come; the first to be promised a device on which nobody stays takes
    /// one that comes.
    pub(crate) fn gives_releasing(&self) -> i64 {
        i64::from(self.staying == 0 && self.leaving > 0) - i64::from(self.staying == 0 && self.promised > 0)
    }
}

/// An extended resource of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extended {
    pub(crate) resource: ResourceId,
    pub(crate) allocatable: i64,
    pub(crate) idle: i64,
    pub(crate) releasing: i64,
}

/// Which room counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// What is idle.
    Now,
    /// What is idle or being freed.
    AfterRelease,
}

/// The numbers of a node that decisions change most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Free {
    pub(crate) idle: Vector,
    /// May be negative where something waits for room that is idle now; only the sum with `idle` has a meaning.
    pub(crate) releasing: Vector,
    /// GPUs taken whole, promised ones included.
    pub(crate) used_gpus: i64,
    /// The part of them whose pods are leaving.
    pub(crate) leaving_gpus: i64,
}

impl Free {
    /// Idle and releasing together: what something that can wait may use.
    pub(crate) fn total(&self) -> Vector {
        std::array::from_fn(|at| self.idle[at] + self.releasing[at])
    }
}

/// A node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: std::sync::Arc<str>,
    /// The name, interned.
    pub(crate) symbol: Symbol,
    /// False for a row that is free for another node.
    pub(crate) present: bool,
    /// Position among all nodes by name.
    pub(crate) rank: u32,
    pub(crate) labels: Labels,
    pub(crate) taints: Vec<Taint>,
    pub(crate) unschedulable: bool,
    pub(crate) not_ready: bool,
    pub(crate) allocatable: Vector,
    pub(crate) free: Free,
    pub(crate) extended: Vec<Extended>,
    /// Shared devices in use, sorted by id.
    pub(crate) groups: Vec<Group>,
    /// Pods that the accounting of this node contains.
    pub(crate) pods: Vec<PodId>,
    /// Devices as the device plugin counts them.
    pub(crate) gpu_units: i64,
    /// Devices as silicon.
    pub(crate) gpu_physical: i64,
    /// MiB per device; 100 where unknown, which makes fractions work all the same.
    pub(crate) memory_mib: i64,
    pub(crate) memory_known: bool,
    pub(crate) memory_kind: MemoryKind,
    pub(crate) mig_enabled: bool,
    pub(crate) mig_strategy: MigStrategy,
    pub(crate) has_mig: bool,
    /// MIG pods of the old kind that run here.
    pub(crate) legacy_mig_pods: u32,
    /// What other schedulers' pods take here.
    pub(crate) foreign: Share,
}

impl Node {
    /// Whether several device units are the same silicon.
    pub(crate) fn is_time_sliced(&self) -> bool {
        self.gpu_units > self.gpu_physical
    }

    /// Shared devices in use.
    pub(crate) fn groups_in_use(&self) -> i64 {
        self.groups.len() as i64
    }

    pub(crate) fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups
            .binary_search_by_key(&id, |group| group.id)
            .ok()
            .map(|at| &self.groups[at])
    }

    /// How many of `free` whole units can be handed out. On time-sliced silicon every shared device takes all units of
    /// one physical GPU with it.
    pub(crate) fn whole_units(&self, free: i64, when: When) -> i64 {
        if !self.is_time_sliced() {
            return free;
        }
        let (shared, whole) = self.occupied(when);
        free.min(self.gpu_units - shared * self.units_per_device() - whole)
    }

    /// How many of `free` devices can still become shared.
    pub(crate) fn openable_devices(&self, free: i64, when: When) -> i64 {
        if !self.is_time_sliced() {
            return free;
        }
        let (shared, whole) = self.occupied(when);
        let per_device = self.units_per_device();
        free.min(self.gpu_physical - shared - (whole + per_device - 1) / per_device)
    }

    fn units_per_device(&self) -> i64 {
        (self.gpu_units / self.gpu_physical.max(1)).max(1)
    }

    /// Shared devices and whole units that are taken.
    fn occupied(&self, when: When) -> (i64, i64) {
        match when {
            When::Now => (self.groups_in_use(), self.free.used_gpus),
            When::AfterRelease => {
                let staying = self.groups.iter().filter(|group| !group.is_emptying());
                (staying.count() as i64, self.free.used_gpus - self.free.leaving_gpus)
            }
        }
    }

    /// What a pod of this shape takes of the node besides GPU groups and extended resources.
    pub(crate) fn charge(&self, shape: &Shape, kind: PodKind) -> Vector {
        let mut charge = shape.base;
        if kind == PodKind::Reservation {
            charge[GPU] = 0;
        }
        charge[MEMORY] += self.unified_bytes(shape);
        for (amount, allocatable) in charge.iter_mut().zip(self.allocatable) {
            if allocatable == 0 {
                *amount = 0;
            }
        }
        charge
    }

    /// Bytes of RAM that a pod's GPU memory takes on a node where both are one pool.
    pub(crate) fn unified_bytes(&self, shape: &Shape) -> i64 {
        match self.memory_kind {
            MemoryKind::Unified if shape.is_shared() && self.memory_known => shape
                .need_mib(self.memory_mib)
                .saturating_mul(shape.devices())
                .saturating_mul(MIB),
            MemoryKind::Unified | MemoryKind::Dedicated => 0,
        }
    }

    /// Free GPUs, parts of shared devices and MIG slices included.
    pub(crate) fn idle_gpus(&self, mig_gpus: impl Fn(ResourceId) -> Gpus) -> Gpus {
        let shared: Gpus = self
            .groups
            .iter()
            .filter(|group| group.allocated() > 0)
            .map(|group| Gpus::hundredths(100 - ceil_hundredths(group.allocated(), self.memory_mib)))
            .sum();
        let mig: Gpus = self
            .extended
            .iter()
            .map(|extended| mig_gpus(extended.resource) * extended.idle)
            .sum();
        shared + mig + Gpus::whole(self.free.idle[GPU])
    }

    /// GPUs being freed, parts of shared devices and MIG slices included.
    pub(crate) fn releasing_gpus(&self, mig_gpus: impl Fn(ResourceId) -> Gpus) -> Gpus {
        let shared: Gpus = self
            .groups
            .iter()
            .filter(|group| group.releasing() > 0 && !group.is_emptying())
            .map(|group| Gpus::hundredths(ceil_hundredths(group.releasing(), self.memory_mib)))
            .sum();
        let mig: Gpus = self
            .extended
            .iter()
            .map(|extended| mig_gpus(extended.resource) * extended.releasing)
            .sum();
        shared + mig + Gpus::whole(self.free.releasing[GPU])
    }

    /// MiB of idle and releasing GPU memory together.
    pub(crate) fn available_memory_mib(&self) -> i64 {
        let shared: i64 = self
            .groups
            .iter()
            .map(|group| {
                let idle = if group.allocated() > 0 {
                    self.memory_mib - group.allocated()
                } else {
                    0
                };
                let releasing = if group.is_emptying() {
                    0
                } else {
                    group.releasing().max(0)
                };
                idle + releasing
            })
            .sum();
        shared + (self.free.idle[GPU] + self.free.releasing[GPU]) * self.memory_mib
    }
}
