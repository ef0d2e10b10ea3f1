//! The exact checks of one pod on one node, by the node's resources.

use crate::ids::GpuGroupId;
use crate::reasons::Check;
use crate::tables::{GpuKind, Node, NodeResources, Shape, When};

/// Whether the pod fits into the free resources of the node; else the resource that is short.
pub(crate) fn fits(node: &Node, shape: &Shape, when: When) -> Result<(), Check> {
    let free = node.free.at(when);
    let mut need = shape.base;
    need.memory_bytes += node.unified_bytes(shape);
    need.pods += match shape.gpu {
        GpuKind::Whole { devices } if devices > node.whole_units_of(free.gpus, when) => return Err(Check::Gpus),
        GpuKind::Whole { .. } => 0,
        GpuKind::Mig { .. } if node.legacy_mig_pods > 0 => return Err(Check::MigMismatch),
        // An overcommitted node has negative free GPUs: it rejects even a pod that requests none.
        GpuKind::None | GpuKind::Mig { .. } if need.gpus > free.gpus => return Err(Check::Gpus),
        GpuKind::None | GpuKind::Mig { .. } => 0,
        GpuKind::Fraction { devices, .. } | GpuKind::Memory { devices, .. } => {
            reservation_pods(node, shape, devices, node.shareable_devices_of(free.gpus, when))?
        }
    };
    base_check(&need, &free)?;
    extended_check(node, shape, when)
}

/// How many reservation pods a pod that shares `devices` GPUs needs on the node, where `free` GPUs can be opened; an error if the
/// GPUs are short.
fn reservation_pods(node: &Node, shape: &Shape, devices: i64, free: i64) -> Result<i64, Check> {
    let need_mib = shape.need_mib(node.memory_mib);
    if need_mib > node.memory_mib {
        return Err(Check::GpuTooSmall);
    }
    let groups = || node.gpu_groups.iter();
    let when = When::AfterRelease;
    let shared = groups()
        .filter(|group| group.fits(shape, node.memory_mib, when))
        .count() as i64;
    if shared + free.max(0) < devices {
        let with_room = groups().filter(|group| group.has_room(shape, node.memory_mib, when));
        return Err(if node.allocatable.gpus == 0 {
            Check::Gpus
        } else if with_room.count() as i64 + free.max(0) >= devices {
            Check::ComputeModeInUse
        } else {
            Check::GpuMemory
        });
    }
    // A new GPU group needs a reservation pod, which counts as a pod of the node.
    Ok(i64::from(shared < devices))
}

fn base_check(need: &NodeResources, free: &NodeResources) -> Result<(), Check> {
    if need.cpu_milli > free.cpu_milli {
        return Err(Check::Cpu);
    }
    if need.memory_bytes > free.memory_bytes {
        return Err(Check::Memory);
    }
    if need.pods > free.pods {
        return Err(Check::PodSlots);
    }
    Ok(())
}

fn extended_check(node: &Node, shape: &Shape, when: When) -> Result<(), Check> {
    let is_short = |(resource, amount): &(_, i64)| *amount > node.free_extended(*resource, when);
    if shape.extended.iter().any(is_short) {
        return Err(Check::Extended);
    }
    Ok(())
}

/// Whether a pod with these GPU groups fits on the node: it joins the groups that hold their GPU, and opens the others.
pub(crate) fn fits_on_gpus(node: &Node, shape: &Shape, gpu_groups: &[GpuGroupId], when: When) -> bool {
    let holds_gpu = |id: &GpuGroupId| node.gpu_group(*id).filter(|group| group.holds_gpu(when));
    let has_memory = |id: &GpuGroupId| holds_gpu(id).is_none_or(|group| group.fits(shape, node.memory_mib, when));
    let opened = gpu_groups.iter().filter(|id| holds_gpu(id).is_none()).count() as i64;
    fits(node, shape, when).is_ok() && gpu_groups.iter().all(has_memory) && opened <= node.shareable_devices(when)
}

/// Whether the pod could fit on the node if no other pod were there. The memory of a GPU is compared too, because no eviction
/// changes it.
pub(crate) fn fits_empty_node(node: &Node, shape: &Shape) -> bool {
    let gpus_are_large_enough = !shape.is_shared() || shape.need_mib(node.memory_mib) <= node.memory_mib;
    shape.base.fits_in(&node.allocatable) && gpus_are_large_enough
}
