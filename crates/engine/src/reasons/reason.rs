//! Why a pod waits and why a pod was evicted, as data.

use std::sync::Arc;

use crate::model::{Action, FractioningCondition, GangKey, Gpus, Millis};
use crate::reasons::{AffinityTermBound, Refusal};

/// Why a pod does not run.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// The pod names no gang, or one that does not exist.
    GangMissing(Option<GangKey>),
    /// The gang names no queue (an empty name), or one that does not exist.
    QueueMissing(String),
    /// The gang names a queue whose ancestors lead to no root.
    QueueDisconnected {
        /// The queue.
        queue: String,
        /// The ancestor that does not exist; `None` = the ancestors form a cycle.
        missing: Option<String>,
    },
    /// The gang names a queue that has children.
    QueueNotLeaf(String),
    /// The pod names a subgroup that its gang does not have.
    UnknownSubGroup(String),
    /// The gang exceeds a bound on subgroups.
    SubGroupsExceeded(SubGroupExcess),
    /// The pod has scheduling gates.
    Gated,
    /// The pod or its gang may not start.
    Refused(Refusal),
    /// The affinity terms of the pod exceed this bound.
    AffinityTermsExceeded(AffinityTermBound),
    /// Too few pods of the gang, or of a subgroup that the gang can start without, exist.
    GangNotReady {
        /// Pods that exist and can start.
        ready: u32,
        /// Pods that must start together; not above `ready` if only a subgroup lacks pods.
        required: u32,
        /// The first subgroups that lack pods, by name.
        lacking: Vec<PodsLacking>,
    },
    /// The pods would exceed the limit of a queue.
    OverLimit(QueueBound),
    /// The pods of a non-preemptible gang would exceed the quota of a queue.
    OverQuota(QueueBound),
    /// The core of a semi-preemptible gang would exceed the quota of a queue.
    CoreOverQuota(QueueBound),
    /// No node can take the pod.
    NoNode(Rejections),
    /// Too few pods of the gang fit on nodes.
    GangShort {
        /// Pods of the gang that would fit.
        placed: u32,
        /// Pods that must start together.
        required: u32,
        /// The subgroup that has too few; `None` = the gang itself.
        sub_group: Option<String>,
        /// Why the next pod does not fit.
        rejections: Rejections,
    },
    /// No domain of the required topology level can hold the gang or subgroup.
    NoDomain {
        /// Topology.
        topology: String,
        /// Level.
        level: String,
        /// Domains with the number of the pods that fit there, best first.
        domains: Vec<(String, u32)>,
        /// Pods that must be placed together.
        required: u32,
    },
    /// The topology or one of its levels does not exist.
    TopologyUnknown {
        /// Topology.
        topology: String,
        /// The level, if the level is missing.
        level: Option<String>,
    },
    /// The preemption delay of the gang is not over: it may not evict other gangs yet.
    PreemptionDelay {
        /// End of the delay.
        until: Millis,
    },
    /// The pod is pipelined.
    WaitsForRelease {
        /// The node.
        node: String,
    },
    /// The pod was evicted.
    Evicted(EvictionReason),
    /// The cycle did not try the pod.
    NotTried,
    /// The budget of the cycle was used up before the search for a node ended.
    CutShort,
}

/// A subgroup, or a gang without subgroups, that lacks pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodsLacking {
    /// The subgroup; `None` = a gang without subgroups.
    pub sub_group: Option<String>,
    /// Pods that must start together.
    pub required: u32,
    /// Pods that exist and have not ended.
    pub existing: u32,
    /// Pods of them that have scheduling gates.
    pub gated: u32,
}

/// Which bound on subgroups a gang exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubGroupExcess {
    /// The gang has this many subgroups, more than [`SUB_GROUPS_MAX`](crate::model::SUB_GROUPS_MAX).
    Count(u32),
    /// The subgroups are nested deeper than [`SUB_GROUP_DEPTH_MAX`](crate::model::SUB_GROUP_DEPTH_MAX).
    Depth,
}

/// A queue bound that a request would exceed, with the numbers that were compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueBound {
    /// The queue: the gang's queue or an ancestor of it.
    pub queue: String,
    /// Which resource.
    pub resource: Resource,
    /// The bound.
    pub bound: i64,
    /// What counts against the bound already.
    pub used: i64,
    /// What was requested on top.
    pub requested: i64,
}

/// A resource that queues divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Milli-cores.
    Cpu,
    /// Bytes.
    Memory,
    /// Millionths of a GPU.
    Gpu,
}

impl Resource {
    /// All resources, in the order of arrays in queue views.
    pub const ALL: [Resource; 3] = [Resource::Cpu, Resource::Memory, Resource::Gpu];
}

