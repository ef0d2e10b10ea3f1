//! The scheduler's view of the cluster: Kubernetes objects in, [engine events](kai_engine::model::Event) out.
//!
//! [`ClusterMirror`] has an `apply_*` and a `remove_*` method per kind. The owner of the mirror calls them for every change that a watch
//! reports, then takes an [`Outbox`]: events for the engine, problems to report on objects, and bind requests to delete. Decisions of
//! the engine go back in by [`ClusterMirror::assume`] and count as carried out until the watches show them or their write fails.
//!
//! The mirror does no I/O and reads no clock, so tests are synchronous calls. It shares objects with the watches (`Arc`) and keeps no
//! second copy of a pod.
//!
//! ```
//! use std::sync::Arc;
//!
//! use kai_api::{Node, ObjectKey, Pod, PodGroup, Queue};
//! use kai_engine::Cluster;
//! use kai_engine::model::{BindInFlight, Config, Millis};
//! use kai_engine::report::Decision;
//! use kai_mirror::{Assumed, ClusterMirror, MirrorSettings};
//! use serde_json::{from_value, json};
//!
//! # fn main() -> Result<(), serde_json::Error> {
//! let node: Node = from_value(json!({
//!     "metadata": { "name": "node-1" },
//!     "status": {
//!         "allocatable": { "cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "1" },
//!         "conditions": [{ "type": "Ready", "status": "True" }],
//!     },
//! }))?;
//! let unlimited = json!({ "quota": -1, "limit": -1 });
//! let queue: Queue = from_value(json!({
//!     "metadata": { "name": "research" },
//!     "spec": { "resources": { "gpu": unlimited, "cpu": unlimited, "memory": unlimited } },
//! }))?;
//! let pod_group: PodGroup = from_value(json!({
//!     "metadata": { "name": "training", "namespace": "ns" },
//!     "spec": { "queue": "research", "minMember": 1 },
//! }))?;
//! let pod: Pod = from_value(json!({
//!     "metadata": { "name": "worker", "namespace": "ns", "uid": "uid-1", "annotations": { "pod-group-name": "training" } },
//!     "spec": {
//!         "schedulerName": "kai-scheduler",
//!         "containers": [{ "resources": { "limits": { "nvidia.com/gpu": "1" } } }],
//!     },
//!     "status": { "phase": "Pending" },
//! }))?;
//!
//! let mut mirror = ClusterMirror::new(&MirrorSettings::default());
//! let now = Millis::seconds(1_767_225_600);
//! mirror.tick(now);
//! mirror.apply_queue(&queue);
//! mirror.apply_node(&node);
//! mirror.apply_pod_group(&ObjectKey::new("ns", "training"), &Arc::new(pod_group));
//! mirror.apply_pod(&ObjectKey::new("ns", "worker"), &Arc::new(pod));
//! mirror.mark_synced();
//!
//! let mut engine = Cluster::new();
//! for event in mirror.take_outbox().events {
//!     engine.apply(event);
//! }
//! let report = engine.cycle(now, &Config::default());
//! let bind = report.decisions.iter().find_map(|decision| match decision {
//!     Decision::Bind(placed) => Some(placed),
//!     _ => None,
//! });
//! let bind = bind.expect("the node has a free GPU");
//! assert_eq!((&*bind.pod, &*bind.node), ("uid-1", "node-1"));
//!
//! // Until the watch shows the pod bound, the mirror counts it as being bound.
//! let in_flight = BindInFlight { node: bind.node.to_string(), gpu_groups: bind.gpu_groups.clone(), volumes: Vec::new() };
//! mirror.assume(&bind.pod, Assumed::Bound(in_flight));
//! assert!(!mirror.is_pending("uid-1"));
//! # Ok(())
//! # }
//! ```

mod assumed;
mod background;
mod bind_requests;
mod config_maps;
mod explanation;
mod gangs;
mod gpu_sharing;
mod nodes;
mod partition;
mod pod_table;
mod pods;
mod queue_rules;
mod queues;
mod reservations;
mod settings;
mod volumes;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use kai_api::{BindRequest, ObjectKey, ObjectReference, Pod, PodGroup, PodIdentity, PriorityClasses, Problem};
use kai_engine::model::{Event, Millis};
use rustc_hash::{FxHashMap, FxHashSet};

pub use assumed::Assumed;
pub use background::{BackgroundSelector, InvalidSelector};
pub use explanation::{ExplanationView, HolderView, NearestView, PositionView, RemedyView, StepView};
pub use gangs::{GangTimestamp, pod_group_key};
pub use partition::Partition;
pub use reservations::UnreservedGroup;
pub use settings::{MirrorSettings, ObjectList, WorkerLabels};

