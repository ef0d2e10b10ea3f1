//! Translates queues and priority classes into engine events.

use std::sync::Arc;

use kai_api::{Object, ObjectReference, PriorityClass, PriorityClasses, Queue};
use kai_engine::model::{Event, Millis, QueueSpec, Quota};

use super::{ClusterMirror, uid_of};

/// The parent of all queues where hierarchical fairness is off. No Queue object can have this name.
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
        // Without hierarchical fairness the engine gets no top-level queues, and all other queues are siblings.
        let is_used = self.full_hierarchy || queue.parent().is_some();
        if !is_used || !self.partition.contains(queue.metadata()) {
            return self.withdraw_queue(name);
        }
        match queue.read(self.now) {
            Ok(read) => {
                for problem in read.problems {
                    self.report_problem(|| ObjectReference::of(queue), uid, problem);
                }
                let mut spec = read.value;
                if !self.full_hierarchy {
                    spec.parent = Some(COMMON_ROOT.to_owned());
                }
                self.queues.insert(name.into(), uid.into());
                self.outbox.events.push(Event::Queue(spec));
            }
            Err(problem) => {
                self.report_problem(|| ObjectReference::of(queue), uid, problem);
                self.withdraw_queue(name);
            }
        }
    }

    /// The queue was deleted.
    pub fn remove_queue(&mut self, name: &str) {
        self.set_queue_rules(name, None);
        self.withdraw_queue(name);
    }

    /// Removes the queue from the engine.
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
        self.priority_class_objects.insert(name, Arc::clone(class));
        self.update_priority_classes();
    }

    /// The priority class was deleted.
    pub fn remove_priority_class(&mut self, name: &str) {
        self.priority_class_objects.remove(name);
        self.update_priority_classes();
    }

    /// Rebuilds the priority classes and refreshes the gangs whose priority or preemptibility changed.
    fn update_priority_classes(&mut self) {
        let mut classes = PriorityClasses::default();
        for class in self.priority_class_objects.values() {
            classes.insert(class);
        }
        let before = std::mem::replace(&mut self.priority_classes, classes);
        if before == self.priority_classes {
            return;
        }
        let affected: Vec<_> = self
            .pod_groups
            .iter()
            .filter(|(_, entry)| entry.object.rank(&before) != entry.object.rank(&self.priority_classes))
            .map(|(key, _)| key.clone())
            .collect();
        for key in affected {
            self.refresh_gang(&key);
        }
    }
}
