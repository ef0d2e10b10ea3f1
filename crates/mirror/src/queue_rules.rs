//! The namespaces and priorities that queues allow. Admission rejects a pod group that breaks these rules, but the pod group may be older
//! than its queue or than the rules. Such a gang stays pending with the reason.

use kai_api::{Namespaces, ObjectKey, PodGroup, PriorityClasses, Queue, QueueCeiling};
use kai_engine::model::GangSpec;
use kai_engine::reasons::Refusal;
use rustc_hash::FxHashMap;

use super::ClusterMirror;

/// The rules of all queues, by name of the queue.
#[derive(Debug, Default)]
pub(super) struct QueueRules {
    rules: FxHashMap<Box<str>, Rule>,
}

/// The rules of one queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rule {
    /// The namespaces that may use the queue; `None` = all.
    namespaces: Option<Namespaces>,
    priority: QueueCeiling,
}

impl QueueRules {
    /// Replaces the rules of a queue. Returns whether they changed.
    fn set(&mut self, name: &str, rule: Option<Rule>) -> bool {
        let before = match rule.clone() {
            Some(rule) => self.rules.insert(name.into(), rule),
            None => self.rules.remove(name),
        };
        before != rule
    }

    fn parent(&self, name: &str) -> Option<&str> {
        self.rules.get(name)?.priority.parent.as_deref()
    }

    /// Whether `queue` is `ancestor` or a descendant of it.
    fn is_in_subtree(&self, queue: &str, ancestor: &str) -> bool {
        let path = std::iter::successors(Some(queue), |name| self.parent(name));
        // A path longer than the number of queues has a cycle.
        path.take(self.rules.len() + 1).any(|name| name == ancestor)
    }

    /// Limits the gang's priority, and refuses a gang whose queue is not for its namespace.
    pub(super) fn apply_to(&self, key: &ObjectKey, group: &PodGroup, classes: &PriorityClasses, spec: &mut GangSpec) {
        group.bound_priority(spec, classes, |name| {
            self.rules.get(name).map(|rule| rule.priority.clone())
        });
        let rule = self.rules.get(&*spec.queue);
        let namespaces = rule.and_then(|rule| rule.namespaces.as_ref());
        if namespaces.is_some_and(|allowed| !allowed.contain(&key.namespace)) {
            // It replaces a refusal of the priority: the ceiling of a queue that the gang may not use is of no interest.
            spec.refused = Some(Refusal::QueueForbidden {
                queue: spec.queue.clone(),
                namespace: key.namespace.to_string(),
            });
        }
    }
}

impl ClusterMirror {
    /// Sets the rules of a queue, or removes them with the queue, and refreshes the gangs in its subtree.
    pub(super) fn set_queue_rules(&mut self, name: &str, queue: Option<&Queue>) {
        let rule = queue.map(|queue| Rule {
            namespaces: queue.namespaces(),
            priority: queue.priority_ceiling(),
        });
        if !self.queue_rules.set(name, rule) {
            return;
        }
        let rules = &self.queue_rules;
        let affected = self
            .pod_groups
            .iter()
            .filter(|(_, entry)| rules.is_in_subtree(entry.object.queue(), name));
        let affected: Vec<ObjectKey> = affected.map(|(key, _)| key.clone()).collect();
        for key in affected {
            self.refresh_gang(&key);
        }
    }
}
