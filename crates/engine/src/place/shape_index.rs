//! Indexes over nodes by score. An index is a tournament tree: the root has the highest score, and a change of one node
//! updates the path from its leaf to the root. An index follows the ledger by its log of changed nodes when it is used.
//!
//! Up to [`SHAPES_MAX`] shapes have an index of their own. The other shapes use the index of their GPU request alone, which
//! has an upper bound of each node's score; the exact score is computed for the few nodes with the highest bounds.

use rustc_hash::FxHashMap;

use crate::ids::{NodeId, ShapeId};
use crate::ledger::{Ledger, NodeAt};
use crate::model::{PlacementStrategies, ShareTerms};
use crate::place::node_check::{kind_check, static_check};
use crate::place::pod::{best_of, best_of_fitting};
use crate::place::score::{NodeScore, NodeScoring, node_score};
use crate::tables::{GpuKind, Node, Shape};

/// The most indexes of shapes, to bound the memory per node.
const SHAPES_MAX: usize = 48;
/// The most indexes of shapes where the index of a GPU request gives no useful bound, and the most leaves of all of them above
/// [`SHAPES_MAX`]: 32 bytes each.
const UNBOUNDED_SHAPES_MAX: usize = 1024;
const LEAVES_MAX: usize = 1 << 21;
/// The most indexes of GPU requests.
const REQUESTS_MAX: usize = 32;
/// An index reads the log of changed nodes up to this many entries per leaf, and else scores all nodes.
const READ_MAX: usize = 4;
/// After this many rejected nodes the search sorts the rest at once, since each rejection updates the tree twice.
const REJECTED_MAX: usize = 32;

/// All indexes. The cluster holds them over cycles.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShapeIndexes {
    indexes: Vec<ShapeIndex>,
    /// By shape id.
    by_shape: Vec<ShapeEntry>,
    /// Indexes of GPU requests.
    requests: FxHashMap<(GpuKind, ShareTerms), ShapeIndex>,
    /// The placement strategies with which all scores were computed.
    placement: Option<PlacementStrategies>,
    /// Counts uses; [`ShapeIndex::last_use`] is a value of it.
    clock: u64,
}

/// Which index a shape uses.
#[derive(Clone, Copy, Debug, Default)]
struct ShapeEntry {
    /// Position in [`ShapeIndexes::indexes`]; `None` = the shape uses the index of its GPU request.
    own: Option<u16>,
    /// Nodes visited through the index of the GPU request since the shape lost its own index.
    visited: u32,
}

/// All nodes by their score for one shape.
#[derive(Clone, Debug)]
pub(crate) struct ShapeIndex {
    /// The shape that has the index; `None` for an index of a GPU request.
    shape: Option<ShapeId>,
    cursor: Option<u64>,
    last_use: u64,
    /// Number of leaves, a power of two.
    leaves: usize,
    /// A complete binary tree of the best nodes: children of `i` are `2i` and `2i + 1`, leaf of node `n` is `leaves + n`.
    tree: Vec<NodeScore>,
    /// By node: the result of the check of its spec; `None` = the node rejects the shape.
    preference: Vec<Option<i16>>,
}

/// The nodes by score for a shape.
pub(crate) enum Ranking<'i> {
    /// By an index of the shape.
    Own(&'i mut ShapeIndex),
    /// By an index of its GPU request, which has upper bounds of the scores.
    Request {
        index: &'i mut ShapeIndex,
        shape: ShapeId,
        visited: &'i mut u32,
        scoring: NodeScoring<'i>,
    },
}

