//! Statuses that wait to be written, by object. A newer status replaces an older one that was not written yet, so that a slow API server
//! costs intermediate statuses, but neither memory nor bindings. `status` does the writing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kai_api::crd::ResourceList;
use kai_api::{Backoff, ObjectKey};
use kai_cluster::{ObjectEvent, WorkQueue};
use kai_engine::model::Millis;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Updates in the queue. The pending pods of a large cluster fit in. Updates beyond are dropped; the pods are explained again later.
const UPDATES_MAX: usize = 100_000;

/// The object and part that a status update is about. Among updates of the same age, workers write in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum StatusKey {
    /// Annotations of a pod group. First, since decisions depend on them.
    GangAnnotations(ObjectKey),
    /// The scheduling condition of a pod group.
    PodGroup(ObjectKey),
    /// The condition of a pod.
    Pod(ObjectKey),
    /// An event: uid of the object, reason, and a number for events of which none replaces another.
    Event(String, &'static str, u64),
    /// The fair share of a queue, by name. Last, since nothing depends on it.
    FairShare(String),
}

/// The new status. The variant is that of the key.
#[derive(Clone, Debug)]
pub(super) enum StatusUpdate {
    GangAnnotations(Vec<Annotation>),
    PodGroup(Option<Unschedulable>),
    Pod(NotScheduled),
    Event(ObjectEvent),
    FairShare(ResourceList),
}

/// An annotation to set, or to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Annotation {
    pub(crate) key: &'static str,
    pub(crate) value: Option<String>,
}

/// Why a gang can't be scheduled.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Unschedulable {
    pub(crate) message: String,
    pub(crate) reasons: Vec<kai_api::crd::UnschedulableReason>,
}

/// The condition `PodScheduled=False` of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotScheduled {
    pub(crate) uid: String,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// The time of the condition's last transition.
    pub(crate) since: Millis,
}

/// The queue. The driver adds updates, status workers take them. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct StatusQueue {
    /// A plain lock: held for map operations only, never across an await.
    updates: Arc<Mutex<FxHashMap<StatusKey, StatusUpdate>>>,
    pub(super) queue: WorkQueue<StatusKey>,
    /// The number of events that were added beside others.
    further_events: Arc<AtomicU64>,
}

impl StatusQueue {
    pub(crate) fn new() -> StatusQueue {
        StatusQueue {
            updates: Arc::default(),
            queue: WorkQueue::new(Backoff::default()),
            further_events: Arc::default(),
        }
    }

    /// Sets an annotation of a pod group. Other annotations in the queue stay.
    pub(crate) fn annotate(&self, pod_group: &ObjectKey, annotation: Annotation) {
        let key = StatusKey::GangAnnotations(pod_group.clone());
        let mut updates = self.updates.lock();
        match updates.get_mut(&key) {
            Some(StatusUpdate::GangAnnotations(annotations)) => {
                annotations.retain(|other| other.key != annotation.key);
                annotations.push(annotation);
            }
            Some(_) | None => {
                updates.insert(key.clone(), StatusUpdate::GangAnnotations(vec![annotation]));
            }
        }
        drop(updates);
        self.queue.add(key);
    }

    /// Sets the scheduling condition of a pod group, or removes it.
    pub(crate) fn set_pod_group_condition(&self, pod_group: &ObjectKey, condition: Option<Unschedulable>) {
        self.put(
            StatusKey::PodGroup(pod_group.clone()),
            StatusUpdate::PodGroup(condition),
        );
    }

    /// Sets the condition of a pod without a node.
    pub(crate) fn set_pod_condition(&self, pod: &ObjectKey, condition: NotScheduled) {
        self.put(StatusKey::Pod(pod.clone()), StatusUpdate::Pod(condition));
    }

    /// The pod got a node: drops its condition if that was not written yet.
    pub(crate) fn drop_pod_condition(&self, pod: &ObjectKey) {
        self.updates.lock().remove(&StatusKey::Pod(pod.clone()));
    }

    /// Adds an event, and replaces one with the same object and reason.
    pub(crate) fn add_event(&self, note: ObjectEvent) {
        self.put(
            StatusKey::Event(note.about.uid.clone(), note.reason, 0),
            StatusUpdate::Event(note),
        );
    }

