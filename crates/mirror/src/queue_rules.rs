//! What queues demand of the pod groups that name them: namespaces and priorities. Admission refuses such pod groups, but one may be
//! older than its queue or than the queue's rules; then the gang waits and says why.

use kai_api::{Namespaces, ObjectKey, PodGroup, PriorityClasses, Queue, QueueCeiling};
use kai_engine::model::GangSpec;
use rustc_hash::FxHashMap;

use super::ClusterMirror;

/// The rules of all queues, by queue.
#[derive(Debug, Default)]
pub(super) struct QueueRules {
    rules: FxHashMap<Box<str>, Rule>,
}

/// The rules of one queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rule {
    /// The namespaces that may use it; `None` = all.
    namespaces: Option<Namespaces>,
    priority: QueueCeiling,
}

impl QueueRules {
    /// Replaces the rule of a queue; whether it is another one than before.
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

    /// Whether `queue` is `ancestor` or below it.
    fn is_below(&self, queue: &str, ancestor: &str) -> bool {
        let path = std::iter::successors(Some(queue), |name| self.parent(name));
        // A longer path has a cycle.
        path.take(self.rules.len() + 1).any(|name| name == ancestor)
    }

    /// Changes the gang to what the rules let it be.
    pub(super) fn judge(&self, key: &ObjectKey, group: &PodGroup, classes: &PriorityClasses, spec: &mut GangSpec) {
        group.bound_priority(spec, classes, |name| {
            self.rules.get(name).map(|rule| rule.priority.clone())
        });
        let rule = self.rules.get(&*spec.queue);
        let namespaces = rule.and_then(|rule| rule.namespaces.as_ref());
        if namespaces.is_some_and(|allowed| !allowed.contain(&key.namespace)) {
            spec.queue = closed(&spec.queue, &key.namespace);
        }
    }
}

impl ClusterMirror {
    /// The queue is there with these rules, or is gone. Gangs that they concern are told to the engine again.
    pub(super) fn set_queue_rules(&mut self, name: &str, queue: Option<&Queue>) {
        let rule = queue.map(|queue| Rule {
            namespaces: queue.namespaces(),
            priority: queue.priority_ceiling(),
        });
        if !self.queue_rules.set(name, rule) {
            return;
        }
        let rules = &self.queue_rules;
        let concerned = self
            .groups
            .iter()
            .filter(|(_, entry)| rules.is_below(entry.object.queue(), name));
        let concerned: Vec<ObjectKey> = concerned.map(|(key, _)| key.clone()).collect();
        for key in concerned {
            self.refresh_gang(&key);
        }
    }
}

/// A queue that does not exist, by a name that says why; no object can have it.
fn closed(queue: &str, namespace: &str) -> String {
    format!("{queue} (not for namespace {namespace})")
}