/// The mirror remembers this many reported problems. Beyond, it forgets all of them and may report a problem twice.
const REPORTED_PROBLEMS_MAX: usize = 65_536;

/// Size of an event batch. Events are large, and a longer list would leave the processor's cache.
const EVENT_BATCH: usize = 32;

/// The cluster as watches and own decisions show it. One task owns the mirror and the engine behind it; see the [crate](self) for use.
#[derive(Debug)]
pub struct ClusterMirror {
    identity: PodIdentity,
    partition: Partition,
    restrict_nodes: Option<WorkerLabels>,
    mig_label: String,
    full_hierarchy: bool,
    reservation_pod_list: ObjectList,
    volume_list: ObjectList,
    counts_storage: bool,
    config_map_list: ObjectList,
    gpu_sharing: kai_api::GpuSharingMode,
    background: BackgroundSelector,
    now: Millis,
    /// Set by [`ClusterMirror::mark_synced`]. Until then a missing node does not make a bind request stale.
    synced: bool,
    pods: pod_table::PodTable,
    pod_groups: FxHashMap<ObjectKey, gangs::PodGroupEntry>,
    /// Pod groups of other partitions.
    foreign_pod_groups: FxHashSet<ObjectKey>,
    /// Pods per gang and progress. Gangs without pods have no entry.
    member_counts: FxHashMap<ObjectKey, gangs::MemberCounts>,
    nodes: FxHashMap<Box<str>, nodes::NodeEntry>,
    /// The topologies that the engine has, by name: views show the domains of nodes.
    topologies: std::collections::BTreeMap<String, kai_engine::model::TopologySpec>,
    /// The uid of each queue that the engine has.
    queues: FxHashMap<Box<str>, Box<str>>,
    queue_rules: queue_rules::QueueRules,
    priority_class_objects: std::collections::BTreeMap<Box<str>, Arc<kai_api::PriorityClass>>,
    priority_classes: PriorityClasses,
    bind_requests: FxHashMap<ObjectKey, Arc<BindRequest>>,
    bind_requests_by_pod: FxHashMap<ObjectKey, Vec<ObjectKey>>,
    /// By uid of the bind request.
    handled_requests: FxHashMap<Box<str>, bind_requests::HandledRequest>,
    /// Bind requests whose deletion failed, and when to delete them again.
    deletion_retries: Vec<(Millis, ObjectKey)>,
    reservations: reservations::Reservations,
    volumes: volumes::Volumes,
    config_maps: config_maps::ConfigMaps,
    assumptions: assumed::Assumptions,
    /// Object uid and text of problems that were reported already.
    reported_problems: FxHashSet<(String, String)>,
    outbox: Outbox,
}

/// The consequences of the changes since the last [`ClusterMirror::take_outbox`].
#[derive(Debug, Default)]
pub struct Outbox {
    /// Events for the engine, to be applied in this order.
    pub events: Vec<Event>,
    /// Problems of objects. Each problem is reported once per object.
    pub problems: Vec<ObjectProblem>,
    /// Bind requests that the scheduler has to delete.
    pub stale_bind_requests: Vec<StaleBindRequest>,
    /// Pod groups whose object or pods changed. Their scheduling conditions may be out of date.
    pub changed_pod_groups: FxHashSet<ObjectKey>,
    /// Uids of pods that became pending or joined another gang while pending.
    pub pending_pods: Vec<Arc<str>>,
}

/// A problem of an object, for an event on it.
#[derive(Clone, Debug)]
pub struct ObjectProblem {
    /// The object.
    pub object: ObjectReference,
    /// The problem.
    pub problem: Problem,
}

/// A bind request to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleBindRequest {
    /// Namespace and name.
    pub key: ObjectKey,
    /// The uid, as a precondition of the deletion.
    pub uid: String,
    /// Why the bind request is stale, for the log.
    pub reason: &'static str,
}