impl ShapeIndexes {
    /// The ranking of nodes for a shape, up to date.
    pub(crate) fn ranking_for<'i>(
        &'i mut self,
        ledger: &Ledger,
        shape: ShapeId,
        scoring: NodeScoring<'i>,
    ) -> Ranking<'i> {
        if self.placement != Some(scoring.strategies) {
            self.clear();
            self.placement = Some(scoring.strategies);
        }
        self.clock += 1;
        if self.by_shape.len() < ledger.shapes.len() {
            self.by_shape.resize(ledger.shapes.len(), ShapeEntry::default());
        }
        let position = self.by_shape[shape.index()];
        let own = match position.own {
            Some(own) => Some(usize::from(own)),
            None if self.needs_own_index(ledger, shape, position, &scoring) => {
                Some(self.add_own_index(ledger, shape, &scoring))
            }
            None => None,
        };
        if let Some(own) = own {
            let index = &mut self.indexes[own];
            index.last_use = self.clock;
            index.catch_up(ledger, ledger.shape(shape), &ShapeRules(&scoring));
            return Ranking::Own(index);
        }
        let request = ledger.shape(shape).gpu_request();
        let key = (request.gpu, request.constraints.share);
        if !self.requests.contains_key(&key) && self.requests.len() >= REQUESTS_MAX {
            self.requests.clear();
        }
        let index = self.requests.entry(key).or_insert_with(|| ShapeIndex::new(None));
        index.catch_up(ledger, &request, &RequestRules(&scoring));
        Ranking::Request {
            index,
            shape,
            visited: &mut self.by_shape[shape.index()].visited,
            scoring,
        }
    }

    /// Whether a shape without an index gets one: the number of indexes is below its maximum, or the index of the GPU
    /// request made too many visits, or the shape prefers nodes, which raises scores above the bounds of that index.
    fn needs_own_index(
        &self,
        ledger: &Ledger,
        shape: ShapeId,
        position: ShapeEntry,
        scoring: &NodeScoring<'_>,
    ) -> bool {
        self.indexes.len() < shapes_max(ledger, scoring)
            || position.visited as usize > ledger.nodes.len()
            || !ledger.shape(shape).constraints.preferred_nodes.is_empty()
    }

    /// Adds an index for a shape and returns its position. If there are too many, it replaces the least recently used one.
    fn add_own_index(&mut self, ledger: &Ledger, shape: ShapeId, scoring: &NodeScoring<'_>) -> usize {
        let index = ShapeIndex::new(Some(shape));
        let position = if self.indexes.len() < shapes_max(ledger, scoring) {
            self.indexes.push(index);
            self.indexes.len() - 1
        } else {
            ledger.note_work(ledger.present_nodes);
            let oldest = (0..self.indexes.len()).min_by_key(|position| self.indexes[*position].last_use);
            let position = oldest.expect("there is at least one index");
            let old = std::mem::replace(&mut self.indexes[position], index);
            if let Some(old) = old.shape {
                self.by_shape[old.index()].own = None;
                self.by_shape[old.index()].visited = 0;
            }
            position
        };
        self.by_shape[shape.index()].own = Some(position as u16);
        self.by_shape[shape.index()].visited = 0;
        position
    }

    /// Drops all indexes after a node was added, removed or changed its spec.
    pub(crate) fn clear(&mut self) {
        self.indexes.clear();
        self.by_shape.clear();
        self.requests.clear();
    }
}

/// How many shapes have an index of their own at most.
fn shapes_max(ledger: &Ledger, scoring: &NodeScoring<'_>) -> usize {
    if scoring.is_monotonic() {
        return SHAPES_MAX;
    }
    let leaves = ledger.nodes.len().next_power_of_two();
    (LEAVES_MAX / leaves).clamp(SHAPES_MAX, UNBOUNDED_SHAPES_MAX)
}

/// How an index scores nodes.
pub(crate) trait ScoreRules {
    /// The check of a node's spec: its preference; `None` = the node rejects the shape.
    fn check(&self, node: &Node, shape: &Shape) -> Option<i64>;
    /// The score of a node with this preference.
    fn score(&self, node: NodeAt<'_>, shape: &Shape, preference: i64) -> NodeScore;
}

/// The exact scores of a shape.
struct ShapeRules<'s>(&'s NodeScoring<'s>);

impl ScoreRules for ShapeRules<'_> {
    fn check(&self, node: &Node, shape: &Shape) -> Option<i64> {
        static_check(node, shape).ok()
    }

    fn score(&self, node: NodeAt<'_>, shape: &Shape, preference: i64) -> NodeScore {
        node_score(node, shape, preference, self.0)
    }
}

/// Upper bounds of the scores of all shapes that request at least these GPUs.
struct RequestRules<'s>(&'s NodeScoring<'s>);

