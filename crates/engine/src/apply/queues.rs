//! Events about queues, and the tree of queues.

use crate::cluster::Cluster;
use crate::ids::{GangId, PodId, QueueId};
use crate::model::{Millis, PerResource, QueueResources, QueueSpec, Quota, Usage};
use crate::tables::Queue;

impl Cluster {
    pub(super) fn apply_queue(&mut self, spec: QueueSpec) {
        let id = match self.queue_ids.get(spec.name.as_str()) {
            Some(id) => *id,
            None => {
                let id = self.free_queues.pop().unwrap_or_else(|| {
                    self.ledger.queues.push(absent_queue());
                    QueueId::new(self.ledger.queues.len() - 1)
                });
                self.queue_ids.insert(spec.name.as_str().into(), id);
                self.queues_changed = true;
                id
            }
        };
        let usage = self.usage.get(spec.name.as_str()).copied();
        let row = &mut self.ledger.queues[id.index()];
        row.usage_billionths = usage.unwrap_or_default();
        let parent_name: Option<Box<str>> = spec.parent.filter(|name| !name.is_empty()).map(Into::into);
        self.queues_changed |= row.parent_name != parent_name;
        row.name = spec.name.into();
        row.display_name = spec.display_name.into();
        row.uid = spec.uid.into();
        row.parent_name = parent_name;
        row.created = spec.created;
        row.priority = spec.priority;
        row.quota = spec.quota;
        row.preempt_min_runtime = spec.preempt_min_runtime;
        row.reclaim_min_runtime = spec.reclaim_min_runtime;
    }

    pub(super) fn remove_queue(&mut self, name: &str) {
        let Some(id) = self.queue_ids.remove(name) else { return };
        self.uncount_all();
        self.ledger.queues[id.index()] = absent_queue();
        self.unlink_queues();
        self.recount_all();
        self.free_queues.push(id);
        self.anomalies.remove(&format!("Queue {name}"));
        self.queues_changed = true;
    }

    pub(super) fn apply_usage(&mut self, usage: &Usage) {
        let billionths = PerResource {
            cpu: usage.cpu_billionths,
            memory: usage.memory_billionths,
            gpu: usage.gpu_billionths,
        };
        // Names without usage are not kept: queues come and go.
        if billionths == PerResource::default() {
            self.usage.remove(usage.queue.as_str());
        } else {
            self.usage.insert(usage.queue.as_str().into(), billionths);
        }
        if let Some(id) = self.queue_ids.get(usage.queue.as_str()) {
            self.ledger.queues[id.index()].usage_billionths = billionths;
        }
    }

    /// The queue of this name, if it is a connected leaf.
    pub(super) fn leaf_queue(&self, name: &str) -> Option<QueueId> {
        let id = *self.queue_ids.get(name)?;
        let queue = self.ledger.queue(id);
        (queue.connected && queue.children.is_empty()).then_some(id)
    }

    /// Subtracts all pods from all sums.
    fn uncount_all(&mut self) {
        for at in 0..self.ledger.gangs.len() {
            self.ledger.withdraw_core(GangId::new(at));
        }
        for at in 0..self.ledger.pods.len() {
            self.ledger.count_pod(PodId::new(at), -1);
        }
    }

    /// Adds all pods to all sums.
    fn recount_all(&mut self) {
        for at in 0..self.ledger.pods.len() {
            self.ledger.count_pod(PodId::new(at), 1);
        }
    }

    /// Removes all links between gangs, queues and their parents.
    fn unlink_queues(&mut self) {
        for gang in &mut self.ledger.gangs {
            gang.queue = None;
        }
        for queue in &mut self.ledger.queues {
            queue.parent = None;
            queue.children.clear();
            queue.connected = false;
            queue.depth = 0;
        }
    }

    /// Builds the queue tree again if queues were added or removed, or changed their parent.
    pub(crate) fn relink_queues(&mut self) {
        if !std::mem::take(&mut self.queues_changed) {
            return;
        }
        self.uncount_all();
        self.unlink_queues();
        let mut by_name: Vec<QueueId> = self.queue_ids.values().copied().collect();
        by_name.sort_by(|a, b| self.ledger.queue(*a).name.cmp(&self.ledger.queue(*b).name));
        self.link_queues(&by_name);
        for id in by_name {
            self.report_disconnected(id);
        }
        for at in 0..self.ledger.gangs.len() {
            let gang = &self.ledger.gangs[at];
            let queue = self.leaf_queue(self.ledger.symbols.text(gang.queue_name));
            self.ledger.gangs[at].queue = queue.filter(|_| self.ledger.gangs[at].may_use_queue());
        }
        self.recount_all();
    }

    /// Links queues to their parents, from the roots down. Queues in a cycle, or below a missing parent, stay disconnected.
    fn link_queues(&mut self, by_name: &[QueueId]) {
        self.roots = by_name
            .iter()
            .copied()
            .filter(|id| self.ledger.queue(*id).parent_name.is_none())
            .collect();
        let mut connected = self.roots.clone();
        for root in &self.roots {
            self.ledger.queues[root.index()].connected = true;
        }
        let mut next = 0;
        while next < connected.len() {
            let parent = connected[next];
            next += 1;
            for child in by_name {
                let row = self.ledger.queue(*child);
                let named = row.parent_name.as_deref();
                let named = named.and_then(|name| self.queue_ids.get(name).copied());
                if named == Some(parent) && !row.connected {
                    let depth = self.ledger.queue(parent).depth + 1;
                    let row = &mut self.ledger.queues[child.index()];
                    (row.parent, row.connected, row.depth) = (Some(parent), true, depth);
                    self.ledger.queues[parent.index()].children.push(*child);
                    connected.push(*child);
                }
            }
        }
    }

    /// Sets or clears the anomaly of a queue whose ancestors lead to no root.
    fn report_disconnected(&mut self, id: QueueId) {
        let row = self.ledger.queue(id);
        let problems = match &row.parent_name {
            Some(parent) if !row.connected => {
                let problem = match self.queue_ids.get(parent) {
                    None => format!("queue {parent} does not exist; this queue and those below it are left out"),
                    Some(_) => format!(
                        "queue {parent} does not lead to a root (a cycle, or a missing queue above it); this queue is left out"
                    ),
                };
                vec![("spec.parentQueue".to_owned(), problem)]
            }
            Some(_) | None => Vec::new(),
        };
        let object = format!("Queue {}", row.name);
        self.set_anomalies(&object, problems);
    }
}

/// The content of an unused row.
fn absent_queue() -> Queue {
    Queue {
        name: "".into(),
        display_name: "".into(),
        uid: "".into(),
        parent_name: None,
        created: Millis(0),
        priority: 0,
        quota: Quota::UNBOUNDED,
        preempt_min_runtime: None,
        reclaim_min_runtime: None,
        usage_billionths: PerResource::default(),
        parent: None,
        children: Vec::new(),
        connected: false,
        depth: 0,
        allocated: QueueResources::ZERO,
        allocated_non_preemptible: QueueResources::ZERO,
        pending: QueueResources::ZERO,
        requested: QueueResources::ZERO,
        background: QueueResources::ZERO,
        fair_share: QueueResources::ZERO,
        allocatable: PerResource::default(),
    }
}
