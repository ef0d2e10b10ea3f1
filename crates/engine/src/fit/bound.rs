//! Upper bounds on the number of pods that fit on a node after all releases.

use smallvec::SmallVec;

use crate::ids::{GpuGroupId, ResourceId};
use crate::model::{GpuFraction, Gpus, PodKind};
use crate::tables::{GpuGroup, GpuGroupIds, GpuKind, Node, NodeResources, Shape, When, ceil_hundredths};

/// Resources that victims on one node free.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreedResources {
    base: NodeResources,
    /// MiB freed on shared GPUs, by GPU group.
    shared_mib: SmallVec<[(GpuGroupId, i64); 2]>,
}

impl FreedResources {
    /// Adds the resources of a victim (`sign` 1), or removes them again (-1).
    pub(crate) fn change(&mut self, node: &Node, shape: &Shape, kind: PodKind, gpu_groups: &GpuGroupIds, sign: i64) {
        self.base += node.charge(shape, kind) * sign;
        if !shape.is_shared() {
            return;
        }
        let need_mib = sign * shape.need_mib(node.memory_mib);
        for group in gpu_groups {
            match self.shared_mib.iter_mut().find(|(id, _)| id == group) {
                Some((_, mib)) => *mib += need_mib,
                None => self.shared_mib.push((*group, need_mib)),
            }
        }
    }

    fn mib_of(&self, id: GpuGroupId) -> i64 {
        let of_group = self.shared_mib.iter().find(|(group, _)| *group == id);
        of_group.map_or(0, |(_, mib)| *mib)
    }

    /// Whether some pod of the group stays.
    fn leaves_pods_on(&self, group: &GpuGroup) -> bool {
        group.active_mib + group.pipelined_mib > self.mib_of(group.id)
    }

    /// Shared GPUs that become free ones, because all pods that stay there are victims. A GPU without such pods counts as a
    /// free one already.
    fn emptied_gpus(&self, node: &Node) -> i64 {
        let is_emptied = |(id, mib): &&(GpuGroupId, i64)| {
            let is_last = |group: &GpuGroup| !group.is_emptying() && group.active_mib + group.pipelined_mib == *mib;
            *mib > 0 && node.gpu_group(*id).is_some_and(is_last)
        };
        self.shared_mib.iter().filter(is_emptied).count() as i64
    }
}

/// How many pods of the shape fit at most, once these victims are gone and all releases are done.
pub(crate) fn max_pods(node: &Node, shape: &Shape, freed: &FreedResources) -> i64 {
    let mut free = node.free.total() + freed.base;
    free.gpus += freed.emptied_gpus(node);
    let by_base = max_by_base(&shape.base, &free);
    match shape.gpu {
        GpuKind::None | GpuKind::Mig { .. } => by_base,
        GpuKind::Whole { devices } => by_base.min(free.gpus.max(0) / devices.max(1)),
        GpuKind::Fraction { devices, .. } | GpuKind::Memory { devices, .. } => {
            by_base.min(max_shares(node, shape, free.gpus, freed) / devices.max(1))
        }
    }
}

/// How many times the share of one GPU that the shape requests fits at most, on shared GPUs and on `free_gpus`.
fn max_shares(node: &Node, shape: &Shape, free_gpus: i64, freed: &FreedResources) -> i64 {
    let need_mib = shape.need_mib(node.memory_mib);
    if need_mib <= 0 {
        // Less than a MiB takes no memory, so memory does not bound the number of pods.
        return i64::MAX;
    }
    let on_group = |group: &GpuGroup| {
        let available = group.available_mib(node.memory_mib, When::AfterRelease) + freed.mib_of(group.id);
        available.max(0) / need_mib
    };
    // A group whose pods differ in their mode may get one mode when some of them are gone.
    let mode = shape.constraints.share.compute_mode;
    let can_join = |group: &GpuGroup| group.compute_mode().is_none_or(|of_group| of_group == mode);
    let staying = node
        .gpu_groups
        .iter()
        .filter(|group| freed.leaves_pods_on(group) && can_join(group));
    staying.map(on_group).sum::<i64>() + free_gpus.max(0) * (node.memory_mib / need_mib)
}

/// How many times a request fits into free CPU, memory and pod slots.
fn max_by_base(need: &NodeResources, free: &NodeResources) -> i64 {
    let mut pods_max = free.pods.max(0);
    for (need, free) in [(need.cpu_milli, free.cpu_milli), (need.memory_bytes, free.memory_bytes)] {
        if need > free {
            return 0;
        }
        if need > 0 {
            pods_max = pods_max.min(free / need);
        }
    }
    pods_max
}

/// A request of one pod, or the largest request of several pods.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PodRequest {
    base: NodeResources,
    gpu: GpuKind,
    extended: Vec<(ResourceId, i64)>,
}

