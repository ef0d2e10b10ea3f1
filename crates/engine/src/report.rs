//! The decisions of a cycle, and the views of the cluster after it.
//!
//! Everything here is data. Only [`crate::reasons`] makes text for people.

use std::sync::Arc;

use crate::model::{
    Action, ComputeMode, GangKey, GpuFraction, Gpus, Labels, MemoryKind, MigStrategy, Millis, PerResource, PodKind,
    Preemptibility, QueueResources, Quota, VolumeChoice,
};
use crate::reasons::{EvictionReason, Reason};

/// The result of one cycle.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// What to carry out, in this order.
    pub decisions: Vec<Decision>,
    /// The counters of each action, in the order in which they ran.
    pub action_stats: Vec<ActionStats>,
}

/// The counters of an action in one cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActionStats {
    /// The action.
    pub action: Action,
    /// Gangs that the action tried to place.
    pub tried: u32,
    /// Gangs of them that were bound or pipelined.
    pub placed: u32,
    /// Victim searches by [`SearchResult`], then by whether the action had less than the budget of a gang left for it.
    pub searches: [[u32; 2]; SearchResult::ALL.len()],
    /// Steps of searches whose victims so far could not be enough, so that no set of them was simulated.
    pub ruled_out: u32,
    /// Sets of victims, by [`Generator`].
    pub sets: [VictimSets; Generator::ALL.len()],
    /// Whether the budget of the action was used up before it tried all gangs. The next cycle tries the others first.
    pub exhausted: bool,
    /// Steps of work that the action took.
    pub steps: u64,
}

impl ActionStats {
    pub(crate) fn new(action: Action) -> ActionStats {
        ActionStats {
            action,
            tried: 0,
            placed: 0,
            searches: Default::default(),
            ruled_out: 0,
            sets: Default::default(),
            exhausted: false,
            steps: 0,
        }
    }
}

/// Numbers of sets of victims, by what the search did with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VictimSets {
    /// Chosen by the generator.
    pub chosen: u32,
    /// Not simulated, because the same set had failed before.
    pub repeated: u32,
    /// Simulated.
    pub simulated: u32,
    /// Simulated with success, but the result was not allowed.
    pub refused: u32,
}

/// How a search chooses sets from the victims so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generator {
    /// All victims on one of the nodes of the last victim.
    NodeLocal,
    /// Victims on as few nodes as could be enough, then on more and more nodes.
    MultiNode,
}

impl Generator {
    /// All generators, in the order in which a search tries them.
    pub const ALL: [Generator; 2] = [Generator::NodeLocal, Generator::MultiNode];

    /// The name in configuration and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Generator::NodeLocal => "NodeLocalGreedy",
            Generator::MultiNode => "MultiNodeGang",
        }
    }
}

/// How a victim search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchResult {
    /// Victims were found.
    Solved,
    /// All sets of victims were tried in vain.
    Exhausted,
    /// The budget was used up first.
    Cut,
    /// Victims were found for some of the pods, but too few for the gang to start.
    Partial,
}

impl SearchResult {
    /// All results, in the order of the counters.
    pub const ALL: [SearchResult; 4] = [
        SearchResult::Solved,
        SearchResult::Exhausted,
        SearchResult::Cut,
        SearchResult::Partial,
    ];
}

/// A gang with pending pods, in [`Cluster::serving_order`](crate::Cluster::serving_order).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingGang {
    /// The gang.
    pub gang: Arc<GangKey>,
    /// Name of its queue.
    pub queue: String,
    /// Its priority.
    pub priority: i32,
}

/// The progress of a running cycle. The engine has no clock: the caller of [`Cluster::cycle_observed`](crate::Cluster::cycle_observed)
/// measures times by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CycleProgress {
    /// An action starts.
    ActionStarts(Action),
    /// A victim search with one generator starts.
    SearchStarts,
    /// The victim search has ended.
    SearchEnds(Action, Generator, SearchResult),
}