/// Why nodes can't take a pod: the first check that each node failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejections {
    /// Checks with the number of nodes that failed each, the most frequent first.
    pub checks: Vec<(Check, u32)>,
    /// Extended resources that the pod requests, if a node has too little of them.
    pub extended: Vec<String>,
    /// The gangs that hold the most GPUs on nodes which the pod may use, with these GPUs.
    pub holders: Arc<[(GangKey, Gpus)]>,
    /// Whether the victim search ended for lack of budget.
    pub search_cut: bool,
}

/// A check that a node failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// Too few free GPUs.
    Gpus,
    /// No device has enough memory left.
    GpuMemory,
    /// The device is smaller than the request.
    GpuTooSmall,
    /// Too little CPU.
    Cpu,
    /// Too little memory.
    Memory,
    /// No free pod slot.
    PodSlots,
    /// Too little of another resource (MIG slices included).
    Extended,
    /// Cordoned.
    Unschedulable,
    /// Not ready or under pressure.
    NotReady,
    /// Being removed.
    Leaving,
    /// Node selector or required node affinity.
    NodeAffinity,
    /// Taints.
    Taints,
    /// A requested host port is in use.
    HostPorts,
    /// Pod affinity.
    PodAffinity,
    /// Pod anti-affinity.
    PodAntiAffinity,
    /// The MIG mode of the node does not suit the GPU request.
    MigMismatch,
    /// The memory of the node's GPUs is not known.
    GpuMemoryUnknown,
    /// The node does not limit the memory of GPU shares.
    Enforcement,
    /// The node does not offer the compute mode.
    ComputeMode,
    /// The node's GPUs are for pods with compute mode `sm-sharing` alone.
    SmSharingOnly,
    /// The GPUs with enough memory left have pods of another compute mode.
    ComputeModeInUse,
    /// The node condition for GPU shares is not met.
    Fractioning(FractioningCondition),
    /// The node can't use a volume of the pod.
    VolumeNodes,
    /// A claim of the pod has no volume yet and can't get one there.
    VolumesToBind,
    /// A claim of the pod needs a new volume, and the storage of the node has no room for it.
    Storage,
    /// Another pod uses a claim of the pod that one pod alone can use.
    ExclusiveClaim,
    /// The node can't attach the volumes of the pod besides those that it has.
    AttachLimit,
    /// What the pod would be charged on the node exceeds a queue bound.
    QueueBound,
    /// Outside the topology domain.
    Domain,
}

/// Why a pod was evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionReason {
    /// For another gang.
    For {
        /// The action that evicted the pod.
        action: Action,
        /// The gang that gets the resources.
        gang: Arc<GangKey>,
        /// Whether the pod is already pipelined to another node.
        moved: bool,
        /// Pods evicted together.
        pods: u32,
        /// The numbers that allowed it; `None` for a pod that loses nothing because it is moved.
        fairness: Option<Arc<Fairness>>,
    },
    /// The gang of the pod ran below its minimum for too long.
    StaleGang,
    /// The gang of the pod falls below its minimum while it has pods on a node that is being removed.
    LeavingNode,
    /// The pod is a background pod in the way of other gangs.
    Background {
        /// Pods of its gang that were evicted together.
        pods: u32,
        /// What other gangs need.
        cause: BackgroundCause,
    },
}

/// The rule by which a pod was evicted for another gang, and the numbers that it compared, from before the evictions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fairness {
    /// Reclaim: the victim's queue holds more than its fair share and its quota.
    OverFairShare(SiblingQueues),
    /// Reclaim: the victim's queue holds more than its quota, and the other one stays within its quota.
    OverQuota(SiblingQueues),
    /// Preemption: the other gang has a higher priority.
    Priority {
        /// Of the victim.
        victim: i32,
        /// Of the gang that gets the resources.
        beneficiary: i32,
    },
}

/// The queues of a victim and of the gang that gets its resources, or those ancestors of them that are siblings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiblingQueues {
    /// The resource of which the victim's queue holds too much.
    pub resource: Resource,
    /// The victim's side.
    pub victim: HeldByQueue,
    /// The other side.
    pub beneficiary: HeldByQueue,
}

/// What a queue holds of a resource, and what it is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldByQueue {
    /// Name of the queue.
    pub queue: String,
    /// What its pods held.
    pub used: i64,
    /// Its fair share.
    pub fair_share: i64,
    /// Its quota; `None` = unlimited.
    pub quota: Option<i64>,
}

/// What other gangs need from a background gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackgroundCause {
    /// The room on its nodes.
    Room,
    /// What the limit or quota of a queue leaves.
    QueueBound,
}
