//! The policies of the published experiments, with their scores as published: whole numbers from 0 to 100, so that ties are frequent. docs/placement.md
//! has the sources.

use smallvec::SmallVec;

use super::fragmentation::{NodeState, TypicalPods};
use super::{GPU_MILLI, NodeMarks, TracePod};
use crate::fit::fits;
use crate::ids::{GpuGroupId, NodeId, PodId};
use crate::ledger::{Ledger, NodeAt};
use crate::place::score::NodeScore;
use crate::place::shape_index::{ScoreRules, ShapeIndex};
use crate::place::static_check;
use crate::tables::{GpuGroupIds, Node, Shape, When};

/// The largest CPU and GPUs of a node, by which scores are normalised.
const NODE_CPU_MILLI: f64 = 128_000.0;
const NODE_GPU_MILLI: i64 = 8_000;

/// A published policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishedPolicy {
    /// Any node that fits, and any of its GPUs that fit.
    Random,
    /// The node with the least free CPU and GPUs after the pod.
    BestFit,
    /// The node with the smallest product of what is free and what the pod requests.
    DotProduct,
    /// GPUs in use before free GPUs of nodes in use before free nodes.
    GpuPacking,
    /// Nodes with pods that request as many GPUs.
    GpuClustering,
    /// The node whose fragmentation grows least ("Beware of Fragmentation", USENIX ATC '23).
    Fgd,
}

/// A policy at work.
pub(super) struct Published {
    policy: PublishedPolicy,
    typical: TypicalPods,
    randomness: Randomness,
}

/// Where a pod goes: GPU groups have the numbers of their GPUs as ids.
pub(super) type Place = (NodeId, GpuGroupIds);

impl Published {
    pub(super) fn new(policy: PublishedPolicy, typical: TypicalPods, seed: u64) -> Published {
        Published {
            policy,
            typical,
            randomness: Randomness(seed),
        }
    }

    /// The place of a pod; `None` if it fits nowhere. `indexes` = the indexes of nodes by shape.
    pub(super) fn choose(
        &mut self,
        (ledger, marks): (&Ledger, &[NodeMarks]),
        indexes: &mut Vec<Option<ShapeIndex>>,
        (id, pod): (PodId, &TracePod),
    ) -> Option<Place> {
        let shape = ledger.pod(id).shape;
        if indexes.len() <= shape.index() {
            indexes.resize(shape.index() + 1, None);
        }
        let index = indexes[shape.index()].get_or_insert_with(|| ShapeIndex::new(Some(shape)));
        let rules = PublishedRules {
            policy: self.policy,
            typical: &self.typical,
            marks,
            pod,
        };
        index.catch_up(ledger, ledger.shape(shape), &rules);
        if index.has_no_candidates() {
            return None;
        }
        let node = match self.policy {
            PublishedPolicy::Random => {
                let fitting = index.fitting_nodes();
                fitting[self.randomness.below(fitting.len())].1
            }
            PublishedPolicy::BestFit
            | PublishedPolicy::DotProduct
            | PublishedPolicy::GpuPacking
            | PublishedPolicy::GpuClustering
            | PublishedPolicy::Fgd => index.best_node(),
        };
        let mut groups = GpuGroupIds::new();
        if pod.shares_gpu() {
            let state = NodeState::numbered(ledger.node(node), &marks[node.index()]);
            let gpu = self.gpu(&state, pod);
            groups.push(GpuGroupId::new(gpu as u128));
        }
        Some((node, groups))
    }

    /// The GPU of a node that a pod gets that shares one.
    fn gpu(&mut self, node: &NodeState, pod: &TracePod) -> usize {
        let fitting: SmallVec<[usize; 8]> = fitting_gpus(node, pod).collect();
        let chosen = match self.policy {
            PublishedPolicy::Random => Some(fitting[self.randomness.below(fitting.len())]),
            PublishedPolicy::Fgd => {
                let before = self.typical.fragments(node);
                let score = |gpu: &usize| fgd_points(&self.typical, before, &node.with(pod, Some(*gpu)));
                // The first of the best: `max_by_key` alone would return the last.
                fitting.into_iter().rev().max_by_key(score)
            }
            PublishedPolicy::BestFit
            | PublishedPolicy::DotProduct
            | PublishedPolicy::GpuPacking
            | PublishedPolicy::GpuClustering => fitting.into_iter().min_by_key(|gpu| node.gpus[*gpu]),
        };
        chosen.expect("the pod fits on the node")
    }
}

/// The GPUs on which there is room for a pod.
fn fitting_gpus<'n>(node: &'n NodeState, pod: &TracePod) -> impl Iterator<Item = usize> + 'n {
    let need = i64::from(pod.gpu_milli);
    let gpus = node.gpus.iter().enumerate();
    gpus.filter(move |(_, free)| **free >= need).map(|(number, _)| number)
}