impl ScoreRules for RequestRules<'_> {
    fn check(&self, node: &Node, shape: &Shape) -> Option<i64> {
        kind_check(node, shape).ok().map(|()| 0)
    }

    fn score(&self, node: NodeAt<'_>, shape: &Shape, preference: i64) -> NodeScore {
        let score = node_score(node, shape, preference, self.0);
        if self.0.is_monotonic() {
            score
        } else {
            score.with_best_packing()
        }
    }
}

impl Ranking<'_> {
    /// Whether the index shows that the shape fits on no node.
    pub(crate) fn has_no_candidates(&self) -> bool {
        match self {
            Ranking::Own(index) | Ranking::Request { index, .. } => index.has_no_candidates(),
        }
    }

    /// The score of one node.
    pub(crate) fn score(&self, ledger: &Ledger, node: NodeId) -> NodeScore {
        match self {
            Ranking::Own(index) => index.score(node),
            Ranking::Request {
                index, shape, scoring, ..
            } => index.exact_score(ledger, *shape, node, scoring),
        }
    }

    /// The best of these nodes that `accept` accepts.
    pub(crate) fn best_among<T>(
        &self,
        ledger: &Ledger,
        nodes: &[NodeId],
        accept: impl FnMut(NodeId) -> Option<T>,
    ) -> Option<T> {
        let nodes = nodes.iter().copied();
        match self {
            Ranking::Own(index) => best_of(nodes, |node| index.score(node), accept),
            Ranking::Request {
                index, shape, scoring, ..
            } => best_of(nodes, |node| index.exact_score(ledger, *shape, node, scoring), accept),
        }
    }

    /// The best node that `accept` accepts.
    pub(crate) fn best<T>(&mut self, ledger: &Ledger, accept: impl FnMut(NodeId) -> Option<T>) -> Option<T> {
        match self {
            Ranking::Own(index) => index.best(ledger, accept),
            Ranking::Request {
                index,
                shape,
                visited,
                scoring,
            } => {
                let (found, tried) = index.best_below_bound(ledger, *shape, scoring, accept);
                // Each visit computes a score and updates the tree twice.
                ledger.note_work(4 * tried);
                **visited = visited.saturating_add(tried as u32);
                found
            }
        }
    }
}

impl ShapeIndex {
    pub(crate) fn new(shape: Option<ShapeId>) -> ShapeIndex {
        ShapeIndex {
            shape,
            cursor: None,
            last_use: 0,
            leaves: 0,
            tree: Vec::new(),
            preference: Vec::new(),
        }
    }

    /// Updates the scores of nodes that have changed in the ledger.
    pub(crate) fn catch_up(&mut self, ledger: &Ledger, shape: &Shape, rules: &impl ScoreRules) {
        let start = self.cursor;
        let changed = start.and_then(|cursor| Some((cursor, ledger.changed_nodes.since(cursor)?)));
        match changed {
            Some((start, changed)) if changed.len() <= READ_MAX * self.leaves => {
                for (at, node) in (start..).zip(changed) {
                    // Packing changes the same few nodes repeatedly: only the last entry of a node matters.
                    if ledger.changed_nodes.is_last(at, *node) {
                        let score = self.evaluate(ledger, shape, *node, rules);
                        self.set(*node, score);
                    }
                }
            }
            Some(_) | None => self.rebuild(ledger, shape, rules),
        }
        self.cursor = Some(ledger.changed_nodes.end());
    }

    fn rebuild(&mut self, ledger: &Ledger, shape: &Shape, rules: &impl ScoreRules) {
        if self.preference.len() != ledger.nodes.len() {
            let preference = |node| rules.check(node, shape).map(|points| points as i16);
            self.preference = ledger.nodes.iter().map(preference).collect();
            self.leaves = ledger.nodes.len().next_power_of_two();
            self.tree = vec![NodeScore::UNFIT; 2 * self.leaves];
        }
        for at in 0..ledger.nodes.len() {
            self.tree[self.leaves + at] = self.evaluate(ledger, shape, NodeId::new(at), rules);
        }
        for at in (1..self.leaves).rev() {
            self.tree[at] = self.tree[2 * at].max(self.tree[2 * at + 1]);
        }
    }

