//! Whether a node can take a pod of a shape, by resources and by the node's own nature, and how good a choice it is.

use crate::model::{Constraints, MigStrategy, NodeSelectorTerm, PlacementStrategies, PlacementStrategy, TaintEffect};
use crate::reasons::Check;
use crate::tables::{CPU, GPU, GpuKind, MEMORY, Node, NodeResources, PODS, Shape, When};

/// Weight of a node on which the pod fits at once.
const AVAILABLE_NOW: i64 = 1_000;
/// Weight of a node with a shared GPU in use that can take the pod.
const SHARES_GPU: i64 = 10_000;
/// Weight of a node without GPUs for a pod that needs none.
const SUITS_KIND: i64 = 10;
/// Weight of one point of preferred node affinity: below availability, above packing.
const PREFERENCE: i64 = 9;
/// Points of preferred node affinity that count.
const PREFERENCE_POINTS_MAX: i64 = 100;

/// What about a node keeps pods of a shape away for good, until the node's spec changes; and how much its labels are
/// preferred.
pub(crate) fn static_check(node: &Node, shape: &Shape) -> Result<i64, Check> {
    kind_check(node, shape)?;
    let Constraints {
        node_selector,
        required_nodes,
        preferred_nodes,
        tolerations,
        ..
    } = &shape.constraints;
    let tolerated = |taint| tolerations.iter().any(|toleration| toleration.tolerates(taint));
    let hard = |effect| matches!(effect, TaintEffect::NoSchedule | TaintEffect::NoExecute);
    if node.taints.iter().any(|taint| hard(taint.effect) && !tolerated(taint)) {
        return Err(Check::Taints);
    }
    let matches = |term: &NodeSelectorTerm| term.matches(&node.name, &node.labels);
    let selected = node_selector
        .iter()
        .all(|(key, value)| node.labels.get(key) == Some(value));
    if !selected || required_nodes.as_ref().is_some_and(|terms| !terms.iter().any(matches)) {
        return Err(Check::NodeAffinity);
    }
    let preferred: i64 = preferred_nodes
        .iter()
        .filter(|preference| matches(&preference.term))
        .map(|preference| i64::from(preference.weight))
        .sum();
    let disliked = node
        .taints
        .iter()
        .filter(|taint| taint.effect == TaintEffect::PreferNoSchedule && !tolerated(taint))
        .count() as i64;
    Ok((preferred - disliked).clamp(-PREFERENCE_POINTS_MAX, PREFERENCE_POINTS_MAX))
}

/// The part of [`static_check`] that depends on the kind of GPU request and on nothing else of the shape.
pub(crate) fn kind_check(node: &Node, shape: &Shape) -> Result<(), Check> {
    type_check(node, shape)?;
    if matches!(shape.gpu, GpuKind::Memory { .. }) && !node.memory_known {
        return Err(Check::GpuMemoryUnknown);
    }
    if node.unschedulable {
        return Err(Check::Unschedulable);
    }
    if node.not_ready {
        return Err(Check::NotReady);
    }
    Ok(())
}

/// MIG pods and others don't share nodes, except as the node's MIG strategy says.
fn type_check(node: &Node, shape: &Shape) -> Result<(), Check> {
    let is_mig = match shape.gpu {
        GpuKind::None => return Ok(()),
        GpuKind::Mig { legacy: true } => return Err(Check::MigMismatch),
        GpuKind::Mig { legacy: false } => true,
        GpuKind::Whole { .. } | GpuKind::Fraction { .. } | GpuKind::Memory { .. } => false,
    };
    if !node.mig_enabled {
        return if is_mig { Err(Check::MigMismatch) } else { Ok(()) };
    }
    let whole = matches!(shape.gpu, GpuKind::Whole { .. });
    let suits = match node.mig_strategy {
        MigStrategy::Single => whole,
        MigStrategy::Mixed => is_mig,
        MigStrategy::None => true,
    };
    if suits { Ok(()) } else { Err(Check::MigMismatch) }
}

