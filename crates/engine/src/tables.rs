//! The rows of the engine's tables: nodes, pods, gangs, queues and the shapes of pods.
//!
//! Plain data with the small questions that need nothing but the row. Every number that a decision can change is
//! written by [`crate::ledger`] only.

use smallvec::SmallVec;

use crate::ids::{GangId, GroupId, NodeId, PodId, QueueId, ResourceId, ShapeId, Symbol};
use crate::model::{
    Constraints, Gpus, Labels, MemoryKind, MigStrategy, Millis, PodKind, Quota, Taint, TaskRank, TopologyConstraint,
};
use crate::report::Status;

/// Index of milli-cores in resource arrays.
pub(crate) const CPU: usize = 0;
/// Index of bytes of memory.
pub(crate) const MEMORY: usize = 1;
/// Index of whole GPUs.
pub(crate) const GPU: usize = 2;
/// Index of pod slots.
pub(crate) const PODS: usize = 3;

/// CPU, memory, whole GPUs, pod slots.
pub(crate) type Vector = [i64; 4];
/// CPU, memory, GPUs in millionths: what queues count.
pub(crate) type Share = [i64; 3];

/// Index of GPUs in a [`Share`].
pub(crate) const SHARE_GPU: usize = 2;

/// MiB in bytes.
pub(crate) const MIB: i64 = 1 << 20;

impl Status {
    /// Number of statuses, for counters.
    pub(crate) const COUNT: usize = 11;

    /// Occupies its node.
    pub(crate) fn is_active_used(self) -> bool {
        self.is_active_allocated() || matches!(self, Status::Releasing | Status::StuckInReleasing)
    }

    /// Has a place and is meant to keep it.
    pub(crate) fn is_active_allocated(self) -> bool {
        matches!(
            self,
            Status::Pipelined | Status::Binding | Status::Bound | Status::Running
        )
    }

    /// Really holds its place, as opposed to waiting for it.
    pub(crate) fn is_allocated(self) -> bool {
        matches!(self, Status::Binding | Status::Bound | Status::Running)
    }

    /// Is or may become part of the running gang.
    pub(crate) fn is_alive(self) -> bool {
        self.is_active_allocated() || matches!(self, Status::Pending | Status::Gated)
    }
}

/// The kind of GPU request, reduced to what arithmetic needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuKind {
    None,
    Whole { devices: i64 },
    Fraction { billionths: i64, devices: i64 },
    Memory { mib: i64, devices: i64 },
    Mig { legacy: bool },
}

/// Everything about a pod that filters and scores read. Pods of the same shape share one row.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// CPU, memory, whole GPUs (0 for shared and MIG requests), one pod slot.
    pub(crate) base: Vector,
    /// Extended resources and MIG slices.
    pub(crate) extended: Vec<(ResourceId, i64)>,
    pub(crate) gpu: GpuKind,
    /// What MIG slices count as, in GPUs.
    pub(crate) mig: Gpus,
    pub(crate) constraints: Constraints,
}