    fn evaluate(&self, ledger: &Ledger, shape: &Shape, node: NodeId, rules: &impl ScoreRules) -> NodeScore {
        match self.preference[node.index()] {
            Some(preference) => rules.score(ledger.node_at(node), shape, i64::from(preference)),
            None => NodeScore::UNFIT,
        }
    }

    /// The exact score of a node for a shape whose GPU request this index is for.
    fn exact_score(&self, ledger: &Ledger, shape: ShapeId, node: NodeId, scoring: &NodeScoring<'_>) -> NodeScore {
        if self.score(node) == NodeScore::UNFIT {
            return NodeScore::UNFIT;
        }
        let (row, shape) = (ledger.node(node), ledger.shape(shape));
        match static_check(row, shape) {
            Ok(preference) => node_score(ledger.node_at(node), shape, preference, scoring),
            Err(_) => NodeScore::UNFIT,
        }
    }

    fn set(&mut self, node: NodeId, score: NodeScore) {
        let mut at = self.leaves + node.index();
        if self.tree[at] == score {
            return;
        }
        self.tree[at] = score;
        while at > 1 {
            at /= 2;
            let best = self.tree[2 * at].max(self.tree[2 * at + 1]);
            if self.tree[at] == best {
                return;
            }
            self.tree[at] = best;
        }
    }

    /// The score of one node.
    fn score(&self, node: NodeId) -> NodeScore {
        self.tree[self.leaves + node.index()]
    }

    /// Whether the shape fits on no node.
    pub(crate) fn has_no_candidates(&self) -> bool {
        self.leaves == 0 || self.tree[1] == NodeScore::UNFIT
    }

    /// The best node that `accept` accepts. Rejected nodes are taken out of the tree until the search ends.
    fn best<T>(&mut self, ledger: &Ledger, mut accept: impl FnMut(NodeId) -> Option<T>) -> Option<T> {
        let mut rejected: Vec<(NodeId, NodeScore)> = Vec::new();
        let mut found = None;
        while !self.has_no_candidates() {
            if rejected.len() == REJECTED_MAX {
                ledger.note_work(ledger.present_nodes / 8);
                found = best_of_fitting(self.fitting_nodes(), &mut accept);
                break;
            }
            let node = self.best_node();
            found = accept(node);
            if found.is_some() {
                break;
            }
            rejected.push((node, self.score(node)));
            self.set(node, NodeScore::UNFIT);
        }
        for (node, score) in rejected {
            self.set(node, score);
        }
        found
    }

    /// The best node for a shape whose GPU request this index is for, and how many nodes were visited. The search ends at
    /// the first node whose bound is not above the best score so far.
    fn best_below_bound<T>(
        &mut self,
        ledger: &Ledger,
        shape: ShapeId,
        scoring: &NodeScoring<'_>,
        mut accept: impl FnMut(NodeId) -> Option<T>,
    ) -> (Option<T>, usize) {
        let mut visited: Vec<(NodeId, NodeScore)> = Vec::new();
        let mut best: Option<(NodeScore, T)> = None;
        while !self.has_no_candidates() {
            let node = self.best_node();
            let bound = self.score(node);
            if best.as_ref().is_some_and(|(score, _)| *score >= bound) {
                break;
            }
            let score = self.exact_score(ledger, shape, node, scoring);
            if score != NodeScore::UNFIT
                && best.as_ref().is_none_or(|(best, _)| score > *best)
                && let Some(found) = accept(node)
            {
                best = Some((score, found));
            }
            visited.push((node, bound));
            self.set(node, NodeScore::UNFIT);
        }
        let tried = visited.len();
        for (node, score) in visited {
            self.set(node, score);
        }
        (best.map(|(_, found)| found), tried)
    }

    /// All nodes on which the shape fits, with their scores.
    pub(crate) fn fitting_nodes(&self) -> Vec<(NodeScore, NodeId)> {
        let leaves = self.tree[self.leaves..].iter().enumerate();
        leaves
            .filter(|(_, score)| **score != NodeScore::UNFIT)
            .map(|(at, score)| (*score, NodeId::new(at)))
            .collect()
    }

