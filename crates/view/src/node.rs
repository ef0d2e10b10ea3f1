//! Nodes and their GPUs.
//!
//! The API does not say which physical GPU the kubelet gave to a pod with whole GPUs. The GPUs of a node are therefore in no physical
//! order: shared GPUs first, then those of whole-GPU pods, then idle and unhealthy ones. A shared GPU has its UUID once its reservation
//! pod has reported it.

use std::sync::Arc;

use kai_engine::Cluster;
use kai_engine::model::{MemoryKind, MigStrategy, PodKind};
use kai_engine::report::{NodeView, PodGpus, PodView, Status};
use kai_mirror::ClusterMirror;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::enforcement::{self, NodeEnforcement};
use crate::interner::Interner;
use crate::node_facts::{self, NodeCondition, TopologyDomain};
use crate::{Knowledge, PodStatus, Text, TextMap};

/// The label with the model of the GPUs, set by the node agent and by GPU feature discovery.
const MODEL_LABEL: &str = "nvidia.com/gpu.product";
/// The condition that a kubelet sets.
const READY_CONDITION: &str = "Ready";
/// GPUs of a node that a view lists one by one. No machine has as many; a wrong label must not make a view of gigabytes.
const GPUS_MAX: i64 = 1_024;

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Name.
    pub name: Text,
    /// Whether no condition of the node keeps pods away.
    pub ready: bool,
    /// Whether the node is cordoned.
    pub cordoned: bool,
    /// Model of its GPUs; `None` = not labelled.
    pub gpu_model: Option<Text>,
    /// MiB of each GPU; `None` = unknown.
    pub gpu_memory_mib: Option<i64>,
    /// Whether GPU memory is part of the node's RAM.
    pub unified_memory: bool,
    /// `single` or `mixed`, where the node offers MIG slices.
    pub mig_strategy: Option<Text>,
    /// GPUs that the node offers to pods; replicas, where they are time-sliced.
    pub gpus_allocatable: i64,
    /// GPUs that the device plugin reports unhealthy; `None` = unknown.
    pub gpus_unhealthy: Option<i64>,
    /// Physical GPUs.
    pub gpus: Vec<Gpu>,
    /// MIG slices and replicas: parts of GPUs that the kubelet chooses.
    pub slices: Vec<Slices>,
    /// CPU in milli-cores.
    pub cpu_milli: Usage,
    /// Memory in bytes.
    pub memory_bytes: Usage,
    /// Node pool: the value of the scheduler's node pool label; `None` = not labelled.
    pub pool: Option<Text>,
    /// The domains of the cluster's topologies that the node is in, by topology, outermost level first.
    #[serde(default)]
    pub topology: Vec<TopologyDomain>,
    /// Version of the GPU driver; `None` = not labelled.
    pub driver: Option<Text>,
    /// How containers are held to their GPU memory.
    #[serde(default)]
    pub gpu_enforcement: NodeEnforcement,
    /// Labels of the GPUs, of KAI and of topologies.
    #[serde(default)]
    pub labels: Arc<TextMap>,
    /// Conditions, by kind.
    #[serde(default)]
    pub conditions: Arc<[NodeCondition]>,
}

impl Node {
    /// Whether the node says by a condition if it is ready. `ready` of one that does not only means that nothing keeps pods away.
    pub fn reports_readiness(&self) -> bool {
        self.conditions
            .iter()
            .any(|condition| condition.kind == READY_CONDITION)
    }
}

/// An amount of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// What pods can have.
    pub allocatable: i64,
    /// What pods hold or requested; `None` = unknown.
    pub used: Option<i64>,
}

/// A physical GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// What it is used for.
    pub state: GpuState,
    /// UUID, where a reservation pod reports it.
    pub uuid: Option<Text>,
    /// GPU group of a shared GPU.
    pub gpu_group: Option<Text>,
    /// MiB that its pods hold or are promised; `None` = unknown.
    pub used_mib: Option<i64>,
    /// Its pods.
    pub pods: Vec<GpuUser>,
}

/// What a GPU is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum GpuState {
    /// No pod has it.
    Idle,
    /// One pod has all of it.
    Whole,
    /// The pods of a GPU group share it.
    Shared,
    /// Its replicas are offered to pods; the node's `slices` have the pods.
    TimeSliced,
    /// Held, though no pod of the view has it: a reservation pod that is being deleted, a GPU group that lost its reservation, or a
    /// pod that is moved away.
    Held,
    /// The device plugin reports it unhealthy.
    Unhealthy,
    /// Not known: pods are missing in the view.
    Unknown,
}

/// A pod on a GPU or on slices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuUser {
    /// Namespace.
    pub namespace: Text,
    /// Name.
    pub name: Text,
    /// Status in scheduling.
    pub status: PodStatus,
    /// Whether another scheduler placed it.
    pub foreign: bool,
    /// MiB of the GPU; `None` = unknown, or a slice.
    pub mib: Option<i64>,
    /// The most MiB of the GPU that it may allocate, as it was promised; `None` = not promised, or a whole GPU or slice.
    #[serde(default)]
    pub limit_mib: Option<u64>,
    /// Slices; 0 on a GPU.
    pub slices: i64,
}

