//! Replays a stream of pods on a cluster: each pod gets a place at once or is refused for ever, and none ends. The published experiments on
//! GPU packing have this form (docs/placement.md).
//!
//! Every policy uses the tables of the engine, its checks whether a pod fits, and its indexes of nodes; the strategies of the engine also
//! use its scores and its choice of GPUs. The published policies bring scores and a choice of their own. A replay has no
//! queues, gangs or time.

mod fragmentation;
mod published;

use crate::cluster::Cluster;
use crate::ids::{NodeId, PodId, ShapeId};
use crate::model::{
    Config, Constraints, EnforcementTier, Event, FractioningCondition, GpuFraction, GpuRequest, Labels, MemoryKind,
    MigStrategy, NodeSelectorTerm, NodeSpec, Operator, PlacementStrategies, PlacementStrategy, PodSpec, Requests,
    Requirement,
};
use crate::place::frag::{PriceState, Prices};
use crate::place::shape_index::ShapeIndex;
use crate::place::{NodeScoring, choose_devices};
use crate::tables::GpuGroupIds;

use fragmentation::{NodeState, TypicalPods};
use published::Published;
pub use published::PublishedPolicy;

/// Thousandths of a GPU; nodes of a replay have GPUs of so many MiB, so that both are the same number.
const GPU_MILLI: i64 = 1000;
/// The label with the model of the GPUs.
const MODEL_LABEL: &str = "nvidia.com/gpu.product";
/// Pods that a node takes at most. No trace comes near; pods that share a GPU count twice while they open it.
const PODS_MAX: i64 = 1001;

/// A node of a trace. All its GPUs are of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceNode {
    /// Name.
    pub name: String,
    /// Milli-cores.
    pub cpu_milli: i64,
    /// MiB.
    pub memory_mib: i64,
    /// GPUs.
    pub gpus: u32,
    /// Model of the GPUs.
    pub model: String,
}

/// A pod of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracePod {
    /// Milli-cores.
    pub cpu_milli: i64,
    /// MiB.
    pub memory_mib: i64,
    /// GPUs; 0 = the pod needs none.
    pub gpus: u32,
    /// Thousandths of each GPU; less than 1000 only for one GPU.
    pub gpu_milli: u32,
    /// The models on which the pod may run; empty = on all.
    pub models: Vec<String>,
}

impl TracePod {
    /// Whether the pod shares its GPU.
    pub fn shares_gpu(&self) -> bool {
        self.gpus == 1 && i64::from(self.gpu_milli) < GPU_MILLI
    }

    /// Thousandths of GPUs that the pod requests in all.
    pub fn gpu_milli_in_all(&self) -> i64 {
        i64::from(self.gpus) * i64::from(self.gpu_milli)
    }
}

/// Who chooses the places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// A policy that was published for this experiment.
    Published(PublishedPolicy),
    /// A strategy of the engine.
    Engine(PlacementStrategy),
    /// Strategy `frag` with prices by the pods that have arrived so far, as in a cluster. Under [`Policy::Engine`] it knows the typical
    /// pods beforehand, as FGD does.
    FragLearned,
}

/// What strategy `frag` is told about the mix of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mix {
    Known,
    Learned,
}

/// A replay and its state.
pub struct Replay {
    cluster: Cluster,
    chooser: Chooser,
    /// By node id: the published policies know GPUs by number, which the tables of the engine don't.
    marks: Vec<NodeMarks>,
    typical: TypicalPods,
    /// By node id.
    fragments: Vec<f64>,
    fragments_in_all: f64,
    arrivals: u64,
    used_milli: i64,
    load_bound: Option<f64>,
}

/// What the published policies know of a node beyond the tables.
#[derive(Clone, Copy, Debug, Default)]
struct NodeMarks {
    /// The bit of the model of its GPUs.
    model: u64,
    /// Bit i: GPU i is allocated as a whole.
    whole: u64,
    /// Kinds of GPU pods on the node: bit 0 = shares of a GPU, bit k = pods of k GPUs.
    kinds_of_pods: u64,
}

enum Chooser {
    Published {
        policy: Published,
        /// By shape id.
        indexes: Vec<Option<ShapeIndex>>,
    },
    Engine {
        config: Config,
        mix: Mix,
    },
}