/// A decision to carry out. It has names instead of ids, because it outlives the cycle; their text is shared with the engine's tables.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Bind the pod.
    Bind(Placed),
    /// A later cycle binds the pod there, once other pods have released the resources. Nothing to carry out: every cycle decides anew.
    Pipeline(Placed),
    /// Delete the pod.
    Evict {
        /// Uid of the pod.
        pod: Arc<str>,
        /// Why, and for which gang.
        reason: EvictionReason,
    },
    /// A gang without running pods was started: the caller records the time.
    Started(Arc<GangKey>),
    /// Pods of the gang were evicted for other gangs: the caller records the time.
    Evicted(Arc<GangKey>),
    /// The gang runs below its minimum.
    Stale {
        /// The gang.
        gang: Arc<GangKey>,
        /// Since when.
        since: Millis,
    },
    /// The gang has its minimum again.
    Recovered(Arc<GangKey>),
}

/// A pod with the node and the GPU groups chosen for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// Uid of the pod.
    pub pod: Arc<str>,
    /// Name of the node.
    pub node: Arc<str>,
    /// One GPU group for each shared GPU; empty if the pod shares none.
    pub gpu_groups: Vec<String>,
    /// The kind of GPUs that the pod receives.
    pub received: Received,
    /// What the claims of the pod get that have no volume yet.
    pub volumes: Vec<VolumeChoice>,
    /// The action that chose the place.
    pub action: Action,
}

/// The kind of GPUs that a pod received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Whole devices, or none.
    Regular {
        /// How many.
        devices: i64,
    },
    /// The same part of each of several devices.
    Fraction {
        /// How many.
        devices: i64,
        /// The part of each device, rounded to hundredths.
        portion: GpuFraction,
        /// How the pod uses the multiprocessors of its devices.
        compute_mode: ComputeMode,
    },
    /// MIG slices.
    MigInstance,
}

/// The status of a pod in scheduling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// Waits to be placed.
    Pending,
    /// Held back by scheduling gates.
    Gated,
    /// Placed on resources that other pods are still releasing.
    Pipelined,
    /// The binding is decided and being carried out.
    Binding,
    /// Bound, not yet running.
    Bound,
    /// Running.
    Running,
    /// Being deleted.
    Releasing,
    /// Past its deletion time for too long: its resources don't count as releasing.
    StuckInReleasing,
    /// Ended with success.
    Succeeded,
    /// Ended with an error.
    Failed,
    /// The node does not report the pod.
    Unknown,
}

impl Status {
    /// The name in cases, tables and API answers.
    pub fn name(self) -> &'static str {
        match self {
            Status::Pending => "Pending",
            Status::Gated => "Gated",
            Status::Pipelined => "Pipelined",
            Status::Binding => "Binding",
            Status::Bound => "Bound",
            Status::Running => "Running",
            Status::Releasing => "Releasing",
            Status::StuckInReleasing => "StuckInReleasing",
            Status::Succeeded => "Succeeded",
            Status::Failed => "Failed",
            Status::Unknown => "Unknown",
        }
    }
}

/// A pod after a cycle.
#[derive(Clone, Debug, PartialEq)]
pub struct PodView<'a> {
    /// Uid.
    pub uid: &'a str,
    /// Namespace.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
    /// Gang.
    pub gang: Option<&'a GangKey>,
    /// Status.
    pub status: Status,
    /// Node, where it has one.
    pub node: Option<&'a str>,
    /// GPU groups that the pod shares or will share.
    pub gpu_groups: Vec<String>,
    /// Why the pod waits, or why it was evicted.
    pub reason: Option<Reason>,
    /// How the scheduler treats the pod.
    pub kind: PodKind,
    /// The GPUs that it holds or requests.
    pub gpus: PodGpus<'a>,
    /// Creation time.
    pub created: Millis,
    /// The deletion time, if the pod is being deleted.
    pub deletion: Option<Millis>,
}

