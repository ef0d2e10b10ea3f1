//! Indexes over nodes: the best node is at the root of a tournament tree, and a change of one node costs the way from its
//! leaf to the root. Indexes catch up with the ledger's touch log when they are asked.
//!
//! Shapes that many pods have get an index of their own. When there are more shapes than indexes are kept, the others use
//! the index of their GPU request alone: it says what a node is worth at most, and the exact worth is found for the few
//! nodes that come first.

use rustc_hash::FxHashMap;

use crate::ids::{NodeId, ShapeId};
use crate::ledger::Ledger;
use crate::model::PlacementStrategies;
use crate::place::fit::{Worth, kind_check, static_check, worth};
use crate::place::pod::{best_of, best_ranked};
use crate::tables::{GpuKind, Node, Shape};

/// More indexes of shapes than this are not kept, so that memory per node stays bounded.
const SHAPES_MAX: usize = 48;
/// More indexes of GPU requests than this are not kept.
const REQUESTS_MAX: usize = 32;
/// So many nodes may refuse one after the other until the rest is ordered all at once.
const REFUSED_MAX: usize = 32;

/// The indexes in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShapeIndexes {
    indexes: Vec<ShapeIndex>,
    /// By shape.
    slots: Vec<Slot>,
    /// Indexes of GPU requests.
    requests: FxHashMap<GpuKind, ShapeIndex>,
    placement: Option<PlacementStrategies>,
    clock: u64,
}

/// Where the index of a shape is.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    own: Option<u8>,
    /// Nodes passed over for want of an own index.
    passed: u32,
}

/// All nodes by their worth for one shape.
#[derive(Clone, Debug)]
pub(crate) struct ShapeIndex {
    /// The shape that has the index; `None` for an index of a GPU request.
    shape: Option<ShapeId>,
    placement: PlacementStrategies,
    cursor: Option<u64>,
    last_use: u64,
    /// Number of leaves, a power of two.
    leaves: usize,
    /// Tournament tree: children of `i` are `2i` and `2i + 1`, leaf of node `n` is `leaves + n`.
    tree: Vec<Worth>,
    /// What the node's spec means for the shape; `None` = keeps it away.
    preference: Vec<Option<i16>>,
}

/// The nodes in the order of their worth for a shape.
pub(crate) enum Ranking<'i> {
    /// By an index of the shape.
    Own(&'i mut ShapeIndex),
    /// By an index of its GPU request, which says what a node is worth at most.
    Request {
        index: &'i mut ShapeIndex,
        shape: ShapeId,
        passed: &'i mut u32,
    },
}

impl ShapeIndexes {
    /// The ranking of nodes for a shape, up to date.
    pub(crate) fn fresh(&mut self, ledger: &Ledger, shape: ShapeId, placement: PlacementStrategies) -> Ranking<'_> {
        if self.placement != Some(placement) {
            self.clear();
            self.placement = Some(placement);
        }
        self.clock += 1;
        if self.slots.len() < ledger.shapes.len() {
            self.slots.resize(ledger.shapes.len(), Slot::default());
        }
        let slot = self.slots[shape.index()];
        let own = match slot.own {
            Some(own) => Some(usize::from(own)),
            None if self.deserves_own(ledger, shape, slot) => Some(self.assign(ledger, shape, placement)),
            None => None,
        };
        if let Some(own) = own {
            let index = &mut self.indexes[own];
            index.last_use = self.clock;
            index.catch_up(ledger, ledger.shape(shape), |node, shape| {
                static_check(node, shape).ok()
            });
            return Ranking::Own(index);
        }
        let request = Shape::of_gpus(ledger.shape(shape).gpu.rounded_down());
        if !self.requests.contains_key(&request.gpu) && self.requests.len() >= REQUESTS_MAX {
            self.requests.clear();
        }
        let index = self
            .requests
            .entry(request.gpu)
            .or_insert_with(|| ShapeIndex::new(None, placement));
        index.catch_up(ledger, &request, |node, shape| kind_check(node, shape).ok().map(|()| 0));
        Ranking::Request {
            index,
            shape,
            passed: &mut self.slots[shape.index()].passed,
        }
    }

    /// Whether to make an index for a shape that has none: there is room for one more, or the index of its request led to
    /// too many nodes in vain. Preferred nodes raise the worth of a node, which the index of a request does not know of.
    fn deserves_own(&self, ledger: &Ledger, shape: ShapeId, slot: Slot) -> bool {
        self.indexes.len() < SHAPES_MAX
            || slot.passed as usize > ledger.nodes.len()
            || !ledger.shape(shape).constraints.preferred_nodes.is_empty()
    }

    /// A slot for one more shape: a new one, or that of the shape asked for longest ago.
    fn assign(&mut self, ledger: &Ledger, shape: ShapeId, placement: PlacementStrategies) -> usize {
        let index = ShapeIndex::new(Some(shape), placement);
        let slot = if self.indexes.len() < SHAPES_MAX {
            self.indexes.push(index);
            self.indexes.len() - 1
        } else {
            ledger.note_work(ledger.present_nodes);
            let oldest = (0..SHAPES_MAX).min_by_key(|slot| self.indexes[*slot].last_use);
            let slot = oldest.expect("there is at least one index");
            let old = std::mem::replace(&mut self.indexes[slot], index);
            if let Some(old) = old.shape {
                self.slots[old.index()].own = None;
                self.slots[old.index()].passed = 0;
            }
            slot
        };
        self.slots[shape.index()].own = Some(slot as u8);
        self.slots[shape.index()].passed = 0;
        slot
    }

    /// Forgets everything: nodes came, went or changed their spec.
    pub(crate) fn clear(&mut self) {
        self.indexes.clear();
        self.slots.clear();
        self.requests.clear();
    }
}

