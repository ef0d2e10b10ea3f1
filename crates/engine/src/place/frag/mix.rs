//! What the prices are made from: the kinds of nodes of the cluster, and the typical mix of its pods. Neither depends on the order of events.

use std::collections::BTreeMap;

use crate::fit::fits_empty_node;
use crate::ids::{NodeId, ShapeId};
use crate::ledger::Ledger;
use crate::model::PodKind;
use crate::place::frag::STEPS;
use crate::place::node_check::static_check;
use crate::tables::{GpuKind, Node, Shape};

/// The most kinds of nodes. Nodes of rarer kinds count as the most similar kind.
const KINDS_MAX: usize = 32;
/// The most types of pods; rarer ones are left out.
const TYPES_MAX: usize = 192;
/// The label with the model of the GPUs.
const MODEL_LABEL: &str = "nvidia.com/gpu.product";

/// Nodes with equal CPU and GPUs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NodeKind {
    pub(super) key: KindKey,
    pub(super) nodes: i64,
    /// One of the nodes; the pods that run there run on the others too.
    pub(super) example: NodeId,
}

impl NodeKind {
    /// GPUs of all its nodes.
    pub(super) fn gpus(&self) -> i64 {
        self.key.gpus * self.nodes
    }
}

/// What makes two nodes the same kind: GPUs, model and memory of the GPUs, CPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KindKey {
    pub(super) gpus: i64,
    pub(super) model: String,
    pub(super) memory_mib: i64,
    pub(super) cpu_milli: i64,
}

impl KindKey {
    fn of(node: &Node) -> KindKey {
        KindKey {
            gpus: node.gpu_units,
            model: node.labels.get(MODEL_LABEL).cloned().unwrap_or_default(),
            memory_mib: node.memory_mib,
            cpu_milli: node.allocatable.cpu_milli,
        }
    }

    /// How little this kind can stand for the other one.
    fn distance(&self, other: &KindKey) -> (bool, i64, i64, i64) {
        (
            self.model != other.model,
            (self.gpus - other.gpus).abs(),
            (self.memory_mib - other.memory_mib).abs(),
            (self.cpu_milli - other.cpu_milli).abs(),
        )
    }
}

/// The kinds of nodes with GPUs, and by node id its kind; `None` for nodes without GPUs.
pub(super) fn node_kinds(ledger: &Ledger) -> (Vec<NodeKind>, Vec<Option<u8>>) {
    ledger.note_work(ledger.present_nodes);
    let with_gpus = |node: &&Node| node.present && node.gpu_units > 0;
    let mut found: BTreeMap<KindKey, (i64, NodeId)> = BTreeMap::new();
    for (at, node) in ledger.nodes.iter().enumerate().filter(|(_, node)| with_gpus(node)) {
        let (nodes, example) = found.entry(KindKey::of(node)).or_insert((0, NodeId::new(at)));
        *nodes += 1;
        // The first by name, because ids depend on the order of events.
        if node.name < ledger.node(*example).name {
            *example = NodeId::new(at);
        }
    }
    let mut kinds: Vec<NodeKind> = found
        .into_iter()
        .map(|(key, (nodes, example))| NodeKind { key, nodes, example })
        .collect();
    kinds.sort_by(|a, b| (b.gpus(), &a.key).cmp(&(a.gpus(), &b.key)));
    let rare = kinds.split_off(kinds.len().min(KINDS_MAX));
    // In this order a few nodes more or less change no other kind's number.
    kinds.sort_by(|a, b| a.key.cmp(&b.key));
    let most_similar = |key: &KindKey| {
        let kinds = kinds.iter().enumerate();
        kinds.min_by_key(|(_, kind)| kind.key.distance(key)).map(|(at, _)| at)
    };
    let kind_of = |node: &Node| Some(most_similar(&KindKey::of(node))? as u8);
    let by_node = ledger
        .nodes
        .iter()
        .map(|node| Some(node).filter(with_gpus).and_then(kind_of));
    let by_node = by_node.collect();
    let counted_as: Vec<Option<usize>> = rare.iter().map(|kind| most_similar(&kind.key)).collect();
    for (kind, at) in rare.iter().zip(counted_as) {
        if let Some(at) = at {
            kinds[at].nodes += kind.nodes;
        }
    }
    (kinds, by_node)
}

/// Pods that need the same CPU and GPUs on every kind of node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodType {
    pub(super) cpu_milli: i64,
    /// 0 = the pods need no GPU.
    pub(super) devices: i64,
    /// By kind of node: the steps of each of their GPUs that a pod takes; `None` = the pod can't run there.
    pub(super) steps: Vec<Option<u8>>,
}

