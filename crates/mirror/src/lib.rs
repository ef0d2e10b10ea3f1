//! The cluster as the scheduler sees it. [`ClusterMirror`] takes in changed objects, one plain call each, and gives out engine events, things
//! to tell people and bind requests to clean up. It does no I/O and knows no clock: tests are synchronous calls.
//!
//! Objects are shared with the watches; nothing of a pod is kept twice.

mod assumed;
mod bind_requests;
mod config_maps;
mod gangs;
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
mod reservation_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_sizes;

use std::sync::Arc;

use kai_api::{BindRequest, ObjectKey, Pod, PodGroup, PodIdentity, PriorityClasses, Problem};
use kai_engine::model::{Event, Millis};
use rustc_hash::{FxHashMap, FxHashSet};

pub use assumed::Assumed;
pub use gangs::{Mark, group_key};
pub use partition::Partition;
pub use settings::{MirrorSettings, WorkerLabels};

/// Problems that were told already are remembered up to this number; beyond, they are told again.
const TOLD_MAX: usize = 65_536;

/// So many events are worth handing over. They are large, and a longer list of them would not stay near the processor.
const EVENTS_MAX: usize = 32;

/// The mirror. See the module.
#[derive(Debug)]
pub struct ClusterMirror {
    identity: PodIdentity,
    partition: Partition,
    restrict_nodes: Option<WorkerLabels>,
    mig_label: String,
    full_hierarchy: bool,
    now: Millis,
    /// Whether all first lists were taken in.
    ready: bool,
    pods: pod_table::PodTable,
    groups: FxHashMap<ObjectKey, gangs::Entry>,
    /// Pod groups of other partitions.
    foreign_groups: FxHashSet<ObjectKey>,
    members: FxHashMap<ObjectKey, gangs::Members>,
    nodes: FxHashMap<Box<str>, nodes::Entry>,
    queues: FxHashMap<Box<str>, Box<str>>,
    queue_rules: queue_rules::QueueRules,
    class_objects: std::collections::BTreeMap<Box<str>, Arc<kai_api::PriorityClass>>,
    classes: PriorityClasses,
    requests: FxHashMap<ObjectKey, Arc<BindRequest>>,
    /// Bind requests by the pod they name.
    requests_of: FxHashMap<ObjectKey, Vec<ObjectKey>>,
    judged: FxHashMap<Box<str>, bind_requests::Judged>,
    /// Bind requests to look at again, and when.
    recheck: Vec<(Millis, ObjectKey)>,
    reservations: reservations::Reservations,
    volumes: volumes::Volumes,
    config_maps: config_maps::ConfigMaps,
    assumptions: assumed::Assumptions,
    told: FxHashSet<(String, String)>,
    outbox: Outbox,
}

/// What changes came to.
#[derive(Debug, Default)]
pub struct Outbox {
    /// For the engine, in order.
    pub events: Vec<Event>,
    /// What is wrong with objects, each once.
    pub problems: Vec<Told>,
    /// Bind requests that are of no use any more.
    pub to_delete: Vec<StaleRequest>,
    /// Pod groups whose conditions may have to go.
    pub touched_gangs: FxHashSet<ObjectKey>,
    /// Pods that wait since now, or in another way than before.
    pub waiting: Vec<Arc<str>>,
}

/// Something to tell about an object.
#[derive(Clone, Debug)]
pub struct Told {
    /// The object.
    pub about: kai_api::ObjectReference,
    /// The problem.
    pub problem: Problem,
}

/// A bind request to delete, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleRequest {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Its uid.
    pub uid: String,
    /// Why it is deleted.
    pub why: &'static str,
}

impl ClusterMirror {
    /// An empty cluster.
    pub fn new(settings: &MirrorSettings) -> ClusterMirror {
        let mut index = ClusterMirror {
            identity: PodIdentity {
                scheduler_name: settings.scheduler_name.clone(),
                reservation_namespace: settings.reservation_namespace.clone(),
            },
            partition: settings.partition.clone(),
            restrict_nodes: settings.restrict_nodes.clone(),
            mig_label: settings.mig_label.clone(),
            full_hierarchy: settings.full_hierarchy_fairness,
            now: Millis(0),
            ready: false,
            pods: pod_table::PodTable::default(),
            groups: FxHashMap::default(),
            foreign_groups: FxHashSet::default(),
            members: FxHashMap::default(),
            nodes: FxHashMap::default(),
            queues: FxHashMap::default(),
            queue_rules: queue_rules::QueueRules::default(),
            class_objects: std::collections::BTreeMap::new(),
            classes: PriorityClasses::default(),
            requests: FxHashMap::default(),
            requests_of: FxHashMap::default(),
            judged: FxHashMap::default(),
            recheck: Vec::new(),
            reservations: reservations::Reservations::default(),
            volumes: volumes::Volumes::default(),
            config_maps: config_maps::ConfigMaps::default(),
            assumptions: assumed::Assumptions::default(),
            told: FxHashSet::default(),
            outbox: Outbox::default(),
        };
        index.add_common_root();
        index
    }

    /// It is now this late. Assumptions that ran out and pauses that are over take effect. Answers with bindings that were never
    /// seen: pod, node.
    pub fn tick(&mut self, now: Millis) -> Vec<(ObjectKey, String)> {
        self.now = now;
        self.recheck_requests();
        self.end_presumptions();
        let mut unseen = Vec::new();
        for (uid, in_vain) in self.assumptions.due(now) {
            let Some(key) = self.key_of(&uid) else { continue };
            if let Some(Assumed::Bound(bind)) = in_vain {
                let message = "it was not seen bound in time".to_owned();
                self.assumptions.failed(&uid, &bind.node, message, now);
                unseen.push((key.clone(), bind.node));
            }
            self.refresh_pod(&key);
        }
        unseen
    }

    /// It is now this late; nothing else happens.
    pub fn tick_clock(&mut self, now: Millis) {
        self.now = now;
    }

    /// All first lists were taken in: from now on what is not there is gone.
    pub fn complete(&mut self) {
        self.ready = true;
        self.check_all_requests();
    }

    /// Hands over the events of the changes since the last call, once there are many: those of a whole cluster take more memory than
    /// the cluster.
    pub fn hand_over(&mut self, take: impl FnMut(Event)) {
        if self.outbox.events.len() >= EVENTS_MAX {
            self.outbox.events.drain(..).for_each(take);
        }
    }

    /// What the changes since the last call came to.
    pub fn take_outbox(&mut self) -> Outbox {
        self.hold_where_lost();
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

    fn key_of(&self, uid: &str) -> Option<ObjectKey> {
        self.pods.by_uid(uid).map(|entry| entry.key.clone())
    }

    /// The pod group of this name.
    pub fn group(&self, key: &ObjectKey) -> Option<&Arc<PodGroup>> {
        self.groups.get(key).map(|entry| &entry.object)
    }

    /// Decisions that the cluster does not show yet.
    pub fn assumed(&self) -> usize {
        self.assumptions.len()
    }

    /// Notes a problem to be told, once per object and text.
    fn tell(&mut self, about: impl FnOnce() -> kai_api::ObjectReference, uid: &str, problem: Problem) {
        if self.told.len() >= TOLD_MAX {
            self.told.clear();
        }
        if self.told.insert((uid.to_owned(), problem.to_string())) {
            let about = about();
            self.outbox.problems.push(Told { about, problem });
        }
    }
}

/// The unique id; objects of tests may have none.
pub fn uid_of<T: kai_api::Object>(object: &T) -> &str {
    object.metadata().uid.as_deref().unwrap_or_default()
}
