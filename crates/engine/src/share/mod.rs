//! Fairness between queues: fair division, the order of queues, quotas and limits, and the rules of reclaim.
//!
//! Reads the ledger; only [`divide_tree`] writes, and only fair shares at the start of a cycle.

mod bounds;
mod division;
mod order;
mod reclaim;

pub(crate) use bounds::{Bound, BoundKind, exceeded, limits_hold, over_quota};
pub(crate) use division::divide_tree;
pub(crate) use order::{QueueChange, QueueSortKey};
pub(crate) use reclaim::{
    AllocatedBefore, QueueLoss, Reclaimer, can_reclaim, may_reclaim_from, reclaim_is_fair, sibling_ancestors,
};

use crate::model::{Quota, ResourceQuota};
use crate::tables::{Queue, QueueResources};

/// The quota of one resource, by index into [`QueueResources`].
pub(crate) fn quota_of(quota: &Quota, resource: usize) -> &ResourceQuota {
    [&quota.cpu, &quota.memory, &quota.gpu][resource]
}

/// Whether `amount` is within the deserved quota of the queue for every resource.
pub(crate) fn within_deserved(queue: &Queue, amount: QueueResources) -> bool {
    (0..3).all(|resource| {
        quota_of(&queue.quota, resource)
            .deserved
            .is_none_or(|deserved| amount[resource] <= deserved)
    })
}

/// The sum of two amounts.
pub(crate) fn plus(mut a: QueueResources, b: QueueResources) -> QueueResources {
    crate::ledger::add(&mut a, b, 1);
    a
}