    /// Adds an event beside others with the same object and reason: each tells of something that happened once.
    pub(crate) fn add_further_event(&self, note: ObjectEvent) {
        let number = self.further_events.fetch_add(1, Ordering::Relaxed) + 1;
        self.put(
            StatusKey::Event(note.about.uid.clone(), note.reason, number),
            StatusUpdate::Event(note),
        );
    }

    /// Sets the fair share in the status of a queue.
    pub(crate) fn set_fair_share(&self, queue: &str, share: ResourceList) {
        self.put(StatusKey::FairShare(queue.to_owned()), StatusUpdate::FairShare(share));
    }

    /// The number of updates in the queue.
    pub(crate) fn len(&self) -> usize {
        self.updates.lock().len()
    }

    pub(super) fn take(&self, key: &StatusKey) -> Option<StatusUpdate> {
        self.updates.lock().remove(key)
    }

    /// Puts an update back whose write failed, unless the queue has a newer one.
    pub(super) fn put_back(&self, key: &StatusKey, update: StatusUpdate) {
        self.updates.lock().entry(key.clone()).or_insert(update);
    }

    fn put(&self, key: StatusKey, update: StatusUpdate) {
        let mut updates = self.updates.lock();
        if updates.len() >= UPDATES_MAX && !updates.contains_key(&key) {
            return;
        }
        updates.insert(key.clone(), update);
        drop(updates);
        self.queue.add(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_text_replaces_older_ones_and_annotations_add_up() {
        let queue = StatusQueue::new();
        let key = ObjectKey::new("a", "p");
        let condition = |message: &str| NotScheduled {
            uid: "u".to_owned(),
            reason: "Unschedulable",
            message: message.to_owned(),
            since: Millis(0),
        };
        queue.set_pod_condition(&key, condition("one"));
        queue.set_pod_condition(&key, condition("two"));
        assert_eq!(queue.len(), 1);
        let Some(StatusUpdate::Pod(condition)) = queue.take(&StatusKey::Pod(key.clone())) else {
            panic!("a pod's condition is in the queue")
        };
        assert_eq!(condition.message, "two");
        let annotation = |key, value: Option<&str>| Annotation {
            key,
            value: value.map(str::to_owned),
        };
        queue.annotate(&key, annotation("start", Some("1")));
        queue.annotate(&key, annotation("stale", Some("2")));
        queue.annotate(&key, annotation("stale", None));
        let Some(StatusUpdate::GangAnnotations(annotations)) = queue.take(&StatusKey::GangAnnotations(key)) else {
            panic!("annotations are in the queue")
        };
        assert_eq!(annotations, [annotation("start", Some("1")), annotation("stale", None)]);
    }

    #[test]
    fn an_eviction_does_not_replace_another_one() {
        let queue = StatusQueue::new();
        let note = |message: &str| ObjectEvent {
            about: kai_api::ObjectReference {
                api_version: "v1".to_owned(),
                kind: "PodGroup".to_owned(),
                namespace: "a".to_owned(),
                name: "g".to_owned(),
                uid: "u".to_owned(),
            },
            severity: kai_cluster::Severity::Normal,
            reason: "Evict",
            message: message.to_owned(),
            annotations: Vec::new(),
        };
        queue.add_event(note("one"));
        queue.add_event(note("two"));
        assert_eq!(queue.len(), 1, "other events have a newest text");
        queue.add_further_event(note("three"));
        queue.add_further_event(note("four"));
        assert_eq!(queue.len(), 3);
    }

    #[test]
    fn what_failed_does_not_replace_what_came_since() {
        let queue = StatusQueue::new();
        let pod_group = ObjectKey::new("a", "g");
        let key = StatusKey::PodGroup(pod_group.clone());
        queue.set_pod_group_condition(&pod_group, None);
        let taken = queue.take(&key).unwrap();
        let newer = Unschedulable {
            message: "newer".to_owned(),
            reasons: Vec::new(),
        };
        queue.set_pod_group_condition(&pod_group, Some(newer.clone()));
        queue.put_back(&key, taken);
        assert!(matches!(queue.take(&key), Some(StatusUpdate::PodGroup(Some(found))) if found == newer));
    }
}
