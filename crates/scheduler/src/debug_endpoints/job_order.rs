//! The answer of `/get-job-order`: pending pod groups in the order in which the engine tries them, in KAI's format.

use std::collections::BTreeMap;

use kai_engine::report::PendingGang;
use serde::Serialize;

/// The order over all queues and within each queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct JobOrder {
    global_order: Vec<Job>,
    queue_order: BTreeMap<String, Vec<Job>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Job {
    id: String,
    priority: i32,
    /// KAI has no such field, and mixes up pod groups of the same name in two namespaces.
    namespace: String,
}

impl JobOrder {
    pub(crate) fn of(order: Vec<PendingGang>) -> JobOrder {
        let mut jobs = JobOrder::default();
        for PendingGang { gang, queue, priority } in order {
            let job = Job {
                id: gang.name.clone(),
                priority,
                namespace: gang.namespace.clone(),
            };
            jobs.global_order.push(job.clone());
            jobs.queue_order.entry(queue).or_default().push(job);
        }
        jobs
    }
}
