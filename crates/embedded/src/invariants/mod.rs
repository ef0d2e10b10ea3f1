//! What must hold at every instant of a cluster's life, whatever fails: no GPU, node or queue is promised beyond what it has. And what must
//! hold once things have settled: gangs whole or absent, a reason for all who wait, no helper object without a user.
//!
//! Judged from the objects in the API alone, by arithmetic of its own: it shares no code with the scheduler's decisions.

mod physical;
mod settled;
mod state;
mod watcher;

use std::collections::BTreeMap;
use std::sync::Arc;

use kai_api::keys;
use kai_engine::model::{GpuRequest, Millis, PodPhase, PodSpec};

use state::{Machine, State};
pub use watcher::Watcher;

/// A law that does not hold, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation(pub String);

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The objects that the laws are about.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Pods that have not ended.
    pub pods: Vec<Arc<kai_api::Pod>>,
    /// Nodes.
    pub nodes: Vec<Arc<kai_api::Node>>,
    /// Queues.
    pub queues: Vec<Arc<kai_api::Queue>>,
    /// Pod groups.
    pub pod_groups: Vec<Arc<kai_api::PodGroup>>,
    /// Bind requests.
    pub bind_requests: Vec<Arc<kai_api::BindRequest>>,
}

impl Snapshot {
    /// The present state of the watches.
    pub fn of(informers: &kai_cluster::Informers) -> Snapshot {
        Snapshot {
            pods: informers.pods().all(),
            nodes: informers.nodes().all(),
            queues: informers.queues().all(),
            pod_groups: informers.pod_groups().all(),
            bind_requests: informers.bind_requests().all(),
        }
    }

    /// Laws of every instant that do not hold.
    pub fn violations(&self) -> Vec<Violation> {
        State::of(self).violations()
    }

    /// Laws of a settled cluster that do not hold, those of every instant included.
    pub fn violations_when_settled(&self) -> Vec<Violation> {
        let state = State::of(self);
        let mut found = state.violations();
        settled::judge(self, &state, &mut found);
        found
    }
}

/// A pod with a node.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) spec: PodSpec,
    pub(crate) node: String,
    pub(crate) leaves: bool,
    pub(crate) is_reservation: bool,
    pub(crate) reserved: Option<String>,
    pub(crate) group: Option<String>,
    /// The scheduler that it asks for.
    scheduler: String,
    /// Whether its containers run, so that a kubelet has taken it in.
    runs: bool,
}

impl Bound {
    fn of(pod: &kai_api::Pod) -> Option<Bound> {
        let node = pod.node_name()?.to_owned();
        let spec = pod.read(&crate::kubelet::any_pod(), Millis(0)).ok()?.value;
        if matches!(spec.phase, PodPhase::Succeeded | PodPhase::Failed) {
            return None;
        }
        let label = |key: &str| pod.metadata.labels.text(key).map(str::to_owned);
        let is_reservation =
            pod.metadata.namespace() == keys::RESERVATION && label(keys::APP).as_deref() == Some(keys::RESERVATION);
        Some(Bound {
            node,
            leaves: pod.metadata.deletion_timestamp.is_some(),
            is_reservation,
            reserved: pod.metadata.annotations.text(keys::RESERVED_GPU).map(str::to_owned),
            group: label(keys::GPU_GROUP),
            scheduler: pod.scheduler_name().to_owned(),
            runs: spec.phase == PodPhase::Running,
            spec,
        })
    }

    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.spec.namespace, self.spec.name)
    }

    /// Whether another scheduler than ours placed it.
    pub(crate) fn is_foreign(&self) -> bool {
        !self.is_reservation && self.scheduler != keys::SCHEDULER_NAME
    }

    /// GPUs that it asks for as a whole.
    pub(crate) fn whole_gpus(&self) -> i64 {
        match self.spec.requests.gpu {
            GpuRequest::Whole { devices } => devices,
            GpuRequest::None | GpuRequest::Fraction { .. } | GpuRequest::Memory { .. } | GpuRequest::Mig { .. } => 0,
        }
    }

    /// GPUs that it counts as, on a machine whose GPUs have this memory.
    fn gpus(&self, memory_mib: Option<i64>) -> f64 {
        match &self.spec.requests.gpu {
            GpuRequest::None | GpuRequest::Mig { .. } => 0.0,
            GpuRequest::Whole { devices } => *devices as f64,
            GpuRequest::Fraction { billionths, devices } => *billionths as f64 / 1e9 * *devices as f64,
            GpuRequest::Memory { mib, devices } => {
                *mib as f64 / memory_mib.unwrap_or(i64::MAX) as f64 * *devices as f64
            }
        }
    }

    /// MiB that it takes of each GPU that it shares.
    fn share_mib(&self, memory_mib: i64) -> Option<i64> {
        match &self.spec.requests.gpu {
            GpuRequest::Fraction { billionths, .. } => {
                let share = i128::from(*billionths) * i128::from(memory_mib) / 1_000_000_000;
                i64::try_from(share).ok()
            }
            GpuRequest::Memory { mib, .. } => Some(*mib),
            GpuRequest::None | GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => None,
        }
    }
}