impl Shape {
    /// Whether the pod gets a part of one or more devices.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.gpu, GpuKind::Fraction { .. } | GpuKind::Memory { .. })
    }

    /// Whether the pod asks for no GPU of any kind.
    pub(crate) fn is_cpu_only(&self) -> bool {
        self.gpu == GpuKind::None
    }

    /// Devices asked for.
    pub(crate) fn devices(&self) -> i64 {
        match self.gpu {
            GpuKind::None | GpuKind::Mig { .. } => 0,
            GpuKind::Whole { devices } | GpuKind::Fraction { devices, .. } | GpuKind::Memory { devices, .. } => devices,
        }
    }

    /// MiB needed on each device of `memory_mib`.
    pub(crate) fn need_mib(&self, memory_mib: i64) -> i64 {
        match self.gpu {
            GpuKind::None | GpuKind::Mig { .. } => 0,
            GpuKind::Whole { .. } => memory_mib,
            GpuKind::Fraction { billionths, .. } => {
                (i128::from(billionths) * i128::from(memory_mib) / 1_000_000_000) as i64
            }
            GpuKind::Memory { mib, .. } => mib,
        }
    }

    /// What a queue is charged for the pod on a device of `memory_mib`, in hundredths per device.
    pub(crate) fn accepted_hundredths(&self, memory_mib: i64) -> i64 {
        match self.gpu {
            GpuKind::None | GpuKind::Mig { .. } => 0,
            GpuKind::Whole { .. } => 100,
            GpuKind::Fraction { billionths, .. } => (billionths + 5_000_000) / 10_000_000,
            GpuKind::Memory { mib, .. } => ceil_hundredths(mib, memory_mib),
        }
    }

    /// What queues are charged once the pod has a place on a node with such devices.
    pub(crate) fn accepted(&self, memory_mib: i64) -> Share {
        let gpus = self.mig + Gpus::hundredths(self.accepted_hundredths(memory_mib)) * self.devices();
        [self.base[CPU], self.base[MEMORY], gpus.0]
    }

    /// What queues are asked for while no node is known: `gpu-memory` becomes a part of a device of `memory_mib`, or
    /// nothing if no node tells its GPU memory.
    pub(crate) fn requested(&self, memory_mib: Option<i64>) -> Share {
        let gpus = match self.gpu {
            GpuKind::Memory { mib, devices } => match memory_mib {
                Some(base) => Gpus(
                    (i128::from(devices) * i128::from(mib) * i128::from(Gpus::ONE.0) / i128::from(base.max(1))) as i64,
                ),
                None => Gpus::ZERO,
            },
            GpuKind::None | GpuKind::Whole { .. } | GpuKind::Fraction { .. } | GpuKind::Mig { .. } => {
                self.mig + Gpus::hundredths(self.accepted_hundredths(100)) * self.devices()
            }
        };
        [self.base[CPU], self.base[MEMORY], gpus.0]
    }

    /// GPUs asked for by count, where memory requests count nothing.
    pub(crate) fn gpus_by_count(&self) -> Gpus {
        Gpus(self.requested(None)[SHARE_GPU])
    }

    /// Whether placing the pod depends on other pods beyond resources.
    pub(crate) fn has_neighbour_rules(&self) -> bool {
        let Constraints {
            host_ports,
            affinity,
            anti_affinity,
            ..
        } = &self.constraints;
        !host_ports.is_empty() || !affinity.is_empty() || !anti_affinity.is_empty()
    }
}

/// `part / whole` in hundredths, rounded up.
pub(crate) fn ceil_hundredths(part: i64, whole: i64) -> i64 {
    let whole = i128::from(whole.max(1));
    ((i128::from(part) * 100 + whole - 1) / whole) as i64
}

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
    pub(crate) uid: Box<str>,
    pub(crate) namespace: Symbol,
    pub(crate) name: Box<str>,
    pub(crate) created: Millis,
    pub(crate) rank: TaskRank,
    pub(crate) kind: PodKind,
    pub(crate) gang: Option<GangId>,
    /// Subgroup by name; the pod set follows from it and the gang.
    pub(crate) sub_group: Option<Symbol>,
    /// Index into the gang's pod sets; `None` = the gang has no such subgroup.
    pub(crate) pod_set: Option<u32>,
    pub(crate) shape: ShapeId,
    /// Interned label set.
    pub(crate) labels: u32,
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

    /// Whether it could be placed in a simulation: waiting, or evicted within it.
    pub(crate) fn is_placeable(&self) -> bool {
        self.is_waiting() || (self.place.status == Status::Releasing && self.evicted_from.is_some())
    }
}

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
    pub(crate) name: Box<str>,
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

/// A member of a subgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Member {
    /// A leaf, by index into the gang's pod sets.
    Pods(u32),
    /// An inner group, by index into the gang's groups.
    Group(u32),
}

/// An inner node of a gang's tree; index 0 is the gang itself.
#[derive(Clone, Debug)]
pub(crate) struct SubGroup {
    pub(crate) name: Box<str>,
    pub(crate) parent: Option<u32>,
    pub(crate) members: Vec<Member>,
    /// Members that must be satisfied; `None` = all.
    pub(crate) min_members: Option<u32>,
    pub(crate) topology: Option<TopologyConstraint>,
}

impl SubGroup {
    pub(crate) fn required_members(&self) -> usize {
        self.min_members.map_or(self.members.len(), |min| min as usize)
    }
}

/// A leaf of a gang's tree.
#[derive(Clone, Debug)]
pub(crate) struct PodSet {
    pub(crate) name: Box<str>,
    pub(crate) parent: u32,
    pub(crate) min: u32,
    pub(crate) topology: Option<TopologyConstraint>,
    /// In task order: the first is started first and evicted last.
    pub(crate) pods: Vec<PodId>,
    /// Pods per status.
    pub(crate) counts: [u32; Status::COUNT],
    /// Pods that are pending but refused by the edge.
    pub(crate) refused: u32,
}

impl PodSet {
    fn sum(&self, keep: fn(Status) -> bool) -> u32 {
        STATUSES
            .iter()
            .filter(|status| keep(**status))
            .map(|status| self.counts[*status as usize])
            .sum()
    }

    pub(crate) fn active_allocated(&self) -> u32 {
        self.sum(Status::is_active_allocated)
    }

    pub(crate) fn active_used(&self) -> u32 {
        self.sum(Status::is_active_used)
    }

