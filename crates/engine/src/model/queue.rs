//! Queues: the tree that shares the cluster between teams.

use super::{Millis, Quota};

/// A queue. Only leaves hold gangs.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueSpec {
    /// Unique name; parents and gangs refer to it.
    pub name: String,
    /// What people call it in messages; the name when empty.
    pub display_name: String,
    /// Name of the parent; `None` for a root.
    pub parent: Option<String>,
    /// Creation time: the tie-break between equals.
    pub created: Millis,
    /// Tie-break after the creation time.
    pub uid: String,
    /// Higher goes first when what is above the quotas is shared out, and loses last.
    pub priority: i32,
    /// Quota, limit and weight per resource.
    pub quota: Quota,
    /// How long a gang of this queue is safe from preemption once started; `None` inherits.
    pub preempt_min_runtime: Option<Millis>,
    /// How long a gang of this queue is safe from reclaim once started; `None` inherits.
    pub reclaim_min_runtime: Option<Millis>,
}

/// What a queue used lately, as billionths of the cluster's capacity over the same window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The queue's name.
    pub queue: String,
    /// CPU share in billionths.
    pub cpu_billionths: i64,
    /// Memory share in billionths.
    pub memory_billionths: i64,
    /// GPU share in billionths.
    pub gpu_billionths: i64,
}
