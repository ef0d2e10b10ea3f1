//! Fairness between queues: fair division, the order of queues, quotas and limits, and the rules of reclaim.
//!
//! Reads the ledger; only [`divide_tree`] writes, and only fair shares at the start of a cycle.

mod bounds;
mod division;
mod order;
mod reclaim;

pub(crate) use bounds::{Bound, BoundKind, exceeded, limits_hold, over_limit, over_quota, quotas_hold};
pub(crate) use division::divide_tree;
pub use division::{ShareRequest, fair_shares};
pub(crate) use order::{QueueChange, QueueSortKey};
pub(crate) use reclaim::{
    AllocatedBefore, QueueLoss, Reclaimer, allocated_of_queues, can_reclaim, may_reclaim_from, reclaim_fairness,
    reclaim_is_fair, sibling_ancestors,
};

use crate::model::QueueResources;
use crate::reasons::Resource;
use crate::tables::Queue;

/// Whether `amount` is within the deserved quota of the queue for every resource.
pub(crate) fn within_deserved(queue: &Queue, amount: QueueResources) -> bool {
    let within = |resource: Resource| {
        let deserved = queue.quota[resource].deserved;
        deserved.is_none_or(|deserved| amount[resource] <= deserved)
    };
    Resource::all(within)
}
