//! The rules of reclaim between queues.
//!
//! A queue below its fair share may reclaim from queues above theirs, and a queue below its quota from queues above theirs. Afterwards
//! the reclaiming queue must not be more saturated than the queues that lost pods.

use crate::ids::QueueId;
use crate::ledger::Ledger;
use crate::model::{PerResource, QueueResources};
use crate::reasons::{Fairness, HeldByQueue, Resource, SiblingQueues};
use crate::share::within_deserved;
use crate::tables::Queue;

/// A gang that reclaims, and its request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reclaimer {
    pub(crate) queue: QueueId,
    pub(crate) request: QueueResources,
    /// The part of the request that quotas bound; `None` = there is none.
    pub(crate) non_preemptible: Option<QueueResources>,
    /// Millionths; see [`crate::model::Config::saturation_multiplier_millionths`].
    pub(crate) saturation_multiplier: i64,
}

/// The allocated and the non-preemptible resources of every queue before the evictions of a scenario, by queue id.
pub(crate) type AllocatedBefore = Vec<(QueueResources, QueueResources)>;

impl Reclaimer {
    /// Whether a queue that holds this much for non-preemptible gangs can hold the request as well, and stay within its quota.
    fn keeps_quota(&self, queue: &Queue, held: QueueResources) -> bool {
        self.non_preemptible
            .is_none_or(|request| within_deserved(queue, held + request))
    }
}

/// What all queues hold now.
pub(crate) fn allocated_of_queues(ledger: &Ledger) -> AllocatedBefore {
    debug_assert!(ledger.is_settled());
    let queues = ledger.queues.iter();
    queues
        .map(|queue| (queue.allocated, queue.allocated_non_preemptible))
        .collect()
}

/// Whether the gang's queue stays within its fair share, and within its quota with what is non-preemptible.
pub(crate) fn can_reclaim(ledger: &Ledger, reclaimer: &Reclaimer) -> bool {
    debug_assert!(ledger.is_settled());
    let queue = ledger.queue(reclaimer.queue);
    let within_fair = (queue.allocated + reclaimer.request).fits_in(&queue.fair_share);
    within_fair && reclaimer.keeps_quota(queue, queue.allocated_non_preemptible)
}

/// The two ancestors (or the queues themselves) that are siblings: where the paths from the root to `a` and `b` diverge. If one path is
/// a prefix of the other, the last pair of queues at the same depth.
pub(crate) fn sibling_ancestors(ledger: &Ledger, a: QueueId, b: QueueId) -> (QueueId, QueueId) {
    let path = |leaf| {
        let mut path: Vec<QueueId> = ledger.queue_path(leaf).collect();
        path.reverse();
        path
    };
    let (a, b) = (path(a), path(b));
    let pairs = || a.iter().copied().zip(b.iter().copied());
    pairs()
        .find(|(a, b)| a != b)
        .or_else(|| pairs().next_back())
        .expect("a path has at least its own queue")
}

/// Whether gangs of the queue `victim` can be victims at all, before any set of victims is known.
pub(crate) fn may_reclaim_from(ledger: &Ledger, reclaimer: &Reclaimer, victim: QueueId) -> bool {
    let (mine, theirs) = sibling_ancestors(ledger, reclaimer.queue, victim);
    let (mine, theirs) = (ledger.queue(mine), ledger.queue(theirs));
    if !within_deserved(mine, mine.allocated + reclaimer.request) {
        return exceeds_allocatable(theirs, theirs.allocated);
    }
    let mut below_quota = false;
    for resource in Resource::ALL {
        let Some(deserved) = theirs.quota[resource].deserved else {
            continue;
        };
        if reclaimer.request[resource] <= 0 {
            continue;
        }
        if theirs.allocated[resource] > deserved {
            return true;
        }
        below_quota |= theirs.allocated[resource] < deserved;
    }
    !below_quota
}

fn exceeds_allocatable(queue: &Queue, amount: QueueResources) -> bool {
    let exceeds = |resource: Resource| queue.allocatable[resource].is_some_and(|share| amount[resource] > share);
    Resource::any(exceeds)
}

/// The resources that a queue loses: one entry for each unit of victims.
#[derive(Clone, Debug)]
pub(crate) struct QueueLoss {
    pub(crate) queue: QueueId,
    pub(crate) units: Vec<QueueResources>,
}

/// Whether the reclaimer may cause these losses.
pub(crate) fn reclaim_is_fair(
    ledger: &Ledger,
    before: &AllocatedBefore,
    reclaimer: &Reclaimer,
    losses: &[QueueLoss],
) -> bool {
    let mut remaining: Vec<(QueueId, Remaining)> = Vec::new();
    for loss in losses {
        let (mine, theirs) = sibling_ancestors(ledger, reclaimer.queue, loss.queue);
        let involved = PerResource::from_fn(|resource| loss.units.iter().any(|unit| unit[resource] > 0));
        let guaranteed = within_deserved(ledger.queue(mine), before[mine.index()].0 + reclaimer.request);
        let victim = ledger.queue(theirs);
        for unit in &loss.units {
            let left = remaining_of(&mut remaining, before, theirs).allocated;
            let fair = exceeds_allocatable(victim, left) || (guaranteed && !within_deserved(victim, left));
            if !fair {
                return false;
            }
            for queue in ledger.queue_path(loss.queue) {
                let entry = remaining_of(&mut remaining, before, queue);
                entry.allocated -= *unit;
                entry.involved = PerResource::from_fn(|resource| entry.involved[resource] || involved[resource]);
            }
        }
    }
    stays_less_saturated(ledger, before, reclaimer, &remaining)
}