/// The scores of a policy for one pod.
struct PublishedRules<'p> {
    policy: PublishedPolicy,
    typical: &'p TypicalPods,
    marks: &'p [NodeMarks],
    pod: &'p TracePod,
}

impl ScoreRules for PublishedRules<'_> {
    fn check(&self, node: &Node, shape: &Shape) -> Option<i64> {
        static_check(node, shape).ok()
    }

    fn score(&self, NodeAt { id, row, .. }: NodeAt<'_>, shape: &Shape, _: i64) -> NodeScore {
        if fits(row, shape, When::Now).is_err() {
            return NodeScore::UNFIT;
        }
        let marks = &self.marks[id.index()];
        NodeScore::of_packing(self.points(row, marks), row.rank)
    }
}

impl PublishedRules<'_> {
    fn points(&self, node: &Node, marks: &NodeMarks) -> u64 {
        let pod = self.pod;
        let points = match self.policy {
            PublishedPolicy::Random => 0,
            PublishedPolicy::BestFit => best_fit(&NodeState::of(node, marks), pod),
            PublishedPolicy::DotProduct => dot_product(&NodeState::of(node, marks), pod),
            PublishedPolicy::GpuPacking => gpu_packing(&NodeState::numbered(node, marks), pod),
            PublishedPolicy::GpuClustering => gpu_clustering(&NodeState::of(node, marks), marks, pod),
            PublishedPolicy::Fgd => fgd(self.typical, &NodeState::numbered(node, marks), pod),
        };
        u64::try_from(points).unwrap_or(0)
    }
}

fn best_fit(node: &NodeState, pod: &TracePod) -> i64 {
    let cpu = (node.cpu_milli - pod.cpu_milli) as f64 / NODE_CPU_MILLI;
    let gpus = (node.free_milli() - pod.gpu_milli_in_all()) as f64 / NODE_GPU_MILLI as f64;
    (100.0 * (1.0 - (0.5 * cpu + 0.5 * gpus))) as i64
}

fn dot_product(node: &NodeState, pod: &TracePod) -> i64 {
    let of_node = NODE_GPU_MILLI as f64;
    let cpu = node.cpu_milli as f64 / NODE_CPU_MILLI * (pod.cpu_milli as f64 / NODE_CPU_MILLI);
    let gpus = node.free_milli() as f64 / of_node * (pod.gpu_milli_in_all() as f64 / of_node);
    (100.0 * (1.0 - 0.5 * (cpu + gpus))) as i64
}

fn gpu_packing(node: &NodeState, pod: &TracePod) -> i64 {
    if pod.gpus == 0 {
        return 0;
    }
    let free = node.free_gpus().count() as i64;
    if free == node.gpus.len() as i64 {
        return (33 - free).max(free);
    }
    let mut fitting: SmallVec<[i64; 8]> = fitting_gpus(node, pod).map(|gpu| node.gpus[gpu]).collect();
    fitting.sort_unstable();
    fitting.truncate(pod.gpus as usize);
    let opened = fitting.iter().filter(|free| **free == GPU_MILLI).count() as i64;
    if opened > 0 {
        return (50 - opened).max(33);
    }
    let percent: i64 = fitting.iter().map(|free| free * 100 / GPU_MILLI).sum();
    (100 - percent / 10).max(50)
}

fn gpu_clustering(node: &NodeState, marks: &NodeMarks, pod: &TracePod) -> i64 {
    if pod.gpus == 0 {
        return 0;
    }
    let used = 25 * (NODE_GPU_MILLI - node.free_milli()) / NODE_GPU_MILLI;
    let own = pod.kind_bit();
    let bonus = match marks.kinds_of_pods {
        0 => 25,
        kinds if kinds == own => 75,
        kinds if kinds & own != 0 => 50,
        _ => 0,
    };
    used + bonus
}

fn fgd(typical: &TypicalPods, node: &NodeState, pod: &TracePod) -> i64 {
    let before = typical.fragments(node);
    if !pod.shares_gpu() {
        return fgd_points(typical, before, &node.with(pod, None));
    }
    let mut best = 0;
    let mut tried: SmallVec<[i64; 8]> = SmallVec::new();
    for gpu in fitting_gpus(node, pod) {
        if !tried.contains(&node.gpus[gpu]) {
            tried.push(node.gpus[gpu]);
            best = best.max(fgd_points(typical, before, &node.with(pod, Some(gpu))));
        }
    }
    best
}

/// The points for a change of fragmentation: 50 for none, more if it shrinks.
fn fgd_points(typical: &TypicalPods, before: f64, after: &NodeState) -> i64 {
    let shrinks = (before - typical.fragments(after)) / GPU_MILLI as f64;
    (100.0 / (1.0 + (-shrinks).exp())) as i64
}

/// A sequence of numbers that a seed determines (splitmix64).
struct Randomness(u64);

impl Randomness {
    /// A number below `count`.
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        ((u128::from(bits) * count as u128) >> 64) as usize
    }
}
