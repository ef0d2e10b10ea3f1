//! `kai simulate trace`: streams of pods from files, replayed by several policies.
//!
//! | step | module |
//! |---|---|
//! | find and read the files | [`read`] |
//! | place pod by pod, with the code of the engine | [`kai_engine::replay`] |
//! | allocation and fragmentation by the load that has arrived | [`curve`] |

pub mod curve;
pub mod read;

use std::time::{Duration, Instant};

use kai_engine::model::PlacementStrategy;
use kai_engine::replay::{Policy, PublishedPolicy, Replay, TraceNode, TracePod};

use curve::Curve;

/// How many arrivals pass between two reports of the progress.
const PROGRESS_STEP: usize = 256;

/// A stream of pods and the nodes that they arrive at.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Its name.
    pub name: String,
    /// The seed that its order was made from.
    pub seed: u64,
    /// The nodes, in the order in which ties are broken.
    pub nodes: Vec<TraceNode>,
    /// The pods, in the order of their arrival.
    pub pods: Vec<TracePod>,
    /// The pods that the typical mix is taken from: those of the trace before its order was made.
    pub typical: Vec<TracePod>,
}

impl Trace {
    /// Thousandths of GPUs of all nodes.
    pub fn capacity_milli(&self) -> i64 {
        self.nodes.iter().map(|node| i64::from(node.gpus) * 1000).sum()
    }
}

/// All policies by name, in the order of the documentation.
pub const POLICIES: [(&str, Policy); 10] = [
    ("random", Policy::Published(PublishedPolicy::Random)),
    ("dot-product", Policy::Published(PublishedPolicy::DotProduct)),
    ("gpu-clustering", Policy::Published(PublishedPolicy::GpuClustering)),
    ("gpu-packing", Policy::Published(PublishedPolicy::GpuPacking)),
    ("best-fit", Policy::Published(PublishedPolicy::BestFit)),
    ("fgd", Policy::Published(PublishedPolicy::Fgd)),
    ("spread", Policy::Engine(PlacementStrategy::Spread)),
    ("binpack", Policy::Engine(PlacementStrategy::Binpack)),
    ("frag", Policy::Engine(PlacementStrategy::Frag)),
    ("frag-learned", Policy::FragLearned),
];

/// The policy of this name.
pub fn policy(name: &str) -> Option<Policy> {
    POLICIES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, policy)| *policy)
}

/// The name of a policy.
pub fn policy_name(policy: Policy) -> &'static str {
    let known = POLICIES.iter().find(|(_, known)| *known == policy);
    known.expect("the list has all policies").0
}

/// The result of one replay.
#[derive(Clone, Debug)]
pub struct TraceOutcome {
    /// The policy.
    pub policy: Policy,
    /// Allocation and fragmentation by load.
    pub curve: Curve,
    /// Pods without a place.
    pub failed_pods: usize,
    /// The load that had arrived before the first pod was refused, in percent of all GPUs; `None` = each got a place.
    pub first_refusal_percent: Option<f64>,
    /// Pods that arrived.
    pub arrivals: usize,
    /// The time for all of them, prices included.
    pub wall: Duration,
}

impl TraceOutcome {
    /// Pods per second that got a place or were refused.
    pub fn decisions_per_second(&self) -> f64 {
        self.arrivals as f64 / self.wall.as_secs_f64().max(1e-9)
    }
}

/// Replays a trace; `progress` hears how many pods have arrived. The seed of policy random is that of the trace.
pub fn replay(trace: &Trace, policy: Policy, progress: &mut dyn FnMut(usize)) -> TraceOutcome {
    let capacity = trace.capacity_milli();
    let percent = |milli: f64| {
        if capacity > 0 {
            100.0 * milli / capacity as f64
        } else {
            0.0
        }
    };
    let mut curve = Curve::default();
    let (mut arrived, mut failed_pods, mut first_refusal_percent) = (0, 0, None);
    let started = Instant::now();
    let mut replay = Replay::new(&trace.nodes, &trace.typical, policy, trace.seed);
    for (at, pod) in trace.pods.iter().enumerate() {
        if !replay.place(pod) {
            failed_pods += 1;
            first_refusal_percent.get_or_insert(percent(arrived as f64));
        }
        arrived += pod.gpu_milli_in_all();
        let load = percent(arrived as f64);
        curve.add(
            load,
            percent(replay.used_milli() as f64),
            percent(replay.fragmented_milli()),
        );
        if at % PROGRESS_STEP == 0 {
            progress(at);
        }
    }
    let wall = started.elapsed();
    progress(trace.pods.len());
    TraceOutcome {
        policy,
        curve,
        failed_pods,
        first_refusal_percent,
        arrivals: trace.pods.len(),
        wall,
    }
}

/// A load up to which, at most, every pod can be placed if the pods are in the proportions of the trace's mix, in percent of all GPUs: whatever
/// the policy, and even if pods could be cut in pieces. `None` = the trace has no GPU pods or nodes.
pub fn load_bound_percent(trace: &Trace) -> Option<f64> {
    let replay = Replay::new(
        &trace.nodes,
        &trace.typical,
        Policy::Engine(PlacementStrategy::Frag),
        trace.seed,
    );
    replay.load_bound().map(|load| 100.0 * load)
}