/// The rule by which the queue `victim` may lose pods to the reclaimer, and its numbers before any loss. `None` if neither rule allows
/// it: what it loses is then moved, not taken.
pub(crate) fn reclaim_fairness(
    ledger: &Ledger,
    before: &AllocatedBefore,
    reclaimer: &Reclaimer,
    victim: QueueId,
) -> Option<Fairness> {
    let (mine, theirs) = sibling_ancestors(ledger, reclaimer.queue, victim);
    let (my_queue, their_queue) = (ledger.queue(mine), ledger.queue(theirs));
    let (held_by_me, held) = (before[mine.index()].0, before[theirs.index()].0);
    // A resource that the reclaimer requests says more than another one, and GPUs say most.
    let first = |exceeds: &dyn Fn(Resource) -> bool| {
        let in_order = || Resource::ALL.into_iter().rev();
        let requested = in_order().find(|resource| reclaimer.request[*resource] > 0 && exceeds(*resource));
        requested.or_else(|| in_order().find(|resource| exceeds(*resource)))
    };
    let siblings = |resource: Resource| {
        let side = |queue: &Queue, amount: &QueueResources| HeldByQueue {
            queue: queue.name.to_string(),
            used: amount[resource],
            fair_share: queue.fair_share[resource],
            quota: queue.quota[resource].deserved,
        };
        SiblingQueues {
            resource,
            victim: side(their_queue, &held),
            beneficiary: side(my_queue, &held_by_me),
        }
    };
    let exceeds_share = |resource| their_queue.allocatable[resource].is_some_and(|share: i64| held[resource] > share);
    if let Some(resource) = first(&exceeds_share) {
        return Some(Fairness::OverFairShare(siblings(resource)));
    }
    let exceeds_quota = |resource| {
        let deserved = their_queue.quota[resource].deserved;
        deserved.is_some_and(|deserved| held[resource] > deserved)
    };
    let is_guaranteed = within_deserved(my_queue, held_by_me + reclaimer.request);
    let resource = first(&exceeds_quota).filter(|_| is_guaranteed)?;
    Some(Fairness::OverQuota(siblings(resource)))
}

/// What a queue holds after its losses, and which resources it lost.
#[derive(Clone, Copy, Debug)]
struct Remaining {
    allocated: QueueResources,
    involved: PerResource<bool>,
}

fn remaining_of<'a>(
    remaining: &'a mut Vec<(QueueId, Remaining)>,
    before: &AllocatedBefore,
    queue: QueueId,
) -> &'a mut Remaining {
    let at = remaining.iter().position(|(id, _)| *id == queue).unwrap_or_else(|| {
        remaining.push((
            queue,
            Remaining {
                allocated: before[queue.index()].0,
                involved: PerResource::default(),
            },
        ));
        remaining.len() - 1
    });
    &mut remaining[at].1
}

/// Whether, at every level, the reclaiming queue is within its fair share, or less saturated than every sibling that lost pods; and
/// within its quota with what is non-preemptible.
fn stays_less_saturated(
    ledger: &Ledger,
    before: &AllocatedBefore,
    reclaimer: &Reclaimer,
    remaining: &[(QueueId, Remaining)],
) -> bool {
    for level in ledger.queue_path(reclaimer.queue) {
        let queue = ledger.queue(level);
        let own = remaining
            .iter()
            .find(|(id, _)| *id == level)
            .map_or(before[level.index()].0, |(_, own)| own.allocated);
        let mine = own + reclaimer.request;
        for (sibling, theirs) in remaining {
            let sibling_queue = ledger.queue(*sibling);
            if sibling_queue.parent != queue.parent || *sibling == level {
                continue;
            }
            for resource in Resource::ALL {
                if !theirs.involved[resource] && reclaimer.request[resource] <= 0 {
                    continue;
                }
                let (my_fair, their_fair) = (queue.fair_share[resource], sibling_queue.fair_share[resource]);
                let above_share = if my_fair == 0 {
                    mine[resource] > 0
                } else {
                    mine[resource] > my_fair
                };
                if !above_share || their_fair <= 0 {
                    continue;
                }
                // mine / my_fair * multiplier >= theirs / their_fair, by cross-multiplication; a fair share of 0 is saturated without bound.
                let mine = i128::from(mine[resource]) * i128::from(reclaimer.saturation_multiplier) / 1_000_000;
                let my_side = mine * i128::from(their_fair);
                let their_side = i128::from(theirs.allocated[resource]) * i128::from(my_fair);
                if my_fair == 0 || my_side >= their_side {
                    return false;
                }
            }
        }
        if !reclaimer.keeps_quota(queue, before[level.index()].1) {
            return false;
        }
    }
    true
}