/// The unit of a GPU request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GpuUnit {
    /// No GPUs, or MIG slices, which are extended resources.
    None,
    Devices,
    Mib,
}

impl PodRequest {
    pub(crate) fn of(shape: &Shape) -> PodRequest {
        PodRequest {
            base: shape.base,
            gpu: shape.gpu,
            extended: shape.extended.clone(),
        }
    }

    /// Whether a pod requests nothing but its pod slot.
    pub(crate) fn is_empty(&self) -> bool {
        let NodeResources {
            cpu_milli,
            memory_bytes,
            ..
        } = self.base;
        cpu_milli == 0 && memory_bytes == 0 && self.extended.is_empty() && self.gpu_amount().0 == GpuUnit::None
    }

    /// Whether both request the same kinds of resources. Otherwise they have no largest request.
    pub(crate) fn is_comparable(&self, other: &PodRequest) -> bool {
        let resources = |request: &PodRequest| {
            let mut ids: SmallVec<[ResourceId; 4]> = request.extended.iter().map(|(resource, _)| *resource).collect();
            ids.sort_unstable();
            ids
        };
        self.gpu_amount().0 == other.gpu_amount().0 && resources(self) == resources(other)
    }

    /// Raises every resource to that of a comparable request.
    pub(crate) fn raise_to(&mut self, other: &PodRequest) {
        self.base = self.base.max_of_each(&other.base);
        let is_share = |gpu: GpuKind| !matches!(gpu, GpuKind::Whole { .. });
        let (own, others) = (self.gpu_amount().1, other.gpu_amount().1);
        // Of equal amounts the share is the smaller request: it fits on GPUs in use, too.
        if others > own || (others == own && is_share(other.gpu)) {
            self.gpu = other.gpu;
        }
        for (resource, amount) in &other.extended {
            match self.extended.iter_mut().find(|(id, _)| id == resource) {
                Some((_, own)) => *own = (*own).max(*amount),
                None => self.extended.push((*resource, *amount)),
            }
        }
    }

    /// The requested GPUs in billionths, or their memory in MiB.
    fn gpu_amount(&self) -> (GpuUnit, i64) {
        match self.gpu {
            GpuKind::None | GpuKind::Mig { .. } => (GpuUnit::None, 0),
            GpuKind::Whole { devices } => (
                GpuUnit::Devices,
                devices.saturating_mul(GpuFraction::WHOLE.billionths()),
            ),
            GpuKind::Fraction { fraction, devices } => {
                (GpuUnit::Devices, devices.saturating_mul(fraction.billionths()))
            }
            GpuKind::Memory { mib, devices } => (GpuUnit::Mib, devices.saturating_mul(mib)),
        }
    }
}

/// How many pods of the request fit at most after all releases, if GPU memory could be divided in any way. This bound is
/// coarser than [`max_pods`], because the request may be the largest of several: smaller pods fill the gaps that pods
/// of the largest request leave.
pub(crate) fn max_pods_by_volume(node: &Node, request: &PodRequest) -> i64 {
    let free = node.free.total();
    let by_gpus = match request.gpu {
        GpuKind::None | GpuKind::Mig { .. } => i64::MAX,
        GpuKind::Whole { devices } => free.gpus.max(0) / devices.max(1),
        GpuKind::Fraction { devices, .. } | GpuKind::Memory { devices, .. } => {
            let need_mib = request.gpu.need_mib(node.memory_mib).saturating_mul(devices);
            let on_free_gpus = free.gpus.max(0).saturating_mul(node.memory_mib);
            match need_mib {
                ..=0 => i64::MAX,
                1.. => on_free_gpus.saturating_add(shared_mib(node).sum()) / need_mib,
            }
        }
    };
    let by_extended = request.extended.iter().filter(|(_, amount)| *amount > 0);
    let by_extended =
        by_extended.map(|(resource, amount)| node.free_extended(*resource, When::AfterRelease).max(0) / amount);
    let bound = max_by_base(&request.base, &free).min(by_gpus);
    by_extended.fold(bound, i64::min)
}

/// The available MiB of each shared GPU that stays in use.
fn shared_mib(node: &Node) -> impl Iterator<Item = i64> {
    let staying = node
        .gpu_groups
        .iter()
        .filter(|group| group.holds_gpu(When::AfterRelease));
    staying.map(|group| group.available_mib(node.memory_mib, When::AfterRelease).max(0))
}

/// The parts of shared GPUs that are available after all releases, rounded up.
pub(crate) fn free_gpu_parts(node: &Node) -> Gpus {
    shared_mib(node)
        .map(|mib| Gpus::hundredths(ceil_hundredths(mib, node.memory_mib)))
        .sum()
}
