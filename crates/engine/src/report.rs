//! What a cycle decided, and the views on the cluster that people and programs read afterwards.
//!
//! Everything here is data. Text for people is made in [`crate::reasons`] and nowhere else.

use std::sync::Arc;

use crate::model::{Action, GangKey, Gpus, Millis, Quota};
use crate::reasons::{EvictionReason, Reason};

/// The outcome of one cycle.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// What to do, in the order in which to do it.
    pub decisions: Vec<Decision>,
    /// What each action did for it, in the order in which they ran.
    pub efforts: Vec<Effort>,
}

/// What an action did in a cycle, in counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// The action.
    pub action: Action,
    /// Gangs that places were sought for.
    pub tried: u32,
    /// Those of them that got places, or the promise of places.
    pub placed: u32,
    /// Searches for victims by [`SearchEnd`], then by whether what was left to the action was less than a gang's budget.
    pub searches: [[u32; 2]; SearchEnd::ALL.len()],
    /// Steps of searches at which the victims so far could not be enough, so that nothing was simulated.
    pub ruled_out: u32,
    /// What became of sets of victims, by [`Generator`].
    pub sets: [Sets; Generator::ALL.len()],
    /// Nothing was left of the action's budget: gangs after that were not tried. They come first in the next cycle.
    pub exhausted: bool,
    /// Steps of work.
    pub steps: u64,
}

impl Effort {
    pub(crate) fn new(action: Action) -> Effort {
        Effort {
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

/// What became of sets of victims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sets {
    /// Worth a simulation.
    pub chosen: u32,
    /// Not simulated, since the same set had failed before.
    pub repeated: u32,
    /// Simulated.
    pub simulated: u32,
    /// Simulated with success, but the outcome is not allowed.
    pub refused: u32,
}

/// How sets of victims are chosen from those taken so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generator {
    /// All victims that have to do with one node of the last one.
    NodeLocal,
    /// Victims of as few nodes as could be enough, then more and more of them.
    MultiNode,
}

impl Generator {
    /// In the order in which they are tried.
    pub const ALL: [Generator; 2] = [Generator::NodeLocal, Generator::MultiNode];

    /// Name in configuration and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Generator::NodeLocal => "NodeLocalGreedy",
            Generator::MultiNode => "MultiNodeGang",
        }
    }
}

/// How a search for victims ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchEnd {
    /// Victims were found.
    Solved,
    /// Nothing is left to try.
    Exhausted,
    /// The budget was used up.
    Cut,
    /// Victims were found for some of the pods, too few to start.
    InPart,
}

impl SearchEnd {
    /// All of them, in the order of the counters.
    pub const ALL: [SearchEnd; 4] = [
        SearchEnd::Solved,
        SearchEnd::Exhausted,
        SearchEnd::Cut,
        SearchEnd::InPart,
    ];
}

/// A gang that waits for its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The gang.
    pub gang: Arc<GangKey>,
    /// Name of its queue.
    pub queue: String,
    /// Its priority.
    pub priority: i32,
}

/// Where a cycle is. The engine has no clock; who has one may take the time when it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// An action is about to run.
    Action(Action),
    /// A search with one generator is about to start.
    Search,
    /// It is over.
    Searched(Action, Generator, SearchEnd),
}

/// Something to carry out. Names, not ids: a decision outlives the cycle. They are shared with the engine's tables.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Bind the pod.
    Bind(Placed),
    /// The pod will be bound there once what occupies the place is gone. Nothing to carry out; decided anew each cycle.
    Pipeline(Placed),
    /// Delete the pod.
    Evict {
        /// Uid of the pod.
        pod: Arc<str>,
        /// Why, and for whom.
        reason: EvictionReason,
    },
    /// A gang that had nothing running was started: remember the time.
    Started(Arc<GangKey>),
    /// Pods of the gang were evicted for others: remember the time.
    Evicted(Arc<GangKey>),
    /// The gang runs below its minimum since then.
    Stale {
        /// The gang.
        gang: Arc<GangKey>,
        /// Since when.
        since: Millis,
    },
    /// The gang is whole again.
    Recovered(Arc<GangKey>),
}

