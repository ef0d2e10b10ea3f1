//! Queues.

use crate::ids::QueueId;
use crate::model::{Millis, Quota};
use crate::tables::Share;

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
    /// Lately used share of the cluster, in billionths.
    pub(crate) usage: Share,
    pub(crate) parent: Option<QueueId>,
    pub(crate) children: Vec<QueueId>,
    /// Reaches a root.
    pub(crate) connected: bool,
    /// Distance from its root.
    pub(crate) depth: u32,
    pub(crate) allocated: Share,
    pub(crate) allocated_non_preemptible: Share,
    /// What pods ask for that have no place at the start of the cycle.
    pub(crate) pending: Share,
    /// That and what others have, at the start of the cycle.
    pub(crate) requested: Share,
    /// What fair division gives it, as of the start of the cycle.
    pub(crate) fair_share: Share,
    /// What it may hold before others have a claim on it, by quota, limit and fair share; `None` = anything.
    pub(crate) allocatable: [Option<i64>; 3],
}

impl Queue {
    /// What people call it.
    pub(crate) fn display(&self) -> &str {
        if self.display_name.is_empty() {
            &self.name
        } else {
            &self.display_name
        }
    }
}