impl Replay {
    /// A replay on these nodes, in the order in which ties are broken. `typical` = the pods that the typical mix is taken from; the metric of
    /// fragmentation, FGD and `frag` with known mix use it. `seed` = that of policy random.
    pub fn new(nodes: &[TraceNode], typical: &[TracePod], policy: Policy, seed: u64) -> Replay {
        let mut cluster = Cluster::new();
        for (rank, node) in nodes.iter().enumerate() {
            cluster.apply(Event::Node(node_spec(rank, node)));
        }
        cluster.rank_nodes();
        let models = Models::of(nodes);
        let typical_pods = TypicalPods::of(typical, |names| models.bits(names));
        let known: Vec<(ShapeId, u64)> = typical.iter().map(|pod| (shape_of(&mut cluster, pod), 1)).collect();
        let chooser = match policy {
            Policy::Published(policy) => Chooser::Published {
                policy: Published::new(policy, typical_pods.clone(), seed),
                indexes: Vec::new(),
            },
            Policy::Engine(strategy) => Chooser::engine(strategy, Mix::Known),
            Policy::FragLearned => Chooser::engine(PlacementStrategy::Frag, Mix::Learned),
        };
        let mut load_bound = None;
        if policy == Policy::Engine(PlacementStrategy::Frag) {
            let prices = Prices::of(&cluster.ledger, &counted(known));
            load_bound = prices.as_ref().map(Prices::load_bound);
            cluster.prices = PriceState::fixed(prices);
        }
        let marks = nodes.iter().map(|node| NodeMarks {
            model: models.bits(std::slice::from_ref(&node.model)),
            ..NodeMarks::default()
        });
        let marks = marks.collect();
        let mut replay = Replay {
            cluster,
            chooser,
            marks,
            typical: typical_pods,
            fragments: Vec::new(),
            fragments_in_all: 0.0,
            arrivals: 0,
            used_milli: 0,
            load_bound,
        };
        let nodes = (0..replay.cluster.ledger.nodes.len()).map(NodeId::new);
        replay.fragments = nodes.map(|node| replay.fragments_of(node)).collect();
        replay.fragments_in_all = replay.fragments.iter().sum();
        replay
    }

    /// Gives a pod its place; whether there is one.
    pub fn place(&mut self, pod: &TracePod) -> bool {
        let spec = pod_spec(self.arrivals, pod);
        self.arrivals += 1;
        let uid = spec.uid.clone();
        self.cluster.apply(Event::Pod(spec));
        let id = self.cluster.pod_ids[uid.as_str()];
        let found = match &mut self.chooser {
            Chooser::Published { policy, indexes } => {
                policy.choose((&self.cluster.ledger, &self.marks), indexes, (id, pod))
            }
            Chooser::Engine { config, mix } => {
                if *mix == Mix::Learned {
                    self.cluster.refresh_prices(config);
                }
                choose(&mut self.cluster, config.placement, id)
            }
        };
        let Some((node, gpu_groups)) = found else { return false };
        if let Chooser::Published { .. } = self.chooser {
            self.mark(node, pod);
        }
        self.cluster.ledger.bind(id, node, gpu_groups, None);
        self.used_milli += pod.gpu_milli_in_all();
        let fragments = self.fragments_of(node);
        self.fragments_in_all += fragments - self.fragments[node.index()];
        self.fragments[node.index()] = fragments;
        true
    }

    /// Thousandths of GPUs that pods hold.
    pub fn used_milli(&self) -> i64 {
        self.used_milli
    }

    /// Thousandths of free GPUs that the next typical pod can't use, in expectation.
    pub fn fragmented_milli(&self) -> f64 {
        self.fragments_in_all
    }

    /// Under [`Policy::Engine`] with `frag`: a load up to which, at most, every pod of the mix can be placed, whatever the policy; 1 = the
    /// pods request all GPUs.
    pub fn load_bound(&self) -> Option<f64> {
        self.load_bound
    }

    fn fragments_of(&self, node: NodeId) -> f64 {
        let row = self.cluster.ledger.node(node);
        self.typical.fragments(&NodeState::of(row, &self.marks[node.index()]))
    }

    /// Marks a node for a pod that is about to be bound there: whole GPUs are the free ones of the lowest numbers.
    fn mark(&mut self, node: NodeId, pod: &TracePod) {
        if pod.gpus == 0 {
            return;
        }
        let marks = &mut self.marks[node.index()];
        marks.kinds_of_pods |= pod.kind_bit();
        if !pod.shares_gpu() {
            let state = NodeState::numbered(self.cluster.ledger.node(node), marks);
            for gpu in state.free_gpus().take(pod.gpus as usize) {
                marks.whole |= 1 << gpu;
            }
        }
    }
}

