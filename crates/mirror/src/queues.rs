//! Queues and priority classes on their way into the engine.

use std::sync::Arc;

use kai_api::{Object, ObjectReference, PriorityClass, PriorityClasses, Queue};
use kai_engine::model::{Event, Millis, QueueSpec, Quota};

use super::{ClusterMirror, uid_of};

/// The root of all queues where the tree does not count. Not a name that an object can have.
const COMMON_ROOT: &str = "(root)";

impl ClusterMirror {
    /// The queue was added or changed.
    pub fn apply_queue(&mut self, queue: &Queue) {
        let name = queue.metadata().plain_name();
        let uid = uid_of(queue);
        self.set_queue_rules(name, Some(queue));
        if self.queues.get(name).is_some_and(|known| &**known != uid) {
            self.withdraw_queue(name);
        }
        // Without the tree, its roots hold nothing and the rest are equals.
        let counts = self.full_hierarchy || queue.parent().is_some();
        if !counts || !self.partition.takes(queue.metadata()) {
            return self.withdraw_queue(name);
        }
        match queue.read(self.now) {
            Ok(read) => {
                for problem in read.problems {
                    self.tell(|| ObjectReference::of(queue), uid, problem);
                }
                let mut spec = read.value;
                if !self.full_hierarchy {
                    spec.parent = Some(COMMON_ROOT.to_owned());
                }
                self.queues.insert(name.into(), uid.into());
                self.outbox.events.push(Event::Queue(spec));
            }
            Err(problem) => {
                self.tell(|| ObjectReference::of(queue), uid, problem);
                self.withdraw_queue(name);
            }
        }
    }

    /// The queue is gone.
    pub fn remove_queue(&mut self, name: &str) {
        self.set_queue_rules(name, None);
        self.withdraw_queue(name);
    }

    /// The engine does without the queue.
    fn withdraw_queue(&mut self, name: &str) {
        if self.queues.remove(name).is_some() {
            self.outbox.events.push(Event::QueueGone(name.to_owned()));
        }
    }

    pub(super) fn add_common_root(&mut self) {
        if self.full_hierarchy {
            return;
        }
        self.outbox.events.push(Event::Queue(QueueSpec {
            name: COMMON_ROOT.to_owned(),
            display_name: String::new(),
            parent: None,
            created: Millis(0),
            uid: COMMON_ROOT.to_owned(),
            priority: 0,
            quota: Quota::UNBOUNDED,
            preempt_min_runtime: None,
            reclaim_min_runtime: None,
        }));
    }

    /// The priority class was added or changed.
    pub fn apply_priority_class(&mut self, class: &Arc<PriorityClass>) {
        let name = class.metadata().plain_name().into();
        self.class_objects.insert(name, Arc::clone(class));
        self.reclassify();
    }

    /// The priority class was deleted.
    pub fn remove_priority_class(&mut self, name: &str) {
        self.class_objects.remove(name);
        self.reclassify();
    }

    /// Gangs whose priority or preemptibility is another one now are told to the engine again.
    fn reclassify(&mut self) {
        let mut classes = PriorityClasses::default();
        for class in self.class_objects.values() {
            classes.insert(class);
        }
        let before = std::mem::replace(&mut self.classes, classes);
        if before == self.classes {
            return;
        }
        let affected: Vec<_> = self
            .groups
            .iter()
            .filter(|(_, entry)| entry.object.rank(&before) != entry.object.rank(&self.classes))
            .map(|(key, _)| key.clone())
            .collect();
        for key in affected {
            self.refresh_gang(&key);
        }
    }
}
