//! Pods as the engine sees them.

use super::{GangKey, LabelSelector, Labels, Millis, NodeSelectorTerm, WeightedNodeTerm};
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
    /// What the pod is to the scheduler.
    pub kind: PodKind,
    /// The gang it belongs to.
    pub gang: Option<GangKey>,
    /// The leaf subgroup it belongs to; `None` = the gang's only one.
    pub sub_group: Option<String>,
    /// Phase.
    pub phase: PodPhase,
    /// The node it is bound to.
    pub node: Option<String>,
    /// When it has to be gone, once deletion was asked for.
    pub deletion: Option<Millis>,
    /// Held back by scheduling gates.
    pub gated: bool,
    /// A decision of ours that is being carried out.
    pub bind_in_flight: Option<BindInFlight>,
    /// GPU groups it shares, by label.
    pub gpu_groups: Vec<String>,
    /// What it asks for.
    pub requests: Requests,
    /// Where it can run.
    pub constraints: Constraints,
    /// Labels, for the affinity of others.
    pub labels: Labels,
    /// Its place within the gang.
    pub rank: TaskRank,
    /// A node that a former decision promised.
    pub nominated_node: Option<String>,
    /// Something about the pod that this scheduler can't serve, as a sentence; the pod waits with it as the reason.
    pub refused: Option<String>,
}

/// What a pod is to the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodKind {
    /// Ours to place.
    Workload,
    /// Holds a shared GPU for workloads; takes everything it asks for but the GPU.
    Reservation,
    /// Another helper of ours (scaling pods): not foreign, but never placed.
    Utility,
    /// Another scheduler's: its share of the cluster is not ours to divide.
    Foreign,
}

/// Phase of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPhase {
    /// Not started.
    Pending,
    /// Started.
    Running,
    /// Ended well.
    Succeeded,
    /// Ended badly.
    Failed,
    /// Its node does not answer.
    Unknown,
}

/// A binding under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindInFlight {
    /// The chosen node.
    pub node: String,
    /// The chosen GPU groups.
    pub gpu_groups: Vec<String>,
}

/// What a pod asks for; init containers, sidecars and overhead are already folded in.
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

/// The GPUs a pod asks for.
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
        /// Billionths of a device, 1 to 1_000_000_000.
        billionths: i64,
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
        /// Asked for by the old annotation: counted where it runs, never placed anew.
        legacy: bool,
    },
}

/// Terms about other pods that one pod may have; each costs a look per node. Far above what pods have.
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
    /// Ports on the node.
    pub host_ports: Vec<HostPort>,
    /// Pod affinity.
    pub affinity: Affinity,
    /// Pod anti-affinity.
    pub anti_affinity: Affinity,
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

/// A port that the pod takes on its node.
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
    /// Whether both can't be on one node.
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
    /// Whether nothing is asked.
    pub fn is_empty(&self) -> bool {
        self.required.is_empty() && self.preferred.is_empty()
    }
}

/// Pods to be near to, or away from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodAffinityTerm {
    /// Which pods; `None` matches none.
    pub selector: Option<LabelSelector>,
    /// In which namespaces; `None` = everywhere. The pod's own namespace is filled in by the edge.
    pub namespaces: Option<Vec<String>>,
    /// The node label that says what near means.
    pub topology_key: String,
}

/// A preference about other pods.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightedPodAffinityTerm {
    /// 1 to 100.
    pub weight: i32,
    /// The term.
    pub term: PodAffinityTerm,
}

/// A pod's place within its gang: who is started first and evicted last. Compared before creation time and uid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskRank {
    /// Master or launcher of a Kubeflow job.
    pub leads_kubeflow_job: bool,
    /// Head of a Ray cluster.
    pub heads_ray_cluster: bool,
    /// `kai.scheduler/task-priority`: outer `None` = no label, inner `None` = not a number.
    pub priority: Option<Option<i64>>,
}