/// Whether the pod fits into `free` (idle, or idle and releasing) of the node; else what is short.
pub(crate) fn fits(node: &Node, shape: &Shape, free: NodeResources, when: When) -> Result<(), Check> {
    let mut need = shape.base;
    need[MEMORY] += node.unified_bytes(shape);
    match shape.gpu {
        GpuKind::Whole { devices } => {
            if devices > node.whole_units(free[GPU], when) {
                return Err(Check::Gpus);
            }
        }
        GpuKind::Mig { .. } if node.legacy_mig_pods > 0 => return Err(Check::MigMismatch),
        GpuKind::None | GpuKind::Mig { .. } => {
            // A node that holds more than it has can't take even a pod that needs none of it.
            if need[GPU] > free[GPU] {
                return Err(Check::Gpus);
            }
        }
        GpuKind::Fraction { devices, .. } | GpuKind::Memory { devices, .. } => {
            let need_mib = shape.need_mib(node.memory_mib);
            if need_mib > node.memory_mib {
                return Err(Check::GpuTooSmall);
            }
            let shared = node
                .gpu_groups
                .iter()
                .filter(|group| group.fits_after_release(need_mib, node.memory_mib))
                .count() as i64;
            if shared + node.shareable_devices(free[GPU], when).max(0) < devices {
                return Err(if node.allocatable[GPU] == 0 {
                    Check::Gpus
                } else {
                    Check::GpuMemory
                });
            }
            if shared < devices {
                // Opening a device takes a slot for its reservation pod, too.
                need[PODS] += 1;
            }
        }
    }
    if need[CPU] > free[CPU] {
        return Err(Check::Cpu);
    }
    if need[MEMORY] > free[MEMORY] {
        return Err(Check::Memory);
    }
    if need[PODS] > free[PODS] {
        return Err(Check::PodSlots);
    }
    for (resource, amount) in &shape.extended {
        let free = node.extended.iter().find(|extended| extended.resource == *resource);
        let free = free.map_or(0, |free| {
            free.idle + if when == When::AfterRelease { free.releasing } else { 0 }
        });
        if *amount > free {
            return Err(Check::Extended);
        }
    }
    Ok(())
}

/// A node's worth for a shape as one ordered number: 0 = can't take it; else bigger is better. Weights first, then how
/// well it packs (or spreads), then the name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Worth(pub(crate) u128);

impl Worth {
    pub(crate) const UNFIT: Worth = Worth(0);
    /// Added to weights so that negative ones order correctly and a fitting node is never 0.
    const OFFSET: i64 = 1 << 40;
    const PACKING_BITS: u32 = 48;

    fn new(weight: i64, packing: u64, rank: u32) -> Worth {
        let weight = (weight + Worth::OFFSET) as u128;
        let packing = u128::from(packing.min((1 << Worth::PACKING_BITS) - 1));
        Worth(weight << (Worth::PACKING_BITS + 32) | packing << 32 | u128::from(u32::MAX - rank))
    }

    /// The same with more weight, for scores that depend on more than the shape.
    pub(crate) fn plus(self, weight: i64) -> Worth {
        if self == Worth::UNFIT {
            return self;
        }
        Worth(
            self.0
                .wrapping_add_signed(i128::from(weight) << (Worth::PACKING_BITS + 32)),
        )
    }
}

/// Whether nothing on the node is leaving or waits for room: then what fits at all fits now.
fn is_settled(node: &Node) -> bool {
    node.free.releasing == [0; 4]
        && node.extended.iter().all(|extended| extended.releasing == 0)
        && node
            .gpu_groups
            .iter()
            .all(|group| group.releasing_mib == 0 && group.pipelined_mib == 0)
}

/// How good a choice the node is now. `preference` comes from [`static_check`].
pub(crate) fn worth(node: &Node, shape: &Shape, preference: i64, placement: PlacementStrategies) -> Worth {
    let total = node.free.total();
    if fits(node, shape, total, When::AfterRelease).is_err() {
        return Worth::UNFIT;
    }
    let mut weight = preference * PREFERENCE;
    if is_settled(node) || fits(node, shape, node.free.idle, When::Now).is_ok() {
        weight += AVAILABLE_NOW;
    }
    if placement.gpu == PlacementStrategy::Binpack && !node.gpu_groups.is_empty() {
        let need = shape.need_mib(node.memory_mib);
        if node
            .gpu_groups
            .iter()
            .any(|group| group.fits_after_release(need, node.memory_mib))
        {
            weight += SHARES_GPU;
        }
    }
    let (strategy, resource, capacity) = if shape.is_cpu_only() {
        if node.allocatable[GPU] == 0 && !node.has_mig {
            weight += SUITS_KIND;
        }
        (placement.cpu, CPU, node.allocatable[CPU])
    } else {
        (placement.gpu, GPU, node.gpu_units)
    };
    let free = total[resource].max(0) as u64;
    let packing = match strategy {
        PlacementStrategy::Binpack => (1u64 << Worth::PACKING_BITS).saturating_sub(1 + free),
        PlacementStrategy::Spread => ((u128::from(free) << 32) / u128::from(capacity.max(1) as u64)) as u64,
    };
    Worth::new(weight, packing, node.rank)
}
