//! What each queue is due: fair division, the order of queues, bounds, and who may take from whom.
//!
//! Reads the ledger; only [`divide_tree`] writes, and only fair shares at the start of a cycle.

mod bounds;
mod division;
mod order;
mod reclaim;

pub(crate) use bounds::{Bound, BoundKind, exceeded, limits_hold, over_quota};
pub(crate) use division::divide_tree;
pub(crate) use order::{Load, Standing};
pub(crate) use reclaim::{Before, Loss, Reclaimer, can_reclaim, leveled, may_lose, reclaim_is_fair};

use crate::model::{Quota, ResourceQuota};
use crate::tables::{Queue, Share};

/// The quota of one resource, by index into a [`Share`].
pub(crate) fn quota_of(quota: &Quota, resource: usize) -> &ResourceQuota {
    [&quota.cpu, &quota.memory, &quota.gpu][resource]
}

/// Whether `amount` is within what the queue deserves of every resource.
pub(crate) fn within_deserved(queue: &Queue, amount: Share) -> bool {
    (0..3).all(|resource| {
        quota_of(&queue.quota, resource)
            .deserved
            .is_none_or(|deserved| amount[resource] <= deserved)
    })
}

/// The sum of two shares.
pub(crate) fn plus(mut a: Share, b: Share) -> Share {
    crate::ledger::add(&mut a, b, 1);
    a
}
