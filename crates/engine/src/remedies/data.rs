//! What an explanation says, as data. Module `reasons::text` makes the text.

use std::sync::Arc;

use crate::model::{GangKey, Gpus, Millis, NodeCondition};
use crate::reasons::{Check, Reason, Resource};

/// How much work an explanation may take. Both bounds count; neither is a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExplainBudget {
    /// How many cycles are tried on copies of the cluster.
    pub trials_max: u32,
    /// Steps of work, as [`Config::work_per_cycle_max`](crate::model::Config) counts them; `None` = in proportion to the cluster.
    pub steps_max: Option<u64>,
}

impl Default for ExplainBudget {
    fn default() -> ExplainBudget {
        ExplainBudget {
            trials_max: 64,
            steps_max: None,
        }
    }
}

/// Why a pod waits, and what would let its gang start.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The gang of the pod.
    pub gang: Option<Arc<GangKey>>,
    /// Why the pod waits or was evicted; `None` for other pods.
    pub reason: Option<Reason>,
    /// The gang's position among waiting gangs; `None` if no cycle tries the gang.
    pub position: Option<Position>,
    /// What one pod of the gang asks for, of the resources that nodes lack.
    pub request: Request,
    /// The nodes on which the least is missing, nearest first.
    pub nearest: Vec<NearestMiss>,
    /// The largest GPU requests that fit now, with the other requests and constraints of the pod as they are.
    pub largest: LargestRequest,
    /// What would let the gang start: any one of them suffices.
    pub remedies: Vec<Remedy>,
    /// Why there is no remedy; `None` if there is one.
    pub no_remedy: Option<NoRemedy>,
    /// Whether the budget ended before all candidates were tried.
    pub is_cut: bool,
    /// Cycles that were tried on copies of the cluster.
    pub trials: u32,
}

impl Explanation {
    /// The gangs that the explanation names, for callers that look their names up.
    pub fn gangs(&self) -> Vec<Arc<GangKey>> {
        let reason = match &self.reason {
            Some(Reason::NoNode(rejections) | Reason::GangShort { rejections, .. }) => rejections
                .holders
                .iter()
                .map(|(gang, _)| Arc::new(gang.clone()))
                .collect(),
            Some(Reason::Evicted(crate::reasons::EvictionReason::For { gang, .. })) => vec![gang.clone()],
            Some(_) | None => Vec::new(),
        };
        let holders = self.nearest.iter().flat_map(|miss| &miss.holders);
        let steps = self.remedies.iter().flat_map(|remedy| &remedy.steps);
        let ended = steps.filter_map(|step| match step {
            Step::End { gang, .. } => Some(gang.clone()),
            _ => None,
        });
        let mut gangs: Vec<Arc<GangKey>> = holders
            .map(|holder| holder.gang.clone())
            .chain(ended)
            .chain(reason)
            .collect();
        gangs.extend(self.gang.clone());
        gangs.sort();
        gangs.dedup();
        gangs
    }
}

/// The position of a gang in the order in which the next cycle serves gangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Waiting gangs of the same queue that come before.
    pub before_in_queue: u32,
    /// Waiting gangs of other queues that come before.
    pub before_in_others: u32,
}

/// The requests of one pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// GPUs.
    pub gpus: GpuAmount,
    /// Milli-cores.
    pub cpu_milli: i64,
    /// Bytes.
    pub memory_bytes: i64,
    /// Pods that the next attempt places together.
    pub pods: u32,
}

/// A request for GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuAmount {
    /// None.
    #[default]
    None,
    /// Whole GPUs of one node.
    Whole(i64),
    /// MiB on each of several GPUs.
    Memory {
        /// Per GPU.
        mib: i64,
        /// How many.
        devices: i64,
    },
    /// The same part of each of several GPUs.
    Fraction {
        /// Hundredths of a GPU.
        hundredths: i64,
        /// How many.
        devices: i64,
    },
    /// MIG slices.
    Mig,
}

