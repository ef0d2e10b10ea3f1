//! Queues: the tree of teams that divide the cluster.

use super::{Millis, Quota};

/// A queue. Only leaves hold gangs.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueSpec {
    /// Unique name; parents and gangs refer to it.
    pub name: String,
    /// The name in messages; `name` if empty.
    pub display_name: String,
    /// Name of the parent; `None` for a root.
    pub parent: Option<String>,
    /// Creation time; the tie-break between equal queues.
    pub created: Millis,
    /// Tie-break after the creation time.
    pub uid: String,
    /// A queue of higher priority gets resources above the quotas first, and loses pods last.
    pub priority: i32,
    /// Quota, limit and weight per resource.
    pub quota: Quota,
    /// How long after its start a gang of this queue can't be preempted; `None` = as the parent.
    pub preempt_min_runtime: Option<Millis>,
    /// How long after its start a gang of this queue can't be reclaimed; `None` = as the parent.
    pub reclaim_min_runtime: Option<Millis>,
}

/// Historic usage of a queue, in billionths of the cluster's capacity over the same window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The queue's name.
    pub queue: String,
    /// Part of the CPUs.
    pub cpu_billionths: i64,
    /// Part of the memory.
    pub memory_billionths: i64,
    /// Part of the GPUs.
    pub gpu_billionths: i64,
}