    pub(crate) fn best_node(&self) -> NodeId {
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
    use crate::model::{Event, GpuFraction, GpuRequest, PlacementStrategy, PodPhase, PodSpec, Requests};

    /// The best node by an index of the shape, and by the index of its GPU request.
    fn best(ledger: &Ledger, shape: ShapeId, scoring: &NodeScoring<'_>) -> [Option<NodeId>; 2] {
        let mut own = ShapeIndex::new(Some(shape));
        own.catch_up(ledger, ledger.shape(shape), &ShapeRules(scoring));
        let request = ledger.shape(shape).gpu_request();
        let mut bound = ShapeIndex::new(None);
        bound.catch_up(ledger, &request, &RequestRules(scoring));
        [
            own.best(ledger, Some),
            bound.best_below_bound(ledger, shape, scoring, Some).0,
        ]
    }

    fn without_prices(strategies: PlacementStrategies) -> NodeScoring<'static> {
        NodeScoring {
            strategies,
            prices: None,
        }
    }

    #[test]
    fn the_index_of_a_request_leads_to_the_same_node_as_an_index_of_the_shape() {
        use PlacementStrategy::{Binpack, Frag, Spread};
        let case = clusters::hostile::distinct(24);
        for (gpu, cpu) in [(Binpack, Binpack), (Spread, Spread), (Frag, Frag)] {
            let placement = PlacementStrategies { gpu, cpu };
            let mut cluster = case.cluster.clone();
            let mut config = case.config.clone();
            config.placement = placement;
            // Pods have their places: on many nodes a GPU has less free memory than the request.
            cluster.cycle(clusters::NOW, &config);
            let ledger = &cluster.ledger;
            assert!(ledger.shapes.len() > SHAPES_MAX);
            assert_eq!(cluster.prices.prices().is_some(), gpu == Frag);
            for shape in (0..ledger.shapes.len()).map(ShapeId::new) {
                let scoring = NodeScoring {
                    strategies: placement,
                    prices: cluster.prices.prices(),
                };
                let [own, request] = best(ledger, shape, &scoring);
                assert_eq!(own, request, "{:?}", ledger.shape(shape));
            }
        }
    }

    /// A pod with a part of a GPU, in thousandths.
    fn part_of_gpu(thousandths: i64, node: Option<&str>) -> PodSpec {
        let uid = format!("{thousandths}-{node:?}");
        PodSpec {
            created: clusters::NOW,
            phase: if node.is_some() {
                PodPhase::Running
            } else {
                PodPhase::Pending
            },
            node: node.map(str::to_owned),
            gpu_groups: node.map(|_| uid.clone()).into_iter().collect(),
            requests: Requests {
                gpu: GpuRequest::Fraction {
                    fraction: GpuFraction::from_billionths(thousandths * 1_000_000),
                    devices: 1,
                },
                ..Requests::default()
            },
            ..PodSpec::new("n", &uid)
        }
    }

    #[test]
    fn a_node_that_is_worth_less_than_its_bound_is_not_taken_for_the_best() {
        let mut case = clusters::nodes(2);
        // The request is rounded down to 0.268: that fits on the GPU of the first node, 0.28 does not.
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
        assert_eq!(
            best(ledger, wanted, &without_prices(case.config.placement)),
            [expect, expect]
        );
    }

    #[test]
    fn the_best_node_is_found_behind_many_that_refuse() {
        let mut cluster = clusters::nodes(200).cluster;
        let case = clusters::fill(1);
        let pods = case.cluster.ledger.shapes[0].clone();
        cluster.ledger.shapes.push(pods);
        cluster.rank_nodes();
        let scoring = without_prices(case.config.placement);
        let mut own = ShapeIndex::new(Some(ShapeId::new(0)));
        let shape = cluster.ledger.shape(ShapeId::new(0));
        own.catch_up(&cluster.ledger, shape, &ShapeRules(&scoring));
        let before = own.tree.clone();
        for last in [0, REJECTED_MAX, 150] {
            let accept = |node: NodeId| (node.index() >= last).then_some(node.index());
            assert_eq!(own.best(&cluster.ledger, accept), Some(last));
        }
        assert_eq!(own.best(&cluster.ledger, |_| None::<()>), None);
        assert!(own.tree == before, "every node has its score again");
    }
}
