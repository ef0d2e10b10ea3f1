//! Pods.

use super::{
    GangKey, GpuFraction, LabelSelector, Labels, Millis, NodeSelectorTerm, ShareTerms, UnboundClaim, UsedVolumes,
    VolumeChoice, WeightedNodeTerm,
};
use crate::reasons::Refusal;
use crate::steps;

/// A pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodSpec {
    /// Unique id.
    pub uid: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Creation time: older first within a gang.
    pub created: Millis,
    /// How the scheduler treats the pod.
    pub kind: PodKind,
    /// The gang of the pod.
    pub gang: Option<GangKey>,
    /// The leaf subgroup of the pod; `None` = the gang has no subgroups.
    pub sub_group: Option<String>,
    /// Phase.
    pub phase: PodPhase,
    /// The node that the pod is bound to.
    pub node: Option<String>,
    /// The deletion time, if the pod is being deleted.
    pub deletion: Option<Millis>,
    /// Whether the pod has scheduling gates.
    pub gated: bool,
    /// Whether the pod is a background pod: a gang of such pods makes room for every other gang.
    pub background: bool,
    /// A binding that is being carried out.
    pub bind_in_flight: Option<BindInFlight>,
    /// GPU groups of the pod, from its labels.
    pub gpu_groups: Vec<String>,
    /// Resource requests.
    pub requests: Requests,
    /// Limits on the nodes where the pod can run.
    pub constraints: Constraints,
    /// The volumes of the pod that other pods can miss.
    pub volumes: UsedVolumes,
    /// Labels; affinity terms of other pods read them.
    pub labels: Labels,
    /// Rank within the gang.
    pub rank: TaskRank,
    /// The node to which an earlier cycle pipelined the pod.
    pub nominated_node: Option<String>,
    /// Why this scheduler can't serve the pod; the pod waits with it as the reason.
    pub refused: Option<Refusal>,
}

impl PodSpec {
    /// A pod that waits and requests nothing, of no gang, created at time zero. Its uid is its name.
    pub fn new(namespace: &str, name: &str) -> PodSpec {
        PodSpec {
            uid: name.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            created: Millis(0),
            kind: PodKind::Workload,
            gang: None,
            sub_group: None,
            phase: PodPhase::Pending,
            node: None,
            deletion: None,
            gated: false,
            background: false,
            bind_in_flight: None,
            gpu_groups: Vec::new(),
            requests: Requests::default(),
            constraints: Constraints::default(),
            volumes: UsedVolumes::default(),
            labels: Labels::new(),
            rank: TaskRank::default(),
            nominated_node: None,
            refused: None,
        }
    }
}

/// How the scheduler treats a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodKind {
    /// Placed by this scheduler.
    Workload,
    /// A reservation pod, which holds a shared GPU for workloads. Charged for its requests without the GPU.
    Reservation,
    /// Another pod of the scheduler itself (scaling pods): neither placed nor foreign.
    Utility,
    /// A pod of another scheduler: its resources are not divided among queues.
    Foreign,
}

/// Phase of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPhase {
    /// No container has started.
    Pending,
    /// A container has started.
    Running,
    /// Ended with success.
    Succeeded,
    /// Ended with an error.
    Failed,
    /// The node does not report the pod.
    Unknown,
}

/// A binding that is being carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindInFlight {
    /// The chosen node.
    pub node: String,
    /// The chosen GPU groups.
    pub gpu_groups: Vec<String>,
    /// What the claims get that had no volume.
    pub volumes: Vec<VolumeChoice>,
}

/// The resource requests of a pod, including init containers, sidecars and overhead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Requests {
    /// Milli-cores.
    pub cpu_milli: i64,
    /// Bytes.
    pub memory_bytes: i64,
    /// GPUs.
    pub gpu: GpuRequest,
    /// Every other resource in its own unit, sorted by name; MIG slices are in `gpu`.
    pub extended: Vec<(String, i64)>,
}