/// A pod and the place chosen for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// Uid of the pod.
    pub pod: Arc<str>,
    /// Name of the node.
    pub node: Arc<str>,
    /// One GPU group per device, for shared GPUs.
    pub gpu_groups: Vec<String>,
    /// How the GPU request was met.
    pub received: Received,
}

/// How a GPU request was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Whole devices, or none.
    Regular {
        /// How many.
        devices: i64,
    },
    /// A part of each of several devices.
    Fraction {
        /// How many.
        devices: i64,
        /// Hundredths of a device, each.
        hundredths: i64,
    },
    /// MIG slices.
    MigInstance,
}

/// Where a pod stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// Waits for a place.
    Pending,
    /// Held back by scheduling gates.
    Gated,
    /// Has a place as soon as those who leave it are gone.
    Pipelined,
    /// Decided; being bound.
    Binding,
    /// Bound, not yet running.
    Bound,
    /// Running.
    Running,
    /// Leaving.
    Releasing,
    /// Should have left long ago: occupies its place and can't be counted on.
    StuckInReleasing,
    /// Ended well.
    Succeeded,
    /// Ended badly.
    Failed,
    /// Its node does not answer.
    Unknown,
}

impl Status {
    /// Its name, as cases, tables and answers write it.
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
    /// GPU groups it shares or will share.
    pub gpu_groups: Vec<String>,
    /// Why it waits, or why it was evicted.
    pub reason: Option<Reason>,
}

/// A node after a cycle.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeView<'a> {
    /// Name.
    pub name: &'a str,
    /// Free GPUs, parts of shared ones included.
    pub idle_gpus: Gpus,
    /// GPUs that are being freed, parts of shared ones included.
    pub releasing_gpus: Gpus,
    /// Allocatable devices.
    pub gpus: i64,
    /// MiB per device; `None` = unknown.
    pub gpu_memory_mib: Option<i64>,
    /// Shared devices in use, by group.
    pub shared: Vec<SharedGpuView>,
    /// Devices that nobody holds; below zero where more are held than there are. A device that was promised to a pod which waits for
    /// others to leave is held by those others alone.
    pub idle_devices: i64,
    /// Devices taken whole, those included that were promised to pods which wait for others to leave.
    pub whole_used: i64,
    /// MIG slices: resource name, free, allocatable.
    pub mig: Vec<(&'a str, i64, i64)>,
    /// Free milli-cores.
    pub cpu_idle_milli: i64,
    /// Allocatable milli-cores.
    pub cpu_milli: i64,
    /// Free bytes.
    pub memory_idle_bytes: i64,
    /// Allocatable bytes.
    pub memory_bytes: i64,
    /// Whether pods can be placed there at all.
    pub ready: bool,
}

/// A shared device of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedGpuView {
    /// Group id.
    pub group: String,
    /// MiB promised to pods, those that wait for it included.
    pub used_mib: i64,
    /// MiB held by pods that are there.
    pub allocated_mib: i64,
}

/// A queue after a cycle. Resources are in the order CPU (milli-cores), memory (bytes), GPU (millionths).
#[derive(Clone, Debug, PartialEq)]
pub struct QueueView<'a> {
    /// Name.
    pub name: &'a str,
    /// Parent.
    pub parent: Option<&'a str>,
    /// Priority.
    pub priority: i32,
    /// Quota, limit and weight.
    pub quota: Quota,
    /// What fair division gives it.
    pub fair_share: [i64; 3],
    /// What its pods have.
    pub allocated: [i64; 3],
    /// The part of it that can't be taken back.
    pub allocated_non_preemptible: [i64; 3],
    /// What it used lately, as a share of the cluster, in billionths; zero where nobody tells.
    pub usage_billionths: [i64; 3],
    /// What its pods had and waited for at the start of the cycle: what fair division went by.
    pub requested: [i64; 3],
}

/// Something about an object that keeps it from taking part, found when it was applied.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Anomaly {
    /// Kind and name, as in `Queue team-a`.
    pub object: String,
    /// Field.
    pub field: String,
    /// What is wrong and what happens now.
    pub problem: String,
}