/// The GPUs that a pod holds or requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PodGpus<'a> {
    /// None.
    #[default]
    None,
    /// Whole devices.
    Whole {
        /// How many.
        devices: i64,
    },
    /// The same part of each of several devices.
    Share {
        /// How many.
        devices: i64,
        /// The part of each device; `None` for a request in MiB.
        fraction: Option<GpuFraction>,
        /// MiB of each device; `None` for a fraction before the memory of the GPU is known.
        mib: Option<i64>,
    },
    /// MIG slices: resource name and count, by name.
    Mig(Vec<(&'a str, i64)>),
}

/// A gang after a cycle. The counts are of pods that have not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangView<'a> {
    /// The gang.
    pub gang: &'a GangKey,
    /// Name of the queue in the pod group, whether or not the queue exists.
    pub queue: &'a str,
    /// Its priority.
    pub priority: i32,
    /// Which of its pods may be evicted for other gangs.
    pub preemptibility: Preemptibility,
    /// Creation time.
    pub created: Millis,
    /// How many pods must run together.
    pub required: u32,
    /// All pods.
    pub pods: u32,
    /// Running pods.
    pub running: u32,
    /// Pods that are bound or being bound, and do not run yet.
    pub starting: u32,
    /// Pods that wait for a place: pending, gated or pipelined.
    pub waiting: u32,
    /// Pods that are being deleted.
    pub releasing: u32,
    /// When the gang was last started without running pods.
    pub last_start: Option<Millis>,
    /// When one of its pods was last evicted for another gang.
    pub last_eviction: Option<Millis>,
    /// Since when the gang has run below its minimum.
    pub stale_since: Option<Millis>,
}

/// A node after a cycle.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeView<'a> {
    /// Name.
    pub name: &'a str,
    /// Idle GPUs, including idle parts of shared GPUs and idle MIG slices.
    pub idle_gpus: Gpus,
    /// Releasing GPUs, including parts of shared GPUs and MIG slices.
    pub releasing_gpus: Gpus,
    /// Allocatable GPUs, including MIG slices, in the units of `idle_gpus`.
    pub allocatable_gpus: Gpus,
    /// Allocatable devices.
    pub gpus: i64,
    /// MiB per device; `None` = unknown.
    pub gpu_memory_mib: Option<i64>,
    /// Shared GPUs in use.
    pub shared: Vec<SharedGpuView>,
    /// Whole GPUs that no pod holds; negative where pods hold more than the node has. Pipelined pods hold none.
    pub idle_devices: i64,
    /// GPUs of pods that use whole GPUs, pipelined pods included.
    pub whole_used: i64,
    /// MIG slices: resource name, idle, allocatable.
    pub mig: Vec<(&'a str, i64, i64)>,
    /// Idle milli-cores.
    pub cpu_idle_milli: i64,
    /// Allocatable milli-cores.
    pub cpu_milli: i64,
    /// Idle bytes.
    pub memory_idle_bytes: i64,
    /// Allocatable bytes.
    pub memory_bytes: i64,
    /// Whether the node is ready and not cordoned.
    pub ready: bool,
    /// Whether the node is cordoned.
    pub cordoned: bool,
    /// Whether a condition keeps pods away.
    pub unhealthy: bool,
    /// All labels.
    pub labels: &'a Labels,
    /// Physical GPUs; fewer than `gpus` where the device plugin offers replicas of each.
    pub physical_gpus: i64,
    /// Whether GPU memory is part of the node's RAM.
    pub memory_kind: MemoryKind,
    /// How MIG slices are named.
    pub mig_strategy: MigStrategy,
}

/// A shared GPU of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedGpuView {
    /// Id of its GPU group.
    pub gpu_group: String,
    /// MiB of its pods, pipelined pods included.
    pub used_mib: i64,
    /// MiB of its pods, without pipelined pods.
    pub allocated_mib: i64,
}

/// A queue after a cycle.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueView<'a> {
    /// Name.
    pub name: &'a str,
    /// The name to show to people.
    pub display_name: &'a str,
    /// Parent.
    pub parent: Option<&'a str>,
    /// Priority.
    pub priority: i32,
    /// Quota, limit and weight.
    pub quota: Quota,
    /// Result of the fair division.
    pub fair_share: QueueResources,
    /// What its pods hold.
    pub allocated: QueueResources,
    /// The part of it held by non-preemptible gangs and by the cores of semi-preemptible ones.
    pub allocated_non_preemptible: QueueResources,
    /// Historic usage as a part of the cluster, in billionths; 0 if not known.
    pub usage_billionths: PerResource<i64>,
    /// What its pods held and requested at the start of the cycle: the input of the fair division.
    pub requested: QueueResources,
}

/// The gangs of a queue that wait to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueWait {
    /// Their number.
    pub gangs: u32,
    /// When the oldest of their pods was created.
    pub since: Millis,
}

/// A problem of an object that was applied: the engine ignores the object or a part of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Anomaly {
    /// Kind and name, as in `Queue team-a`.
    pub object: String,
    /// Field.
    pub field: String,
    /// What is wrong, and what the engine does about it.
    pub problem: String,
}
