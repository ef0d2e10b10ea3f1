//! The order in which sibling queues are served, and in reverse, in which they lose.

use std::cmp::Ordering;

use crate::ids::QueueId;
use crate::ledger::Ledger;
use crate::share::{plus, within_deserved};
use crate::tables::{Queue, SHARE_GPU, Share};

/// What one queue brings into the comparison with its siblings: computed once, compared often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) queue: QueueId,
    over_utilised: bool,
    starved: bool,
    takes_without_share: bool,
    share_with_gang: f64,
}

/// What is about to change in a queue: what its best gang asks for, or what victims taken from it would free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) request: Share,
    pub(crate) freed: Share,
}

impl Standing {
    pub(crate) fn of(ledger: &Ledger, id: QueueId, load: Load, total: Share) -> Standing {
        let queue = ledger.queue(id);
        let with_request = plus(queue.allocated, load.request);
        let mut with_victims = with_request;
        crate::ledger::add(&mut with_victims, load.freed, -1);
        Standing {
            queue: id,
            over_utilised: over_utilised(queue),
            starved: within_deserved(queue, with_request),
            takes_without_share: takes_without_share(queue, with_request),
            share_with_gang: dominant_share(queue, with_victims, total),
        }
    }

    /// Who is served first (`Less` = self). Each rule decides only between those equal by the rules before it.
    pub(crate) fn compare(&self, other: &Standing, ledger: &Ledger, total: Share) -> Ordering {
        let (l, r) = (ledger.queue(self.queue), ledger.queue(other.queue));
        let share = |queue: &Queue| dominant_share(queue, queue.allocated, total);
        self.over_utilised
            .cmp(&other.over_utilised)
            .then_with(|| other.starved.cmp(&self.starved))
            .then_with(|| r.priority.cmp(&l.priority))
            .then_with(|| self.takes_without_share.cmp(&other.takes_without_share))
            .then_with(|| self.share_with_gang.total_cmp(&other.share_with_gang))
            .then_with(|| share(l).total_cmp(&share(r)))
            .then_with(|| smaller_everywhere(l, r))
            .then_with(|| l.created.cmp(&r.created))
            .then_with(|| l.uid.cmp(&r.uid))
            .then_with(|| l.name.cmp(&r.name))
    }
}

/// Holds more than its fair share of everything.
fn over_utilised(queue: &Queue) -> bool {
    (0..3).all(|resource| queue.allocated[resource] > queue.fair_share[resource])
}

/// Would hold something of which it has no share at all.
fn takes_without_share(queue: &Queue, amount: Share) -> bool {
    (0..3).any(|resource| queue.allocatable[resource] == Some(0) && amount[resource] > 0)
}

/// The largest part that the queue has of its share of any resource.
fn dominant_share(queue: &Queue, amount: Share, total: Share) -> f64 {
    /// Makes any amount of what a queue has no share of outweigh real shares.
    const NO_SHARE_FACTOR: f64 = 1000.0;
    let mut dominant = 0f64;
    for resource in 0..3 {
        let share = queue.allocatable[resource].unwrap_or(total[resource]);
        let amount = amount[resource] as f64;
        let part = if share != 0 {
            amount / share as f64
        } else if resource == SHARE_GPU {
            amount / crate::model::Gpus::ONE.0 as f64 * NO_SHARE_FACTOR
        } else {
            amount * NO_SHARE_FACTOR
        };
        dominant = dominant.max(part);
    }
    dominant
}

fn smaller_everywhere(l: &Queue, r: &Queue) -> Ordering {
    let shares: [Ordering; 3] = std::array::from_fn(|resource| {
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