impl Ranking<'_> {
    /// Whether it is known that no node can take the shape.
    pub(crate) fn is_barren(&self) -> bool {
        match self {
            Ranking::Own(index) | Ranking::Request { index, .. } => index.is_barren(),
        }
    }

    /// The worth of one node.
    pub(crate) fn worth(&self, ledger: &Ledger, node: NodeId) -> Worth {
        match self {
            Ranking::Own(index) => index.worth(node),
            Ranking::Request { index, shape, .. } => index.exact(ledger, *shape, node),
        }
    }

    /// The best of these nodes that `accept` agrees to.
    pub(crate) fn best_among<T>(
        &self,
        ledger: &Ledger,
        nodes: &[NodeId],
        accept: impl FnMut(NodeId) -> Option<T>,
    ) -> Option<T> {
        let nodes = nodes.iter().copied();
        match self {
            Ranking::Own(index) => best_of(nodes, |node| index.worth(node), accept),
            Ranking::Request { index, shape, .. } => best_of(nodes, |node| index.exact(ledger, *shape, node), accept),
        }
    }

    /// The best node that `accept` agrees to.
    pub(crate) fn best<T>(&mut self, ledger: &Ledger, accept: impl FnMut(NodeId) -> Option<T>) -> Option<T> {
        match self {
            Ranking::Own(index) => index.best(ledger, accept),
            Ranking::Request { index, shape, passed } => {
                let (found, tried) = index.best_below_bound(ledger, *shape, accept);
                // Each is looked at and has its way to the root of the tree twice.
                ledger.note_work(4 * tried);
                **passed = passed.saturating_add(tried as u32);
                found
            }
        }
    }
}

impl ShapeIndex {
    fn new(shape: Option<ShapeId>, placement: PlacementStrategies) -> ShapeIndex {
        ShapeIndex {
            shape,
            placement,
            cursor: None,
            last_use: 0,
            leaves: 0,
            tree: Vec::new(),
            preference: Vec::new(),
        }
    }

    /// Follows what changed in the ledger. `check` says what the node's spec means for the shape.
    fn catch_up(&mut self, ledger: &Ledger, shape: &Shape, check: impl Fn(&Node, &Shape) -> Option<i64>) {
        /// So far ahead a node is looked for that is touched once more: about as long as to evaluate it takes.
        const AHEAD: usize = 16;
        let touched = self.cursor.and_then(|cursor| ledger.changed_nodes.since(cursor));
        match touched {
            Some(touched) if touched.len() <= self.leaves => {
                for (at, node) in touched.iter().enumerate() {
                    // Packing touches the same few nodes again and again: only the last time counts.
                    if !touched[at + 1..].iter().take(AHEAD).any(|later| later == node) {
                        let worth = self.evaluate(ledger, shape, *node);
                        self.set(*node, worth);
                    }
                }
            }
            Some(_) | None => self.rebuild(ledger, shape, check),
        }
        self.cursor = Some(ledger.changed_nodes.end());
    }

