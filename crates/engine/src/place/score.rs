//! The score of a node for a shape.

use crate::fit::fits;
use crate::ledger::NodeAt;
use crate::model::{PlacementStrategies, PlacementStrategy};
use crate::place::frag::{COST_STEP, Prices};
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
    /// The packing of a node that loses nothing by the pod.
    const PACKING_EQUAL: u64 = 1 << (NodeScore::PACKING_BITS - 1);

    /// A score of this packing alone.
    pub(crate) fn of_packing(packing: u64, rank: u32) -> NodeScore {
        NodeScore::new(0, packing, rank)
    }

    /// The highest score of this weight.
    pub(crate) fn with_best_packing(self) -> NodeScore {
        if self == NodeScore::UNFIT {
            return self;
        }
        NodeScore(self.0 | ((1 << (NodeScore::PACKING_BITS + 32)) - 1))
    }

    /// The packing of strategy binpack: better the less is free.
    fn binpack(free: u64) -> u64 {
        (1u64 << NodeScore::PACKING_BITS).saturating_sub(1 + free)
    }

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

/// How nodes are scored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeScoring<'p> {
    pub(crate) strategies: PlacementStrategies,
    /// The prices of strategy `frag`; without prices it packs as binpack does.
    pub(crate) prices: Option<&'p Prices>,
}

impl<'p> NodeScoring<'p> {
    /// The prices, if the strategy uses them.
    pub(crate) fn prices_for(&self, strategy: PlacementStrategy) -> Option<&'p Prices> {
        match strategy {
            PlacementStrategy::Binpack | PlacementStrategy::Spread => None,
            PlacementStrategy::Frag => self.prices,
        }
    }

    /// Whether the score of a pod that needs more is never above that of a pod that needs less. Not so by prices: a pod that fills a node
    /// exactly may cost it less than a smaller pod.
    pub(crate) fn is_monotonic(&self) -> bool {
        self.strategies.gpu != PlacementStrategy::Frag && self.strategies.cpu != PlacementStrategy::Frag
    }
}

/// The score of a node with its current resources. `preference` comes from [`static_check`](super::static_check).
pub(crate) fn node_score(at: NodeAt<'_>, shape: &Shape, preference: i64, scoring: &NodeScoring<'_>) -> NodeScore {
    let node = at.row;
    let placement = scoring.strategies;
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
        PlacementStrategy::Binpack => NodeScore::binpack(free),
        PlacementStrategy::Frag => match scoring.prices.and_then(|prices| prices.cheapest(at, shape)) {
            Some(place) => {
                let cost = place.cost.div_euclid(COST_STEP);
                NodeScore::PACKING_EQUAL.saturating_add_signed(cost.saturating_neg())
            }
            None => NodeScore::binpack(free),
        },
        PlacementStrategy::Spread => ((u128::from(free) << 32) / u128::from(capacity.max(1) as u64)) as u64,
    };
    NodeScore::new(weight, packing, node.rank)
}
