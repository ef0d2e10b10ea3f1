//! The score of a node for a shape.

use crate::fit::fits;
use crate::model::{PlacementStrategies, PlacementStrategy};
use crate::place::weights;
use crate::tables::{Node, NodeResources, Shape, When};

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

/// The score of a node with its current resources. `preference` comes from [`static_check`](super::static_check).
pub(crate) fn node_score(node: &Node, shape: &Shape, preference: i64, placement: PlacementStrategies) -> NodeScore {
    let total = node.free.total();
    if fits(node, shape, When::AfterRelease).is_err() {
        return NodeScore::UNFIT;
    }
    let mut weight = preference * weights::PREFERENCE_POINT;
    if is_quiescent(node) || fits(node, shape, When::Now).is_ok() {
        weight += weights::AVAILABLE_NOW;
    }
    let joins_group = || {
        let mut groups = node.gpu_groups.iter();
        groups.any(|group| group.fits(shape, node.memory_mib, When::AfterRelease))
    };
    if placement.gpu == PlacementStrategy::Binpack && joins_group() {
        weight += weights::SHARES_GPU;
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