    fn rebuild(&mut self, ledger: &Ledger, shape: &Shape, check: impl Fn(&Node, &Shape) -> Option<i64>) {
        if self.preference.len() != ledger.nodes.len() {
            let preference = |node| check(node, shape).map(|points| points as i16);
            self.preference = ledger.nodes.iter().map(preference).collect();
            self.leaves = ledger.nodes.len().next_power_of_two();
            self.tree = vec![Worth::UNFIT; 2 * self.leaves];
        }
        for at in 0..ledger.nodes.len() {
            self.tree[self.leaves + at] = self.evaluate(ledger, shape, NodeId::new(at));
        }
        for at in (1..self.leaves).rev() {
            self.tree[at] = self.tree[2 * at].max(self.tree[2 * at + 1]);
        }
    }

    fn evaluate(&self, ledger: &Ledger, shape: &Shape, node: NodeId) -> Worth {
        match self.preference[node.index()] {
            Some(preference) => worth(ledger.node(node), shape, i64::from(preference), self.placement),
            None => Worth::UNFIT,
        }
    }

    /// The worth of a node for a shape of which this is the index of its GPU request.
    fn exact(&self, ledger: &Ledger, shape: ShapeId, node: NodeId) -> Worth {
        if self.worth(node) == Worth::UNFIT {
            return Worth::UNFIT;
        }
        let (row, shape) = (ledger.node(node), ledger.shape(shape));
        match static_check(row, shape) {
            Ok(preference) => worth(row, shape, preference, self.placement),
            Err(_) => Worth::UNFIT,
        }
    }

    fn set(&mut self, node: NodeId, worth: Worth) {
        let mut at = self.leaves + node.index();
        if self.tree[at] == worth {
            return;
        }
        self.tree[at] = worth;
        while at > 1 {
            at /= 2;
            let best = self.tree[2 * at].max(self.tree[2 * at + 1]);
            if self.tree[at] == best {
                return;
            }
            self.tree[at] = best;
        }
    }

    /// The worth of one node.
    fn worth(&self, node: NodeId) -> Worth {
        self.tree[self.leaves + node.index()]
    }

    /// Whether no node can take the shape.
    fn is_barren(&self) -> bool {
        self.leaves == 0 || self.tree[1] == Worth::UNFIT
    }

    /// The best node that `accept` agrees to, best first.
    fn best<T>(&mut self, ledger: &Ledger, mut accept: impl FnMut(NodeId) -> Option<T>) -> Option<T> {
        let mut refused: Vec<(NodeId, Worth)> = Vec::new();
        let mut found = None;
        while !self.is_barren() {
            if refused.len() == REFUSED_MAX {
                ledger.note_work(ledger.present_nodes / 8);
                found = best_ranked(self.ranked(), &mut accept);
                break;
            }
            let node = self.champion();
            found = accept(node);
            if found.is_some() {
                break;
            }
            refused.push((node, self.worth(node)));
            self.set(node, Worth::UNFIT);
        }
        for (node, worth) in refused {
            self.set(node, worth);
        }
        found
    }

    /// The best node for a shape of which this is the index of its GPU request, and how many nodes were looked at. The
    /// search ends at the node that can't be worth more than the best one so far.
    fn best_below_bound<T>(
        &mut self,
        ledger: &Ledger,
        shape: ShapeId,
        mut accept: impl FnMut(NodeId) -> Option<T>,
    ) -> (Option<T>, usize) {
        let mut passed: Vec<(NodeId, Worth)> = Vec::new();
        let mut best: Option<(Worth, T)> = None;
        while !self.is_barren() {
            let node = self.champion();
            let bound = self.worth(node);
            if best.as_ref().is_some_and(|(worth, _)| *worth >= bound) {
                break;
            }
            let worth = self.exact(ledger, shape, node);
            if worth != Worth::UNFIT
                && best.as_ref().is_none_or(|(best, _)| worth > *best)
                && let Some(found) = accept(node)
            {
                best = Some((worth, found));
            }
            passed.push((node, bound));
            self.set(node, Worth::UNFIT);
        }
        let tried = passed.len();
        for (node, worth) in passed {
            self.set(node, worth);
        }
        (best.map(|(_, found)| found), tried)
    }

    /// All nodes that can take the shape.
    fn ranked(&self) -> Vec<(Worth, NodeId)> {
        let leaves = self.tree[self.leaves..].iter().enumerate();
        leaves
            .filter(|(_, worth)| **worth != Worth::UNFIT)
            .map(|(at, worth)| (*worth, NodeId::new(at)))
            .collect()
    }