/// The parts of GPUs under one resource name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Slices {
    /// Resource name, such as `nvidia.com/mig-1g.5gb`.
    pub resource: Text,
    /// What the parts are.
    pub kind: SlicesKind,
    /// How many the node offers.
    pub allocatable: i64,
    /// How many pods have; `None` = unknown.
    pub used: Option<i64>,
    /// Their pods.
    pub pods: Vec<GpuUser>,
}

/// Kinds of parts of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SlicesKind {
    /// MIG slices: hardware partitions.
    Mig,
    /// Replicas: time-slicing, without a bound on memory.
    Replica,
}

pub(crate) fn nodes(
    engine: &Cluster,
    own: &[PodView<'_>],
    mirror: &ClusterMirror,
    knowledge: &Knowledge,
    texts: &mut Interner,
) -> Vec<Node> {
    let others = engine.other_pods();
    let mut users: FxHashMap<&str, Vec<&PodView<'_>>> = FxHashMap::default();
    for pod in own.iter().chain(&others).filter(|pod| uses_gpus(pod)) {
        if let Some(node) = pod.node {
            users.entry(node).or_default().push(pod);
        }
    }
    let views = engine.nodes();
    let views = views.iter().map(|view| {
        let users = users.get(view.name).map(Vec::as_slice).unwrap_or_default();
        node(view, users, mirror, knowledge, texts)
    });
    views.collect()
}

/// Whether the pod holds or is promised GPUs, in its own name. A reservation pod holds one in the name of the pods of its GPU group.
fn uses_gpus(pod: &PodView<'_>) -> bool {
    let has_place = match pod.status {
        Status::Pipelined
        | Status::Binding
        | Status::Bound
        | Status::Running
        | Status::Releasing
        | Status::StuckInReleasing
        | Status::Unknown => true,
        Status::Pending | Status::Gated | Status::Succeeded | Status::Failed => false,
    };
    let in_own_name = match pod.kind {
        PodKind::Workload | PodKind::Foreign => true,
        PodKind::Reservation | PodKind::Utility => false,
    };
    has_place && in_own_name && pod.gpus != PodGpus::None
}

fn node(
    view: &NodeView<'_>,
    users: &[&PodView<'_>],
    mirror: &ClusterMirror,
    knowledge: &Knowledge,
    texts: &mut Interner,
) -> Node {
    let known = knowledge.all_pods();
    let usage = |allocatable: i64, idle: i64| Usage {
        allocatable,
        used: known.then(|| allocatable - idle),
    };
    let label = |key: &str, texts: &mut Interner| view.labels.get(key).map(|text| texts.text(text));
    let unhealthy = mirror.failed_gpus(view.name);
    Node {
        name: texts.text(view.name),
        ready: !view.unhealthy,
        cordoned: view.cordoned,
        gpu_model: label(MODEL_LABEL, texts),
        gpu_memory_mib: view.gpu_memory_mib,
        unified_memory: view.memory_kind == MemoryKind::Unified,
        mig_strategy: match view.mig_strategy {
            MigStrategy::None => None,
            MigStrategy::Single => Some(texts.text("single")),
            MigStrategy::Mixed => Some(texts.text("mixed")),
        },
        gpus_allocatable: view.gpus,
        gpus_unhealthy: unhealthy,
        gpus: {
            let mut gpus = gpus(view, users, mirror, known, texts);
            gpus.shrink_to_fit();
            gpus
        },
        slices: slices(view, users, known, texts),
        cpu_milli: usage(view.cpu_milli, view.cpu_idle_milli),
        memory_bytes: usage(view.memory_bytes, view.memory_idle_bytes),
        pool: label(mirror.node_pool_label(), texts),
        topology: node_facts::domains(view.labels, mirror, texts),
        driver: node_facts::driver(view.labels).map(|version| texts.text(&version)),
        gpu_enforcement: enforcement::of_node(view.name, view.labels, mirror, texts),
        labels: node_facts::shown_labels(view.labels, mirror, texts),
        conditions: node_facts::conditions(view.name, mirror, texts),
    }
}

fn is_time_sliced(view: &NodeView<'_>) -> bool {
    view.gpus > view.physical_gpus
}

fn user(pod: &PodView<'_>, mib: Option<i64>, slices: i64, texts: &mut Interner) -> GpuUser {
    GpuUser {
        namespace: texts.text(pod.namespace),
        name: texts.text(pod.name),
        status: pod.status.into(),
        foreign: pod.kind == PodKind::Foreign,
        mib,
        limit_mib: None,
        slices,
    }
}

fn gpus(
    view: &NodeView<'_>,
    users: &[&PodView<'_>],
    mirror: &ClusterMirror,
    known: bool,
    texts: &mut Interner,
) -> Vec<Gpu> {
    let mut gpus = shared_gpus(view, users, mirror, texts);
    let empty = |state, used_mib| Gpu {
        state,
        uuid: None,
        gpu_group: None,
        used_mib,
        pods: Vec::new(),
    };
    let room = |gpus: &Vec<Gpu>, wanted: i64| wanted.clamp(0, GPUS_MAX - gpus.len() as i64).max(0);
    if is_time_sliced(view) {
        let rest = room(&gpus, view.physical_gpus - gpus.len() as i64);
        gpus.extend((0..rest).map(|_| empty(GpuState::TimeSliced, None)));
        return gpus;
    }
    for pod in users {
        let PodGpus::Whole { devices } = pod.gpus else { continue };
        for _ in 0..room(&gpus, devices) {
            let mut gpu = empty(GpuState::Whole, view.gpu_memory_mib);
            // A vector of one: `push` would make room for four.
            gpu.pods = vec![user(pod, view.gpu_memory_mib, 0, texts)];
            gpus.push(gpu);
        }
    }
    let rest = view.gpus - gpus.len() as i64;
    if !known {
        gpus.extend((0..room(&gpus, rest)).map(|_| empty(GpuState::Unknown, None)));
        return gpus;
    }
    let idle = room(&gpus, view.idle_devices.min(rest));
    let held = room(&gpus, rest - idle);
    gpus.extend((0..held).map(|_| empty(GpuState::Held, None)));
    gpus.extend((0..idle).map(|_| empty(GpuState::Idle, Some(0))));
    // A pod keeps a GPU that fails while the pod runs, and the API does not say which one: such a GPU is listed with its pod.
    let failed = mirror.failed_gpus(view.name).unwrap_or(0);
    let failed = room(&gpus, view.gpus + failed - gpus.len() as i64);
    gpus.extend((0..failed).map(|_| empty(GpuState::Unhealthy, None)));
    gpus
}

fn shared_gpus(view: &NodeView<'_>, users: &[&PodView<'_>], mirror: &ClusterMirror, texts: &mut Interner) -> Vec<Gpu> {
    let mut pods: FxHashMap<&str, Vec<GpuUser>> = FxHashMap::default();
    for pod in users {
        let PodGpus::Share { mib, .. } = pod.gpus else { continue };
        let limit_mib = crate::pod::metadata(pod, mirror).and_then(enforcement::promised_mib);
        for gpu_group in &pod.gpu_groups {
            let user = GpuUser {
                limit_mib,
                ..user(pod, mib, 0, texts)
            };
            pods.entry(gpu_group).or_default().push(user);
        }
    }
    let known_memory = view.gpu_memory_mib.is_some();
    let mut gpus: Vec<Gpu> = view
        .shared
        .iter()
        .map(|shared| Gpu {
            state: GpuState::Shared,
            uuid: mirror.gpu_of_group(&shared.gpu_group).map(|uuid| texts.text(uuid)),
            gpu_group: Some(texts.text(&shared.gpu_group)),
            used_mib: known_memory.then_some(shared.used_mib),
            pods: {
                let mut pods = pods.remove(shared.gpu_group.as_str()).unwrap_or_default();
                pods.shrink_to_fit();
                pods
            },
        })
        .collect();
    // The ids of GPU groups are random: by them, the GPUs of two equal clusters would be in different orders.
    let first = |gpu: &Gpu| gpu.pods.first().map(|pod| (pod.namespace.clone(), pod.name.clone()));
    gpus.sort_by_cached_key(|gpu| (gpu.uuid.is_none(), gpu.uuid.clone(), first(gpu), gpu.gpu_group.clone()));
    gpus
}

fn slices(view: &NodeView<'_>, users: &[&PodView<'_>], known: bool, texts: &mut Interner) -> Vec<Slices> {
    let mut all: Vec<Slices> = Vec::new();
    if is_time_sliced(view) {
        let pods = users.iter().filter_map(|pod| match pod.gpus {
            PodGpus::Whole { devices } => Some(user(pod, None, devices, texts)),
            PodGpus::None | PodGpus::Share { .. } | PodGpus::Mig(_) => None,
        });
        all.push(Slices {
            resource: kai_api::keys::RESOURCE_GPU.into(),
            kind: SlicesKind::Replica,
            allocatable: view.gpus,
            used: known.then(|| view.gpus - view.idle_devices),
            pods: pods.collect(),
        });
    }
    for (resource, idle, allocatable) in &view.mig {
        let pods = users.iter().filter_map(|pod| match &pod.gpus {
            PodGpus::Mig(slices) => {
                let (_, count) = slices.iter().find(|(name, _)| name == resource)?;
                Some(user(pod, None, *count, texts))
            }
            PodGpus::None | PodGpus::Whole { .. } | PodGpus::Share { .. } => None,
        });
        all.push(Slices {
            resource: Text::from(*resource),
            kind: SlicesKind::Mig,
            allocatable: *allocatable,
            used: known.then(|| allocatable - idle),
            pods: pods.collect(),
        });
    }
    all
}