impl PodType {
    fn of(shape: &Shape, kinds: &[NodeKind], examples: &[Node]) -> Option<PodType> {
        let devices = match shape.gpu {
            GpuKind::Mig { .. } => return None,
            GpuKind::None | GpuKind::Whole { .. } | GpuKind::Fraction { .. } | GpuKind::Memory { .. } => {
                shape.devices()
            }
        };
        let steps_on = |(kind, node): (&NodeKind, &Node)| {
            let fits = devices > 0 && devices <= kind.key.gpus && fits_empty_node(node, shape);
            if !fits || static_check(node, shape).is_err() {
                return None;
            }
            let need = shape.need_mib(node.memory_mib).max(1) * i64::from(STEPS);
            let steps = (need + node.memory_mib - 1) / node.memory_mib;
            u8::try_from(steps).ok().filter(|steps| *steps <= STEPS)
        };
        Some(PodType {
            cpu_milli: shape.base.cpu_milli,
            devices,
            steps: kinds.iter().zip(examples).map(steps_on).collect(),
        })
    }

    /// Steps of GPUs that a pod takes, on the first kind of node where it runs; 0 if there is none.
    pub(super) fn steps_in_all(&self) -> i64 {
        self.steps.iter().flatten().next().map_or(0, |steps| i64::from(*steps)) * self.devices
    }
}

/// How many pods of each type a cluster has.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Mix {
    /// The types that need GPUs and run on some kind, the most frequent first.
    pub(super) types: Vec<(PodType, u64)>,
    /// Steps of GPUs that pods of rarer types take, which are left out.
    pub(super) rare_gpu_steps: i64,
    /// Pods that need no GPU, and their CPU.
    pub(super) cpu_pods: u64,
    pub(super) cpu_pods_milli: i64,
}

impl Mix {
    /// The mix of these pods.
    pub(super) fn of(ledger: &Ledger, kinds: &[NodeKind], pods: &[(ShapeId, u64)]) -> Mix {
        ledger.note_work(pods.len() * kinds.len().max(1));
        // A node that is cordoned or not ready now is a place for the pods of its kind all the same.
        let examples: Vec<Node> = kinds
            .iter()
            .map(|kind| Node {
                unschedulable: false,
                not_ready: false,
                leaving: false,
                ..ledger.node(kind.example).clone()
            })
            .collect();
        let mut mix = Mix::default();
        let mut counts: BTreeMap<PodType, u64> = BTreeMap::new();
        for (shape, count) in pods {
            let Some(pod_type) = PodType::of(ledger.shape(*shape), kinds, &examples) else {
                continue;
            };
            if pod_type.devices == 0 {
                mix.cpu_pods += count;
                mix.cpu_pods_milli += pod_type.cpu_milli * *count as i64;
            } else if pod_type.steps_in_all() > 0 {
                *counts.entry(pod_type).or_default() += count;
            }
        }
        mix.types = counts.into_iter().collect();
        mix.types.sort_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
        let rare = mix.types.split_off(mix.types.len().min(TYPES_MAX));
        mix.rare_gpu_steps = gpu_steps(&rare);
        mix
    }

    /// Pods in all.
    pub(super) fn pods(&self) -> u64 {
        self.cpu_pods + self.types.iter().map(|(_, count)| count).sum::<u64>()
    }

    /// Steps of GPUs that the pods of all types take.
    pub(super) fn gpu_steps(&self) -> i64 {
        gpu_steps(&self.types)
    }

    /// The part of the pods that another mix has in other types, from 0 to 1.
    pub(super) fn distance(&self, other: &Mix) -> f64 {
        let part = |count: u64, mix: &Mix| count as f64 / mix.pods().max(1) as f64;
        let theirs: BTreeMap<&PodType, u64> = other.types.iter().map(|(of, count)| (of, *count)).collect();
        let mut common = part(self.cpu_pods, self).min(part(other.cpu_pods, other));
        for (of, count) in &self.types {
            common += theirs
                .get(of)
                .map_or(0.0, |their| part(*count, self).min(part(*their, other)));
        }
        1.0 - common
    }
}

fn gpu_steps(types: &[(PodType, u64)]) -> i64 {
    types.iter().map(|(of, count)| of.steps_in_all() * *count as i64).sum()
}

/// All workload pods that the cluster knows, by shape. Pods that have ended count while their objects exist: they tell what the cluster runs
/// as well as pods that run.
pub(super) fn known_pods(ledger: &Ledger) -> Vec<(ShapeId, u64)> {
    ledger.note_work(ledger.pods.len() / 8 + ledger.shapes.len() / 8);
    let mut counts = vec![0; ledger.shapes.len()];
    for pod in ledger.pods.iter().filter(|pod| pod.kind == PodKind::Workload) {
        counts[pod.shape.index()] += 1;
    }
    let counts = counts.into_iter().enumerate();
    counts
        .filter(|(_, count)| *count > 0)
        .map(|(at, count)| (ShapeId::new(at), count))
        .collect()
}