/// A node that can't take the pod at present, with what is missing there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NearestMiss {
    /// The node.
    pub node: Arc<str>,
    /// The first check that fails.
    pub check: Check,
    /// Whole GPUs that are free or being released.
    pub free_gpus: i64,
    /// MiB free on the GPU with the most free memory; `None` if the memory of the node's GPUs is not known.
    pub free_mib: Option<i64>,
    /// What is missing, in the unit of the check: GPUs, MiB, milli-cores, bytes or pod slots; 0 for other checks.
    pub missing: i64,
    /// The gangs that hold the most there.
    pub holders: Vec<Holder>,
    /// How many gangs hold GPUs there besides.
    pub more_holders: u32,
}

/// A gang that holds GPUs of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The gang.
    pub gang: Arc<GangKey>,
    /// The GPUs that its pods hold on the node.
    pub gpus: Gpus,
    /// Its queue.
    pub queue: String,
    /// By which rule the gang could lose its place.
    pub claim: Claim,
}

/// By which rule a gang could be evicted for the waiting gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Its queue is above its quota: other queues may reclaim while they are below theirs.
    OverQuota,
    /// The gang is of lower priority in the same queue.
    LowerPriority,
    /// The gang is in the same queue, with the same priority or a higher one.
    SameQueue,
    /// Its queue is within its quota.
    WithinQuota,
    /// The gang is non-preemptible.
    NonPreemptible,
    /// The pods are the core of a semi-preemptible gang.
    Core,
}

impl Claim {
    /// The name in API answers.
    pub fn name(self) -> &'static str {
        match self {
            Claim::OverQuota => "overQuota",
            Claim::LowerPriority => "lowerPriority",
            Claim::SameQueue => "sameQueue",
            Claim::WithinQuota => "withinQuota",
            Claim::NonPreemptible => "nonPreemptible",
            Claim::Core => "core",
        }
    }
}

/// The largest GPU requests that fit now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LargestRequest {
    /// Whole GPUs on one node.
    pub whole: Option<(i64, Arc<str>)>,
    /// MiB of one GPU, and its node.
    pub mib: Option<(i64, Arc<str>)>,
}

/// A way to let the gang start.
#[derive(Clone, Debug, PartialEq)]
pub struct Remedy {
    /// Steps that are all needed.
    pub steps: Vec<Step>,
    /// Whether a cycle on a copy of the cluster started the gang once the steps were carried out. If not, the steps are necessary, and
    /// more may be.
    pub tried: bool,
}

/// One step of a remedy. A step on "the gang" is on the gang that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// End a gang: delete its pods, and what would create them again.
    End {
        /// The gang.
        gang: Arc<GangKey>,
        /// Its pods that have not ended.
        pods: u32,
        /// Whether all of them wait: then the gang is withdrawn.
        waits: bool,
    },
    /// Raise a bound of a queue.
    Raise {
        /// The name of the queue.
        queue: String,
        /// Which bound.
        bound: RaisedBound,
        /// Of which resource.
        resource: Resource,
        /// The bound at present.
        from: i64,
        /// The bound that suffices.
        to: i64,
    },
    /// Make the gang preemptible: then the quota of its queue does not bound it.
    MakePreemptible,
    /// Every waiting pod of the gang that asks for more asks for this.
    AskAtMost(Ask),
    /// Lower the minimum of the gang or subgroup.
    LowerMinimum {
        /// `None` = the gang itself.
        sub_group: Option<String>,
        /// The minimum at present.
        from: u32,
        /// The minimum that suffices.
        to: u32,
    },
    /// Make a cordoned node schedulable.
    Uncordon(Arc<str>),
    /// Repair a node.
    MakeReady {
        /// The node.
        node: Arc<str>,
        /// What keeps pods away.
        conditions: Vec<NodeCondition>,
    },
    /// Add nodes with the resources, labels and taints of a node.
    AddNodes {
        /// How many.
        count: u32,
        /// The node.
        like: Arc<str>,
    },
    /// Leave out a constraint of the gang and its waiting pods.
    Relax(Constraint),
    /// Remove the scheduling gates of the gang's pods.
    RemoveGates {
        /// How many pods have some.
        pods: u32,
    },
    /// Create the pods that the gang lacks.
    CreatePods {
        /// `None` = a gang without subgroups.
        sub_group: Option<String>,
        /// How many.
        count: u32,
    },
    /// Create the gang that the pod names.
    CreateGang(Option<GangKey>),
    /// Create a queue.
    CreateQueue(String),
    /// Name a leaf queue that exists; this one is not.
    NameLeafQueue(String),
    /// Change the parent of a queue that is below itself.
    ChangeParent(String),
    /// Name a subgroup that exists; this one does not.
    NameSubGroup(String),
    /// Create a topology, or a level of it.
    CreateTopology {
        /// The topology.
        topology: String,
        /// The level, if only the level is missing.
        level: Option<String>,
    },
    /// Correct what the reason names: the pod or gang is refused.
    Correct,
    /// Wait.
    Wait(Wait),
}