    fn champion(&self) -> NodeId {
        let (mut at, best) = (1, self.tree[1]);
        while at < self.leaves {
            at = if self.tree[2 * at] == best { 2 * at } else { 2 * at + 1 };
        }
        NodeId::new(at - self.leaves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clusters;
    use crate::model::{
        Constraints, Event, GpuRequest, Labels, PlacementStrategy, PodKind, PodPhase, PodSpec, Requests, TaskRank,
    };

    /// The best node by an index of the shape, and by the index of its GPU request.
    fn best(ledger: &Ledger, shape: ShapeId, placement: PlacementStrategies) -> [Option<NodeId>; 2] {
        let mut own = ShapeIndex::new(Some(shape), placement);
        own.catch_up(ledger, ledger.shape(shape), |node, shape| {
            static_check(node, shape).ok()
        });
        let request = Shape::of_gpus(ledger.shape(shape).gpu.rounded_down());
        let mut bound = ShapeIndex::new(None, placement);
        bound.catch_up(ledger, &request, |node, shape| kind_check(node, shape).ok().map(|()| 0));
        [own.best(ledger, Some), bound.best_below_bound(ledger, shape, Some).0]
    }

    #[test]
    fn the_index_of_a_request_leads_to_the_same_node_as_an_index_of_the_shape() {
        use PlacementStrategy::{Binpack, Spread};
        let case = clusters::hostile::distinct(24);
        for (gpu, cpu) in [(Binpack, Binpack), (Spread, Spread)] {
            let placement = PlacementStrategies { gpu, cpu };
            let mut cluster = case.cluster.clone();
            let mut config = case.config.clone();
            config.placement = placement;
            // Pods have their places: on many nodes a device has room for less than the request.
            cluster.cycle(clusters::NOW, &config);
            let ledger = &cluster.ledger;
            assert!(ledger.shapes.len() > SHAPES_MAX);
            for shape in (0..ledger.shapes.len()).map(ShapeId::new) {
                let [own, request] = best(ledger, shape, placement);
                assert_eq!(own, request, "{:?}", ledger.shape(shape));
            }
        }
    }

    /// A pod with a part of a GPU, in thousandths.
    fn part_of_gpu(thousandths: i64, node: Option<&str>) -> PodSpec {
        let uid = format!("{thousandths}-{node:?}");
        PodSpec {
            namespace: "n".to_owned(),
            name: uid.clone(),
            created: clusters::NOW,
            kind: PodKind::Workload,
            gang: None,
            sub_group: None,
            phase: if node.is_some() {
                PodPhase::Running
            } else {
                PodPhase::Pending
            },
            node: node.map(str::to_owned),
            deletion: None,
            gated: false,
            bind_in_flight: None,
            gpu_groups: node.map(|_| uid.clone()).into_iter().collect(),
            requests: Requests {
                gpu: GpuRequest::Fraction {
                    billionths: thousandths * 1_000_000,
                    devices: 1,
                },
                ..Requests::default()
            },
            constraints: Constraints::default(),
            labels: Labels::new(),
            rank: TaskRank::default(),
            nominated_node: None,
            refused: None,
            uid,
        }
    }

    #[test]
    fn a_node_that_is_worth_less_than_its_bound_is_not_taken_for_the_best() {
        let mut case = clusters::nodes(2);
        // The request is rounded down to 0.268: the device of the first node has room for that, and not for 0.28.
        for pod in [
            part_of_gpu(730, Some("node-000000")),
            part_of_gpu(500, Some("node-000001")),
            part_of_gpu(280, None),
        ] {
            case.cluster.apply(Event::Pod(pod));
        }
        case.cluster.rank_nodes();
        let ledger = &case.cluster.ledger;
        let wanted = ledger.pod(case.cluster.pod_ids["280-None"]).shape;
        let expect = Some(NodeId::new(1));
        assert_eq!(best(ledger, wanted, case.config.placement), [expect, expect]);
    }

    #[test]
    fn the_best_node_is_found_behind_many_that_refuse() {
        let mut cluster = clusters::nodes(200).cluster;
        let case = clusters::fill(1);
        let pods = case.cluster.ledger.shapes[0].clone();
        cluster.ledger.shapes.push(pods);
        cluster.rank_nodes();
        let placement = case.config.placement;
        let mut own = ShapeIndex::new(Some(ShapeId::new(0)), placement);
        own.catch_up(&cluster.ledger, cluster.ledger.shape(ShapeId::new(0)), |node, shape| {
            static_check(node, shape).ok()
        });
        let before = own.tree.clone();
        for last in [0, REFUSED_MAX, 150] {
            let accept = |node: NodeId| (node.index() >= last).then_some(node.index());
            assert_eq!(own.best(&cluster.ledger, accept), Some(last));
        }
        assert_eq!(own.best(&cluster.ledger, |_| None::<()>), None);
        assert!(own.tree == before, "every node has its worth again");
    }
}