impl Chooser {
    fn engine(strategy: PlacementStrategy, mix: Mix) -> Chooser {
        let config = Config {
            placement: PlacementStrategies {
                gpu: strategy,
                cpu: strategy,
            },
            ..Config::default()
        };
        Chooser::Engine { config, mix }
    }
}

/// The models of GPUs, each with a bit.
struct Models(Vec<String>);

impl Models {
    fn of(nodes: &[TraceNode]) -> Models {
        let mut names: Vec<String> = nodes.iter().map(|node| node.model.clone()).collect();
        names.sort_unstable();
        names.dedup();
        Models(names)
    }

    /// The bits of these models; of all if there are none. The 64th and later models share a bit.
    fn bits(&self, names: &[String]) -> u64 {
        if names.is_empty() {
            return u64::MAX;
        }
        let numbers = names.iter().filter_map(|name| self.0.binary_search(name).ok());
        numbers.fold(0, |bits, number| bits | 1 << number.min(63))
    }
}

impl TracePod {
    fn kind_bit(&self) -> u64 {
        if self.shares_gpu() { 1 } else { 1 << self.gpus.min(63) }
    }
}

/// The place of a pod by a strategy of the engine.
fn choose(cluster: &mut Cluster, strategies: PlacementStrategies, pod: PodId) -> Option<(NodeId, GpuGroupIds)> {
    let ledger = &cluster.ledger;
    let scoring = NodeScoring {
        strategies,
        prices: cluster.prices.prices(),
    };
    let shape = ledger.pod(pod).shape;
    let mut ranking = cluster.indexes.ranking_for(ledger, shape, scoring);
    ranking.best(ledger, |node| {
        if !ledger.shape(shape).is_shared() {
            return Some((node, GpuGroupIds::new()));
        }
        let devices = choose_devices(ledger, pod, node, &scoring, false)?;
        Some((node, devices.gpu_groups))
    })
}

/// Equal shapes counted together.
fn counted(mut shapes: Vec<(ShapeId, u64)>) -> Vec<(ShapeId, u64)> {
    shapes.sort_unstable();
    shapes.dedup_by(|next, first| {
        let is_same = next.0 == first.0;
        first.1 += if is_same { next.1 } else { 0 };
        is_same
    });
    shapes
}

fn shape_of(cluster: &mut Cluster, pod: &TracePod) -> ShapeId {
    let namespace = cluster.ledger.symbols.intern("");
    let spec = pod_spec(0, pod);
    cluster.shape_id(spec.requests, spec.constraints, namespace)
}

fn node_spec(rank: usize, node: &TraceNode) -> NodeSpec {
    let gpus = i64::from(node.gpus);
    NodeSpec {
        // The first by name is the first in the order of the trace.
        name: format!("{rank:08}-{}", node.name),
        labels: Labels::from([(MODEL_LABEL.to_owned(), node.model.clone())]),
        taints: Vec::new(),
        unschedulable: false,
        conditions: Vec::new(),
        cpu_milli: node.cpu_milli,
        memory_bytes: node.memory_mib << 20,
        gpus,
        pods: PODS_MAX,
        extended: Vec::new(),
        gpu_count_label: Some(gpus),
        gpu_memory_mib: Some(GPU_MILLI),
        gpu_memory_kind: MemoryKind::Dedicated,
        mig_enabled: false,
        mig_strategy: MigStrategy::None,
        enforcement: EnforcementTier::None,
        fractioning: FractioningCondition::Met,
    }
}

pub(crate) fn pod_spec(arrival: u64, pod: &TracePod) -> PodSpec {
    let gpu = match pod.gpus {
        0 => GpuRequest::None,
        1 if pod.shares_gpu() => GpuRequest::Fraction {
            fraction: GpuFraction::from_billionths(i64::from(pod.gpu_milli) * 1_000_000),
            devices: 1,
        },
        devices => GpuRequest::Whole {
            devices: i64::from(devices),
        },
    };
    let of_models = || NodeSelectorTerm {
        labels: vec![Requirement {
            key: MODEL_LABEL.to_owned(),
            operator: Operator::In,
            values: pod.models.clone(),
        }],
        ..NodeSelectorTerm::default()
    };
    PodSpec {
        requests: Requests {
            cpu_milli: pod.cpu_milli,
            memory_bytes: pod.memory_mib << 20,
            gpu,
            extended: Vec::new(),
        },
        constraints: Constraints {
            required_nodes: (!pod.models.is_empty()).then(|| vec![of_models()]),
            ..Constraints::default()
        },
        ..PodSpec::new("", &arrival.to_string())
    }
}