impl Step {
    /// The name of the kind of step in API answers.
    pub fn kind(&self) -> &'static str {
        match self {
            Step::End { .. } => "end",
            Step::Raise {
                bound: RaisedBound::Limit,
                ..
            } => "raiseLimit",
            Step::Raise {
                bound: RaisedBound::Quota,
                ..
            } => "raiseQuota",
            Step::MakePreemptible => "makePreemptible",
            Step::AskAtMost(_) => "askAtMost",
            Step::LowerMinimum { .. } => "lowerMinimum",
            Step::Uncordon(_) => "uncordon",
            Step::MakeReady { .. } => "makeReady",
            Step::AddNodes { .. } => "addNodes",
            Step::Relax(_) => "relax",
            Step::RemoveGates { .. } => "removeGates",
            Step::CreatePods { .. } => "createPods",
            Step::CreateGang(_) => "createPodGroup",
            Step::CreateQueue(_) => "createQueue",
            Step::NameLeafQueue(_) => "nameLeafQueue",
            Step::ChangeParent(_) => "changeParent",
            Step::NameSubGroup(_) => "nameSubGroup",
            Step::CreateTopology { .. } => "createTopology",
            Step::Correct => "correct",
            Step::Wait(_) => "wait",
        }
    }
}

/// A bound of a queue that is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaisedBound {
    /// The limit.
    Limit,
    /// The quota.
    Quota,
}

/// A smaller request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Whole GPUs.
    Gpus(i64),
    /// MiB per GPU.
    GpuMemoryMib(i64),
    /// Hundredths of each GPU.
    GpuHundredths(i64),
    /// Milli-cores.
    CpuMilli(i64),
    /// Bytes.
    MemoryBytes(i64),
}

/// A constraint on the nodes that pods of a gang may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Constraint {
    /// Node selector and required node affinity.
    NodeAffinity,
    /// Taints that the pods don't tolerate.
    Taints,
    /// Host ports.
    HostPorts,
    /// Pod affinity.
    PodAffinity,
    /// The pods' own anti-affinity.
    PodAntiAffinity,
    /// The topology constraints of the gang and its subgroups.
    Topology,
    /// The enforcement that GPU shares require.
    Enforcement,
    /// The compute mode of GPU shares.
    ComputeMode,
}

/// What a gang waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The next cycle starts the gang.
    NextCycle,
    /// The gang has a place, where other pods are being deleted.
    Release {
        /// The node.
        node: String,
        /// The pods that are being deleted there.
        pods: u32,
    },
    /// The end of the gang's preemption delay.
    PreemptionDelay(Millis),
    /// The end of other gangs' minimum runtime, which protects them.
    MinRuntime(Millis),
    /// The search was cut by the budget of a cycle, and goes on.
    LaterCycles,
    /// The end of the pause after a failed attempt.
    BackOff,
}

/// Why there is no remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRemedy {
    /// The pod does not wait.
    NotWaiting,
    /// No node could hold a pod of the gang, even if it were empty.
    NoNodeLargeEnough {
        /// The node with the most GPUs, of those that the pod may use; `None` = the pod may use none.
        largest: Option<LargestNode>,
    },
    /// The policy has no action that starts gangs where there is room.
    NoAllocate,
    /// No candidate that was tried starts the gang.
    NotFound,
}

/// The largest node of those that a pod may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargestNode {
    /// The node.
    pub node: Arc<str>,
    /// Its GPUs.
    pub gpus: i64,
    /// MiB of each; `None` = unknown.
    pub gpu_memory_mib: Option<i64>,
}
