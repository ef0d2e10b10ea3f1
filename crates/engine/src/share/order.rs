//! The order in which sibling queues are served; in reverse, the order in which they lose pods.

use std::cmp::Ordering;

use crate::ids::QueueId;
use crate::ledger::Ledger;
use crate::model::{Gpus, QueueResources};
use crate::reasons::Resource;
use crate::share::within_deserved;
use crate::tables::Queue;

/// The values by which a queue is compared with its siblings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueSortKey {
    pub(crate) queue: QueueId,
    over_utilised: bool,
    starved: bool,
    takes_without_share: bool,
    share_with_gang: f64,
}

/// What an action is about to change in a queue: the request of its best gang, and the resources freed by victims of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueChange {
    pub(crate) request: QueueResources,
    pub(crate) freed: QueueResources,
}

impl QueueSortKey {
    pub(crate) fn of(ledger: &Ledger, id: QueueId, change: QueueChange, total: QueueResources) -> QueueSortKey {
        let queue = ledger.queue(id);
        let with_request = queue.allocated + change.request;
        let with_victims = with_request - change.freed;
        QueueSortKey {
            queue: id,
            over_utilised: over_utilised(queue),
            starved: within_deserved(queue, with_request),
            takes_without_share: takes_without_share(queue, with_request),
            share_with_gang: dominant_share(queue, with_victims, total),
        }
    }

    /// `Less` if this queue is served before the other.
    pub(crate) fn compare(&self, other: &QueueSortKey, ledger: &Ledger, total: QueueResources) -> Ordering {
        let (l, r) = (ledger.queue(self.queue), ledger.queue(other.queue));
        let share = |queue: &Queue| dominant_share(queue, queue.allocated, total);
        self.over_utilised
            .cmp(&other.over_utilised)
            .then_with(|| other.starved.cmp(&self.starved))
            .then_with(|| r.priority.cmp(&l.priority))
            .then_with(|| self.takes_without_share.cmp(&other.takes_without_share))
            .then_with(|| self.share_with_gang.total_cmp(&other.share_with_gang))
            .then_with(|| share(l).total_cmp(&share(r)))
            .then_with(|| compare_allocatable(l, r))
            .then_with(|| l.created.cmp(&r.created))
            .then_with(|| l.uid.cmp(&r.uid))
            .then_with(|| l.name.cmp(&r.name))
    }
}

/// Whether the queue holds more than its fair share of every resource.
fn over_utilised(queue: &Queue) -> bool {
    Resource::all(|resource| queue.allocated[resource] > queue.fair_share[resource])
}

/// Whether the queue would hold a resource of which it may have nothing.
fn takes_without_share(queue: &Queue, amount: QueueResources) -> bool {
    Resource::any(|resource| queue.allocatable[resource] == Some(0) && amount[resource] > 0)
}

/// The dominant share: the largest ratio, over all resources, of `amount` to what the queue may hold.
fn dominant_share(queue: &Queue, amount: QueueResources, total: QueueResources) -> f64 {
    /// Makes any amount of a resource of which the queue may have nothing outweigh other ratios.
    const NO_SHARE_FACTOR: f64 = 1000.0;
    let mut dominant = 0f64;
    for resource in Resource::ALL {
        let share = queue.allocatable[resource].unwrap_or(total[resource]);
        let amount = amount[resource] as f64;
        let part = if share != 0 {
            amount / share as f64
        } else if resource == Resource::Gpu {
            amount / Gpus::ONE.0 as f64 * NO_SHARE_FACTOR
        } else {
            amount * NO_SHARE_FACTOR
        };
        dominant = dominant.max(part);
    }
    dominant
}

/// `Less` if the queue may hold less of one resource and more of none.
fn compare_allocatable(l: &Queue, r: &Queue) -> Ordering {
    let shares = Resource::ALL.map(|resource| {
        // No bound is more than any bound.
        let bound = |queue: &Queue| queue.allocatable[resource].map_or((1, 0), |share| (0, share));
        bound(l).cmp(&bound(r))
    });
    let (less, greater) = (shares.contains(&Ordering::Less), shares.contains(&Ordering::Greater));
    match (less, greater) {
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        (true, true) | (false, false) => Ordering::Equal,
    }
}
