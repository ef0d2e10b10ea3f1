//! What people shall see and do not see yet, by object. The newest text of an object replaces an older one that was not written yet, so
//! a slow API server costs detail, never memory and never a binding. It writes nothing itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kai_api::crd::ResourceList;
use kai_api::{Backoff, ObjectKey};
use kai_cluster::{ObjectEvent, WorkQueue};
use kai_engine::model::Millis;
use rustc_hash::FxHashMap;

/// So many objects may wait for a write. A large cluster's waiting pods fit in; what is beyond is looked at again later anyway.
const WAITING_MAX: usize = 100_000;

/// Something to be shown, and where.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Subject {
    /// Annotations of a pod group. First in order, since decisions depend on them.
    Marks(ObjectKey),
    /// Conditions of a pod group.
    Group(ObjectKey),
    /// The condition of a pod.
    Pod(ObjectKey),
    /// An event: uid of the object, reason.
    Event(String, &'static str),
    /// The fair share of a queue, by name. Last in order: nothing depends on it.
    FairShare(String),
}

#[derive(Clone, Debug)]
pub(super) enum Wanted {
    Marks(Vec<Annotation>),
    Group(Option<Unschedulable>),
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

/// A pod's condition that says that it has no node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotScheduled {
    pub(crate) uid: String,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// Since when it is so.
    pub(crate) since: Millis,
}

/// The board. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Board {
    /// A plain lock: held for map operations only, never across an await.
    wanted: Arc<Mutex<FxHashMap<Subject, Wanted>>>,
    pub(super) queue: WorkQueue<Subject>,
}

impl Board {
    pub(crate) fn new() -> Board {
        Board {
            wanted: Arc::default(),
            queue: WorkQueue::new(Backoff::default()),
        }
    }

    /// Annotations of a pod group. Others that wait to be written are kept.
    pub(crate) fn annotate(&self, group: &ObjectKey, annotation: Annotation) {
        let subject = Subject::Marks(group.clone());
        let mut wanted = self.lock();
        match wanted.get_mut(&subject) {
            Some(Wanted::Marks(marks)) => {
                marks.retain(|mark| mark.key != annotation.key);
                marks.push(annotation);
            }
            Some(_) | None => {
                wanted.insert(subject.clone(), Wanted::Marks(vec![annotation]));
            }
        }
        drop(wanted);
        self.queue.add(subject);
    }

    /// The scheduling condition of a pod group; `None` if it shall have none.
    pub(crate) fn group(&self, group: &ObjectKey, condition: Option<Unschedulable>) {
        self.post(Subject::Group(group.clone()), Wanted::Group(condition));
    }

    /// The condition of a pod without a node.
    pub(crate) fn pod(&self, pod: &ObjectKey, condition: NotScheduled) {
        self.post(Subject::Pod(pod.clone()), Wanted::Pod(condition));
    }

    /// The pod got its place, or is gone: nothing is to be said about its waiting.
    pub(crate) fn retract_pod(&self, pod: &ObjectKey) {
        self.lock().remove(&Subject::Pod(pod.clone()));
    }

    /// An event.
    pub(crate) fn note(&self, note: ObjectEvent) {
        self.post(Subject::Event(note.about.uid.clone(), note.reason), Wanted::Event(note));
    }

    /// The fair share of a queue.
    pub(crate) fn fair_share(&self, queue: &str, share: ResourceList) {
        self.post(Subject::FairShare(queue.to_owned()), Wanted::FairShare(share));
    }

    /// What waits to be written.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn take(&self, subject: &Subject) -> Option<Wanted> {
        self.lock().remove(subject)
    }

    /// It could not be written: again later, unless something newer came meanwhile.
    pub(super) fn put_back(&self, subject: &Subject, wanted: Wanted) {
        self.lock().entry(subject.clone()).or_insert(wanted);
    }

    fn post(&self, subject: Subject, what: Wanted) {
        let mut wanted = self.lock();
        if wanted.len() >= WAITING_MAX && !wanted.contains_key(&subject) {
            return;
        }
        wanted.insert(subject.clone(), what);
        drop(wanted);
        self.queue.add(subject);
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<Subject, Wanted>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_text_replaces_older_ones_and_annotations_add_up() {
        let board = Board::new();
        let key = ObjectKey::new("a", "p");
        let say = |message: &str| NotScheduled {
            uid: "u".to_owned(),
            reason: "Unschedulable",
            message: message.to_owned(),
            since: Millis(0),
        };
        board.pod(&key, say("one"));
        board.pod(&key, say("two"));
        assert_eq!(board.len(), 1);
        let Some(Wanted::Pod(condition)) = board.take(&Subject::Pod(key.clone())) else {
            panic!("a pod's condition was posted")
        };
        assert_eq!(condition.message, "two");
        let mark = |key, value: Option<&str>| Annotation {
            key,
            value: value.map(str::to_owned),
        };
        board.annotate(&key, mark("start", Some("1")));
        board.annotate(&key, mark("stale", Some("2")));
        board.annotate(&key, mark("stale", None));
        let Some(Wanted::Marks(marks)) = board.take(&Subject::Marks(key)) else {
            panic!("annotations were posted")
        };
        assert_eq!(marks, [mark("start", Some("1")), mark("stale", None)]);
    }

    #[test]
    fn what_failed_does_not_replace_what_came_since() {
        let board = Board::new();
        let key = ObjectKey::new("a", "g");
        let subject = Subject::Group(key.clone());
        board.group(&key, None);
        let taken = board.take(&subject).unwrap();
        let newer = Unschedulable {
            message: "newer".to_owned(),
            reasons: Vec::new(),
        };
        board.group(&key, Some(newer.clone()));
        board.put_back(&subject, taken);
        assert!(matches!(board.take(&subject), Some(Wanted::Group(Some(found))) if found == newer));
    }
}
