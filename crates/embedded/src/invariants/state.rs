//! The cluster as the invariants see it. Each changed object is read once.

use std::collections::BTreeMap;
use std::sync::Arc;

use kai_api::{ObjectKey, ReservationPods, keys};
use kai_engine::model::{Gpus, Millis};

use super::always::{check_node_capacity, check_shared_gpus};
use super::bound_pod::BoundPod;
use super::{PodsToLeave, Snapshot, Violation};

/// The tolerance of queue limits: GPU shares are rounded to hundredths.
const ROUNDING_GPUS: f64 = 0.011;

/// A node.
#[derive(Debug)]
pub(super) struct NodeState {
    pub(super) node: Arc<kai_api::Node>,
    /// Allocatable milli-cores and bytes of memory; `None` if they can't be read.
    pub(super) allocatable: Option<(i64, i64)>,
    pub(super) gpu_memory_mib: Option<i64>,
}

/// A queue.
#[derive(Debug)]
struct QueueState {
    parent: Option<String>,
    limit_gpus: Option<f64>,
}

/// The cluster.
#[derive(Debug, Default)]
pub(super) struct State {
    reservation_pods: ReservationPods,
    bound: BTreeMap<ObjectKey, BoundPod>,
    nodes: BTreeMap<ObjectKey, NodeState>,
    /// The queue of each pod group.
    groups: BTreeMap<ObjectKey, String>,
    queues: BTreeMap<ObjectKey, QueueState>,
    to_leave: PodsToLeave,
}

impl State {
    /// A cluster without objects.
    pub(super) fn new(reservation_pods: &ReservationPods, to_leave: PodsToLeave) -> State {
        State {
            reservation_pods: reservation_pods.clone(),
            to_leave,
            ..State::default()
        }
    }

    pub(super) fn of(snapshot: &Snapshot) -> State {
        let mut state = State::new(&snapshot.reservation_pods, Arc::clone(&snapshot.to_leave));
        snapshot
            .pods
            .iter()
            .for_each(|pod| state.apply_pod(ObjectKey::of(&**pod), Some(pod)));
        snapshot
            .nodes
            .iter()
            .for_each(|node| state.apply_node(ObjectKey::of(&**node), Some(node)));
        snapshot
            .pod_groups
            .iter()
            .for_each(|group| state.apply_pod_group(ObjectKey::of(&**group), Some(group)));
        snapshot
            .queues
            .iter()
            .for_each(|queue| state.apply_queue(ObjectKey::of(&**queue), Some(queue)));
        state
    }

    pub(super) fn apply_pod(&mut self, key: ObjectKey, pod: Option<&Arc<kai_api::Pod>>) {
        let bound = pod.and_then(|pod| BoundPod::of(pod, &self.reservation_pods));
        set(&mut self.bound, key, bound);
    }

    pub(super) fn apply_node(&mut self, key: ObjectKey, node: Option<&Arc<kai_api::Node>>) {
        let node_state = node.map(|node| NodeState {
            node: Arc::clone(node),
            allocatable: node
                .read()
                .ok()
                .map(|read| (read.value.cpu_milli, read.value.memory_bytes)),
            gpu_memory_mib: node
                .metadata
                .labels
                .text(keys::NODE_GPU_MEMORY)
                .and_then(|text| text.parse().ok()),
        });
        set(&mut self.nodes, key, node_state);
    }

    pub(super) fn apply_pod_group(&mut self, key: ObjectKey, group: Option<&Arc<kai_api::PodGroup>>) {
        set(&mut self.groups, key, group.map(|group| group.queue().to_owned()));
    }

    pub(super) fn apply_queue(&mut self, key: ObjectKey, queue: Option<&Arc<kai_api::Queue>>) {
        let queue = queue.map(|queue| {
            let limit = queue.read(Millis(0)).ok().and_then(|read| read.value.quota.gpu.limit);
            QueueState {
                parent: queue.parent().map(str::to_owned),
                limit_gpus: limit.map(|limit| limit as f64 / Gpus::whole(1).0 as f64),
            }
        });
        set(&mut self.queues, key, queue);
    }

    /// Pods with a node that are not terminal.
    pub(super) fn bound(&self) -> impl Iterator<Item = &BoundPod> {
        self.bound.values()
    }

    /// The pod with this key and uid.
    pub(super) fn pod(&self, key: &ObjectKey, uid: &str) -> Option<&BoundPod> {
        self.bound.get(key).filter(|pod| pod.spec.uid == uid)
    }

    /// The value of a node's label.
    pub(super) fn node_label(&self, node: &str, key: &str) -> Option<&str> {
        let node_state = self.nodes.get(&ObjectKey::new("", node))?;
        node_state.node.metadata.labels.text(key)
    }

    /// The memory of each GPU of a node.
    pub(super) fn gpu_memory_mib(&self, node: &str) -> Option<i64> {
        self.nodes.get(&ObjectKey::new("", node))?.gpu_memory_mib
    }

    /// Violated invariants of every instant, without those of queues.
    pub(super) fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut by_node: BTreeMap<&str, Vec<&BoundPod>> = BTreeMap::new();
        for pod in self.bound.values() {
            by_node.entry(&pod.node).or_default().push(pod);
        }
        for (key, node_state) in &self.nodes {
            let pods = by_node.get(&*key.name).map(Vec::as_slice).unwrap_or_default();
            check_node_capacity(node_state, pods, &mut found);
            check_shared_gpus(node_state, pods, &mut found);
        }
        found
    }

    /// Queues beyond their limit, each with the violation.
    pub(super) fn exceeded_queues(&self) -> Vec<(String, Violation)> {
        let mut found = Vec::new();
        let to_leave = self.to_leave.lock();
        let leaves = |pod: &BoundPod| pod.terminating || to_leave.contains(&pod.key());
        let used = self.gpus_by_queue(|pod| !leaves(pod));
        for (key, queue) in &self.queues {
            let (name, Some(limit)) = (&*key.name, queue.limit_gpus) else {
                continue;
            };
            if let Some(used) = used.get(name).filter(|used| **used > limit + ROUNDING_GPUS) {
                let text = format!("queue {name} has {used:.2} GPUs in use, its limit is {limit:.2}");
                found.push((name.to_owned(), Violation(text)));
            }
        }
        found
    }

    /// The GPUs of the pods of each queue, including those of its child queues.
    pub(super) fn gpus_by_queue(&self, counts: impl Fn(&BoundPod) -> bool) -> BTreeMap<&str, f64> {
        let mut used: BTreeMap<&str, f64> = BTreeMap::new();
        for pod in self.bound.values().filter(|pod| counts(pod)) {
            let Some(group) = &pod.spec.gang else { continue };
            let node_state = self.nodes.get(&ObjectKey::new("", &pod.node));
            let gpus = pod.gpus(node_state.and_then(|node_state| node_state.gpu_memory_mib));
            let mut queue = self.groups.get(&ObjectKey::new(&group.namespace, &group.name));
            // Bounds the walk if the parents form a loop.
            for _ in 0..=self.queues.len() {
                let Some(name) = queue else { break };
                *used.entry(name).or_default() += gpus;
                queue = self
                    .queues
                    .get(&ObjectKey::new("", name))
                    .and_then(|queue| queue.parent.as_ref());
            }
        }
        used
    }
}

fn set<T>(of: &mut BTreeMap<ObjectKey, T>, key: ObjectKey, value: Option<T>) {
    match value {
        Some(value) => drop(of.insert(key, value)),
        None => drop(of.remove(&key)),
    }
}
