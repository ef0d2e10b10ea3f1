//! Whether a pod of a shape fits on a node, by the node's spec and by its resources, and the score of the node.

use crate::model::{Constraints, MigStrategy, NodeSelectorTerm, PlacementStrategies, PlacementStrategy, TaintEffect};
use crate::place::weights::{self, PREFERENCE_POINTS_MAX};
use crate::reasons::Check;
use crate::tables::{GpuKind, Node, NodeResources, Shape, When};

/// The checks of a node's spec, whose result changes only with that spec. Returns the points of preferred node affinity,
/// less one per `PreferNoSchedule` taint.
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
    mig_check(node, shape)?;
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

/// Whether the node's MIG strategy accepts the kind of GPU request.
fn mig_check(node: &Node, shape: &Shape) -> Result<(), Check> {
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

/// Whether the pod fits into `free`, which is the idle resources of the node for [`When::Now`], and the idle and releasing
/// ones for [`When::AfterRelease`]; else the resource that is short.
pub(crate) fn fits(node: &Node, shape: &Shape, free: NodeResources, when: When) -> Result<(), Check> {
    let mut need = shape.base;
    need.memory_bytes += node.unified_bytes(shape);
    match shape.gpu {
        GpuKind::Whole { devices } => {
            if devices > node.whole_units(free.gpus, when) {
                return Err(Check::Gpus);
            }
        }
        GpuKind::Mig { .. } if node.legacy_mig_pods > 0 => return Err(Check::MigMismatch),
        GpuKind::None | GpuKind::Mig { .. } => {
            // An overcommitted node has negative free GPUs: it rejects even a pod that requests none.
            if need.gpus > free.gpus {
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
            if shared + node.shareable_devices(free.gpus, when).max(0) < devices {
                return Err(if node.allocatable.gpus == 0 {
                    Check::Gpus
                } else {
                    Check::GpuMemory
                });
            }
            if shared < devices {
                // A new GPU group needs a reservation pod, which counts as a pod of the node.
                need.pods += 1;
            }
        }
    }
    if need.cpu_milli > free.cpu_milli {
        return Err(Check::Cpu);
    }
    if need.memory_bytes > free.memory_bytes {
        return Err(Check::Memory);
    }
    if need.pods > free.pods {
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

/// The score of a node for a shape as one number: 0 = the pod does not fit, else higher is better. The highest bits are the
/// weights, then how well the node packs (or spreads), then the rank of its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeScore(pub(crate) u128);

impl NodeScore {
    pub(crate) const UNFIT: NodeScore = NodeScore(0);
    /// Added to weights so that negative ones order correctly and a fitting node is never 0.
    const OFFSET: i64 = weights::SUM_MAX + 1;
    const PACKING_BITS: u32 = 48;

    fn new(weight: i64, packing: u64, rank: u32) -> NodeScore {
        let weight = (weight + NodeScore::OFFSET) as u128;
        let packing = u128::from(packing.min((1 << NodeScore::PACKING_BITS) - 1));
        NodeScore(weight << (NodeScore::PACKING_BITS + 32) | packing << 32 | u128::from(u32::MAX - rank))
    }

    /// The score with more weight, for scores that depend on more than the shape.
    pub(crate) fn plus(self, weight: i64) -> NodeScore {
        if self == NodeScore::UNFIT {
            return self;
        }
        NodeScore(
            self.0
                .wrapping_add_signed(i128::from(weight) << (NodeScore::PACKING_BITS + 32)),
        )
    }
}

/// Whether no pod is releasing on the node or pipelined to it: then a pod that fits after all releases fits now.
fn is_quiescent(node: &Node) -> bool {
    node.free.releasing == NodeResources::ZERO
        && node.extended.iter().all(|extended| extended.releasing == 0)
        && node
            .gpu_groups
            .iter()
            .all(|group| group.releasing_mib == 0 && group.pipelined_mib == 0)
}

/// The score of a node with its current resources. `preference` comes from [`static_check`].
pub(crate) fn node_score(node: &Node, shape: &Shape, preference: i64, placement: PlacementStrategies) -> NodeScore {
    let total = node.free.total();
    if fits(node, shape, total, When::AfterRelease).is_err() {
        return NodeScore::UNFIT;
    }
    let mut weight = preference * weights::PREFERENCE_POINT;
    if is_quiescent(node) || fits(node, shape, node.free.idle, When::Now).is_ok() {
        weight += weights::AVAILABLE_NOW;
    }
    if placement.gpu == PlacementStrategy::Binpack && !node.gpu_groups.is_empty() {
        let need = shape.need_mib(node.memory_mib);
        if node
            .gpu_groups
            .iter()
            .any(|group| group.fits_after_release(need, node.memory_mib))
        {
            weight += weights::SHARES_GPU;
        }
    }
    let (strategy, free, capacity) = if shape.is_cpu_only() {
        if node.allocatable.gpus == 0 && !node.has_mig {
            weight += weights::CPU_NODE;
        }
        (placement.cpu, total.cpu_milli, node.allocatable.cpu_milli)
    } else {
        (placement.gpu, total.gpus, node.gpu_units)
    };
    let free = free.max(0) as u64;
    let packing = match strategy {
        PlacementStrategy::Binpack => (1u64 << NodeScore::PACKING_BITS).saturating_sub(1 + free),
        PlacementStrategy::Spread => ((u128::from(free) << 32) / u128::from(capacity.max(1) as u64)) as u64,
    };
    NodeScore::new(weight, packing, node.rank)
}
