//! Queues.

use crate::ids::QueueId;
use crate::model::{Millis, PerResource, QueueResources, Quota};

/// A queue.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) name: Box<str>,
    pub(crate) display_name: Box<str>,
    pub(crate) uid: Box<str>,
    pub(crate) parent_name: Option<Box<str>>,
    pub(crate) created: Millis,
    pub(crate) priority: i32,
    pub(crate) quota: Quota,
    pub(crate) preempt_min_runtime: Option<Millis>,
    pub(crate) reclaim_min_runtime: Option<Millis>,
    /// Historic usage as a part of the cluster.
    pub(crate) usage_billionths: PerResource<i64>,
    pub(crate) parent: Option<QueueId>,
    pub(crate) children: Vec<QueueId>,
    /// Whether its ancestors lead to a root.
    pub(crate) connected: bool,
    /// Distance from its root.
    pub(crate) depth: u32,
    pub(crate) allocated: QueueResources,
    pub(crate) allocated_non_preemptible: QueueResources,
    /// Requests of pending pods, as of the start of the cycle.
    pub(crate) pending: QueueResources,
    /// `pending` and `allocated`, as of the start of the cycle.
    pub(crate) requested: QueueResources,
    /// The part of `requested` of background gangs: it raises no queue's share of the resources that other gangs need.
    pub(crate) background: QueueResources,
    /// Result of the fair division at the start of the cycle.
    pub(crate) fair_share: QueueResources,
    /// What the queue may hold before other queues may reclaim, by quota, limit and fair share; `None` = no bound.
    pub(crate) allocatable: PerResource<Option<i64>>,
}

impl Queue {
    /// The name to show to people.
    pub(crate) fn display(&self) -> &str {
        if self.display_name.is_empty() {
            &self.name
        } else {
            &self.display_name
        }
    }
}