impl ClusterMirror {
    /// A mirror without objects.
    pub fn new(settings: &MirrorSettings) -> ClusterMirror {
        let mut mirror = ClusterMirror {
            identity: PodIdentity {
                scheduler_name: settings.scheduler_name.clone(),
                reservation_pods: settings.reservation_pods.clone(),
            },
            partition: settings.partition.clone(),
            restrict_nodes: settings.restrict_nodes.clone(),
            mig_label: settings.mig_label.clone(),
            full_hierarchy: settings.full_hierarchy_fairness,
            reservation_pod_list: settings.reservation_pod_list,
            volume_list: settings.volume_list,
            counts_storage: settings.counts_storage,
            config_map_list: settings.config_map_list,
            gpu_sharing: settings.gpu_sharing,
            background: settings.background.clone(),
            now: Millis(0),
            synced: false,
            pods: pod_table::PodTable::default(),
            pod_groups: FxHashMap::default(),
            foreign_pod_groups: FxHashSet::default(),
            member_counts: FxHashMap::default(),
            nodes: FxHashMap::default(),
            topologies: std::collections::BTreeMap::new(),
            queues: FxHashMap::default(),
            queue_rules: queue_rules::QueueRules::default(),
            priority_class_objects: std::collections::BTreeMap::new(),
            priority_classes: PriorityClasses::default(),
            bind_requests: FxHashMap::default(),
            bind_requests_by_pod: FxHashMap::default(),
            handled_requests: FxHashMap::default(),
            deletion_retries: Vec::new(),
            reservations: reservations::Reservations::default(),
            volumes: volumes::Volumes::default(),
            config_maps: config_maps::ConfigMaps::default(),
            assumptions: assumed::Assumptions::default(),
            reported_problems: FxHashSet::default(),
            outbox: Outbox::default(),
        };
        mirror.add_common_root();
        mirror
    }

    /// Sets the time, expires assumptions and ends pauses after failed bindings. Returns the bindings that were written but that no watch
    /// has shown in time, as (pod, node).
    pub fn tick(&mut self, now: Millis) -> Vec<(ObjectKey, String)> {
        self.now = now;
        self.retry_deletions();
        self.expire_suspected_reservations();
        let mut unconfirmed = Vec::new();
        for (uid, expired) in self.assumptions.due(now) {
            let Some(key) = self.pod_key(&uid) else { continue };
            if let Some(Assumed::Bound(bind)) = expired {
                let message = "it was not seen bound in time".to_owned();
                self.assumptions.record_bind_failure(&uid, &bind.node, message, now);
                unconfirmed.push((key.clone(), bind.node));
            }
            self.refresh_pod(&key);
        }
        unconfirmed
    }

    /// Sets the time only; no deadline expires.
    pub fn set_time(&mut self, now: Millis) {
        self.now = now;
    }

    /// All initial lists were applied. From now on an object that was not applied does not exist.
    pub fn mark_synced(&mut self) {
        self.synced = true;
        self.check_all_requests();
    }

    /// Drains the events once there is a batch of them. Between two calls of [`ClusterMirror::take_outbox`] this bounds the memory: the
    /// events of a whole cluster are larger than the cluster.
    pub fn drain_event_batch(&mut self, take: impl FnMut(Event)) {
        if self.outbox.events.len() >= EVENT_BATCH {
            self.outbox.events.drain(..).for_each(take);
        }
    }

    /// The consequences of the changes since the last call.
    pub fn take_outbox(&mut self) -> Outbox {
        self.send_volume_pools();
        self.block_gpus_of_unreserved_groups();
        std::mem::take(&mut self.outbox)
    }

    /// The pod of this name.
    pub fn pod(&self, key: &ObjectKey) -> Option<&Arc<Pod>> {
        self.pods.get(key).map(|entry| &entry.object)
    }

    /// The pod of this uid, with its key.
    pub fn pod_by_uid(&self, uid: &str) -> Option<(&ObjectKey, &Arc<Pod>)> {
        let entry = self.pods.by_uid(uid)?;
        Some((&entry.key, &entry.object))
    }

    fn pod_key(&self, uid: &str) -> Option<ObjectKey> {
        self.pods.by_uid(uid).map(|entry| entry.key.clone())
    }

    /// The pod group of this name, if it is in the partition.
    pub fn pod_group(&self, key: &ObjectKey) -> Option<&Arc<PodGroup>> {
        self.pod_groups.get(key).map(|entry| &entry.object)
    }

    /// The number of decisions that no watch shows yet.
    pub fn assumed_count(&self) -> usize {
        self.assumptions.len()
    }

    /// Reports a problem, once per object and text.
    fn report_problem(&mut self, object: impl FnOnce() -> ObjectReference, uid: &str, problem: Problem) {
        if self.reported_problems.len() >= REPORTED_PROBLEMS_MAX {
            self.reported_problems.clear();
        }
        if self.reported_problems.insert((uid.to_owned(), problem.to_string())) {
            let object = object();
            self.outbox.problems.push(ObjectProblem { object, problem });
        }
    }
}

/// The object's uid; empty where a test gave it none.
pub fn uid_of<T: kai_api::Object>(object: &T) -> &str {
    object.metadata().uid.as_deref().unwrap_or_default()
}