    /// Pods that run or could be started.
    pub(crate) fn ready(&self) -> u32 {
        self.sum(Status::is_alive) - self.counts[Status::Gated as usize] - self.refused
    }

    pub(crate) fn is_satisfied(&self) -> bool {
        self.active_allocated() >= self.min
    }

    pub(crate) fn is_elastic(&self) -> bool {
        (self.min as usize) < self.pods.len()
    }
}

const STATUSES: [Status; Status::COUNT] = [
    Status::Pending,
    Status::Gated,
    Status::Pipelined,
    Status::Binding,
    Status::Bound,
    Status::Running,
    Status::Releasing,
    Status::StuckInReleasing,
    Status::Succeeded,
    Status::Failed,
    Status::Unknown,
];

/// A gang.
#[derive(Clone, Debug)]
pub(crate) struct Gang {
    pub(crate) key: crate::model::GangKey,
    /// False while only its pods have been seen.
    pub(crate) known: bool,
    pub(crate) uid: Box<str>,
    pub(crate) created: Millis,
    /// Position among all gangs by age, then uid, then name.
    pub(crate) seniority: u32,
    pub(crate) queue_name: Symbol,
    /// The leaf queue; `None` = missing, cut off or not a leaf.
    pub(crate) queue: Option<QueueId>,
    pub(crate) priority: i32,
    pub(crate) preemptible: bool,
    pub(crate) groups: Vec<SubGroup>,
    pub(crate) pod_sets: Vec<PodSet>,
    /// Pods that name a subgroup which is not there.
    pub(crate) strays: Vec<PodId>,
    pub(crate) last_start: Option<Millis>,
    pub(crate) last_eviction: Option<Millis>,
    pub(crate) stale_since: Option<Millis>,
    pub(crate) preemption_delay: Millis,
    pub(crate) staleness_grace: Option<Option<Millis>>,
    pub(crate) schedulable: bool,
    /// What its pods that really hold a place are charged.
    pub(crate) allocated: Share,
    /// How often in a row the search for victims was cut short, and the cycle from which it may search again.
    pub(crate) searches_cut: u32,
    pub(crate) search_from: u64,
}

impl Gang {
    /// When it may evict others, if not now.
    pub(crate) fn delayed_until(&self, now: Millis) -> Option<Millis> {
        if self.preemption_delay <= Millis(0) {
            return None;
        }
        let anchor = self
            .last_eviction
            .map_or(self.created, |eviction| eviction.max(self.created));
        let until = anchor + self.preemption_delay;
        (now < until).then_some(until)
    }

    pub(crate) fn count(&self, status: Status) -> u32 {
        self.pod_sets.iter().map(|set| set.counts[status as usize]).sum()
    }

    /// Pods that a decision can start now.
    pub(crate) fn waiting(&self) -> u32 {
        self.pod_sets
            .iter()
            .map(|set| set.counts[Status::Pending as usize] - set.refused)
            .sum()
    }

    pub(crate) fn active_allocated(&self) -> u32 {
        self.pod_sets.iter().map(PodSet::active_allocated).sum()
    }

    pub(crate) fn active_used(&self) -> u32 {
        self.pod_sets.iter().map(PodSet::active_used).sum()
    }

    pub(crate) fn is_elastic(&self) -> bool {
        self.pod_sets.iter().any(PodSet::is_elastic)
    }
}

/// A queue.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) name: Box<str>,
    pub(crate) display_name: Box<str>,
    pub(crate) uid: Box<str>,
    pub(crate) parent_name: Option<Box<str>>,
    pub(crate) created: Millis,
    pub(crate) priority: i32,
    pub(crate) quota: Quota,
    pub(crate) preempt_min_runtime: Option<Millis>,
    pub(crate) reclaim_min_runtime: Option<Millis>,
    /// Lately used share of the cluster, in billionths.
    pub(crate) usage: Share,
    pub(crate) parent: Option<QueueId>,
    pub(crate) children: Vec<QueueId>,
    /// Reaches a root.
    pub(crate) connected: bool,
    /// Distance from its root.
    pub(crate) depth: u32,
    pub(crate) allocated: Share,
    pub(crate) allocated_non_preemptible: Share,
    /// What pods ask for that have no place at the start of the cycle.
    pub(crate) pending: Share,
    /// That and what others have, at the start of the cycle.
    pub(crate) requested: Share,
    /// What fair division gives it, as of the start of the cycle.
    pub(crate) fair_share: Share,
}

impl Queue {
    /// What people call it.
    pub(crate) fn display(&self) -> &str {
        if self.display_name.is_empty() {
            &self.name
        } else {
            &self.display_name
        }
    }
}