/// The GPU request of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum GpuRequest {
    /// None.
    #[default]
    None,
    /// Whole devices.
    Whole {
        /// How many; at least 1.
        devices: i64,
    },
    /// The same part of each of several devices.
    Fraction {
        /// The part of each device; more than nothing.
        fraction: GpuFraction,
        /// How many; at least 1.
        devices: i64,
    },
    /// The same amount of memory on each of several devices.
    Memory {
        /// MiB per device; at least 1.
        mib: i64,
        /// How many; at least 1.
        devices: i64,
    },
    /// MIG slices by resource name (`nvidia.com/mig-1g.5gb`), sorted by name.
    Mig {
        /// Resource name and count.
        slices: Vec<(String, i64)>,
        /// Requested by the legacy annotation: a running pod is accounted, a pending one is never placed.
        legacy: bool,
    },
}

/// How many pod affinity terms a pod may have. Each costs a check per node; real pods have far fewer.
pub const AFFINITY_TERMS_MAX: usize = 64;

/// Everything about a pod that limits where it can run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Constraints {
    /// Labels the node must have.
    pub node_selector: Vec<(String, String)>,
    /// Required node affinity: one of the terms must match; `None` = no requirement.
    pub required_nodes: Option<Vec<NodeSelectorTerm>>,
    /// Preferred node affinity.
    pub preferred_nodes: Vec<WeightedNodeTerm>,
    /// Tolerations.
    pub tolerations: Vec<Toleration>,
    /// Host ports.
    pub host_ports: Vec<HostPort>,
    /// Pod affinity.
    pub affinity: Affinity,
    /// Pod anti-affinity.
    pub anti_affinity: Affinity,
    /// Requirements of a pod with a GPU share.
    pub share: ShareTerms,
    /// The nodes that can use each volume of the pod: one term of each list must match.
    pub volume_nodes: Vec<Vec<NodeSelectorTerm>>,
    /// The claims of the pod that have no volume yet, those with the fewest suitable volumes first.
    pub claims: Vec<UnboundClaim>,
}

/// A toleration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Toleration {
    /// `None` = every key.
    pub key: Option<String>,
    /// `None` = every value (operator Exists).
    pub value: Option<String>,
    /// `None` = every effect.
    pub effect: Option<super::TaintEffect>,
}

impl Toleration {
    /// Whether this toleration covers the taint.
    pub fn tolerates(&self, taint: &super::Taint) -> bool {
        steps::count(1);
        self.effect.is_none_or(|effect| effect == taint.effect)
            && self.key.as_ref().is_none_or(|key| *key == taint.key)
            && self.value.as_ref().is_none_or(|value| *value == taint.value)
    }
}

/// A port of the node that the pod uses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// Address; empty = all.
    pub ip: String,
    /// Protocol.
    pub protocol: String,
    /// Port.
    pub port: u16,
}

impl HostPort {
    /// Whether both ports can't be used on one node.
    pub fn conflicts(&self, other: &HostPort) -> bool {
        steps::count(1);
        let any = |ip: &str| ip.is_empty() || ip == "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (any(&self.ip) || any(&other.ip) || self.ip == other.ip)
    }
}

/// Affinity or anti-affinity to other pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Affinity {
    /// All must hold.
    pub required: Vec<PodAffinityTerm>,
    /// Each adds its weight.
    pub preferred: Vec<WeightedPodAffinityTerm>,
}

impl Affinity {
    /// Whether there are no terms.
    pub fn is_empty(&self) -> bool {
        self.required.is_empty() && self.preferred.is_empty()
    }
}

/// A term of pod affinity or anti-affinity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodAffinityTerm {
    /// Which pods; `None` matches no pod.
    pub selector: Option<LabelSelector>,
    /// In which namespaces; `None` = in all. The caller fills in the pod's own namespace.
    pub namespaces: Option<Vec<String>>,
    /// The node label whose value is compared.
    pub topology_key: String,
}

/// A preferred term of pod affinity or anti-affinity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightedPodAffinityTerm {
    /// 1 to 100.
    pub weight: i32,
    /// The term.
    pub term: PodAffinityTerm,
}

/// A pod's rank within its gang: pods that are started first are evicted last. Compared before creation time and uid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskRank {
    /// Whether the pod is the master or launcher of a Kubeflow job.
    pub leads_kubeflow_job: bool,
    /// Whether the pod is the head of a Ray cluster.
    pub heads_ray_cluster: bool,
    /// `kai.scheduler/task-priority`: outer `None` = no label, inner `None` = not a number.
    pub priority: Option<Option<i64>>,
}