/// What is asked for on a node stays within what it has: cores, memory, pods, devices.
fn node_holds(machine: &Machine, pods: &[&Bound], found: &mut Vec<Violation>) {
    let Some((cpu_milli, memory_bytes)) = machine.room else {
        return;
    };
    let (node, name) = (&machine.node, machine.node.metadata.plain_name());
    let sum = |of: &dyn Fn(&PodSpec) -> i64| pods.iter().map(|pod| of(&pod.spec)).sum::<i64>();
    let mut check = |what: &str, used: i64, there: i64| {
        if used > there {
            found.push(Violation(format!(
                "node {name} has {there} {what}, its pods were promised {used}"
            )));
        }
    };
    check("milli-cores", sum(&|pod| pod.requests.cpu_milli), cpu_milli);
    check("bytes of memory", sum(&|pod| pod.requests.memory_bytes), memory_bytes);
    // A GPU that fails leaves more pods on a node than it now has devices for: judge by what it had.
    let devices = node.capacity(keys::RESOURCE_GPU).unwrap_or(0);
    // A reservation pod that was told no GPU yet is a question to the kubelet; nothing was promised to anybody on its account. Nor is what
    // another scheduler promised our doing, as long as the kubelet has not taken the pod in.
    let promised = pods.iter().filter(|pod| match (pod.is_reservation, pod.is_foreign()) {
        (true, _) => pod.reserved.is_some(),
        (false, true) => pod.runs,
        (false, false) => true,
    });
    let whole: i64 = promised.map(|pod| pod.whole_gpus()).sum();
    // Two schedulers may promise one GPU at a time; the kubelet then refuses one of the pods.
    let with_gpus = || pods.iter().filter(|pod| pod.whole_gpus() > 0);
    let is_race = with_gpus().any(|pod| pod.is_foreign()) && with_gpus().any(|pod| !pod.runs);
    check("GPUs", if is_race { 0 } else { whole }, devices);
    let mut slices: BTreeMap<&str, i64> = BTreeMap::new();
    for pod in pods {
        if let GpuRequest::Mig { slices: asked, .. } = &pod.spec.requests.gpu {
            asked
                .iter()
                .for_each(|(name, count)| *slices.entry(name).or_default() += count);
        }
    }
    for (slice, used) in slices {
        check(slice, used, node.capacity(slice).unwrap_or(0));
    }
}

/// Shares of one GPU add up to no more than its memory, and no two groups hold the same GPU.
fn shared_gpus_hold(machine: &Machine, pods: &[&Bound], found: &mut Vec<Violation>) {
    let (node, name) = (&machine.node, machine.node.metadata.plain_name());
    let Some(memory) = machine.gpu_memory_mib else { return };
    let replicated = node
        .metadata
        .labels
        .text(keys::NODE_GPU_COUNT)
        .and_then(|text| text.parse::<i64>().ok())
        < node.capacity(keys::RESOURCE_GPU);
    let mut by_group: BTreeMap<&str, i64> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !pod.is_reservation) {
        let Some(share) = pod.share_mib(memory) else { continue };
        for group in &pod.spec.gpu_groups {
            *by_group.entry(group).or_default() += share;
        }
    }
    for (group, used) in &by_group {
        if *used > memory {
            found.push(Violation(format!(
                "GPU group {group} on node {name} has {memory} MiB, its pods were promised {used}"
            )));
        }
    }
    let mut by_uuid: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| pod.is_reservation && !pod.leaves) {
        if let Some(uuid) = &pod.reserved {
            by_uuid.entry(uuid).or_default().push(pod.name());
        }
    }
    for (uuid, holders) in by_uuid.iter().filter(|(_, holders)| holders.len() > 1 && !replicated) {
        found.push(Violation(format!(
            "GPU {uuid} on node {name} is held by {}",
            holders.join(" and ")
        )));
    }
    if replicated {
        physical_gpus_hold(name, memory, pods, &by_group, &by_uuid, found);
    }
}

/// Replicas of one GPU are one memory: groups that hold replicas of the same GPU share it.
fn physical_gpus_hold(
    node: &str,
    memory: i64,
    pods: &[&Bound],
    by_group: &BTreeMap<&str, i64>,
    by_uuid: &BTreeMap<&str, Vec<String>>,
    found: &mut Vec<Violation>,
) {
    for (uuid, holders) in by_uuid {
        let groups = pods
            .iter()
            .filter(|pod| pod.is_reservation && holders.contains(&pod.name()));
        let used: i64 = groups
            .filter_map(|pod| pod.group.as_deref())
            .filter_map(|group| by_group.get(group))
            .sum();
        if used > memory {
            found.push(Violation(format!(
                "GPU {uuid} on node {node} has {memory} MiB, pods on its replicas were promised {used}"
            )));
        }
    }
}
