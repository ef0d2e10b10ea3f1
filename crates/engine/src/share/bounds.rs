//! Limits of queues, and quotas where they bind: what can't be evicted must stay within what its queue deserves.

use crate::ids::{GangId, QueueId};
use crate::ledger::Ledger;
use crate::reasons::Resource;
use crate::share::{Before, quota_of};
use crate::tables::Share;

/// A bound that would be passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) queue: QueueId,
    pub(crate) kind: BoundKind,
    pub(crate) resource: Resource,
    pub(crate) bound: i64,
    pub(crate) used: i64,
    pub(crate) requested: i64,
}

/// Which of a queue's numbers binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BoundKind {
    Limit,
    Quota,
}

/// The first bound on the way from the gang's queue to the root that `requested` more would pass.
pub(crate) fn exceeded(ledger: &Ledger, gang: GangId, requested: Share) -> Option<Bound> {
    over_limit(ledger, gang, requested).or_else(|| over_quota(ledger, gang, requested))
}

/// The first limit that would be passed.
pub(crate) fn over_limit(ledger: &Ledger, gang: GangId, requested: Share) -> Option<Bound> {
    first(ledger, gang, requested, BoundKind::Limit)
}

/// The first quota that would be passed by pods that can't be evicted; none for a preemptible gang.
pub(crate) fn over_quota(ledger: &Ledger, gang: GangId, requested: Share) -> Option<Bound> {
    if ledger.gang(gang).preemptible {
        None
    } else {
        first(ledger, gang, requested, BoundKind::Quota)
    }
}

/// Whether every limit on the way from the gang's queue to the root is kept, or passed no further than `before`.
pub(crate) fn limits_hold(ledger: &Ledger, gang: GangId, before: &Before) -> bool {
    let leaf = ledger.gang(gang).queue;
    leaf.into_iter().flat_map(|leaf| ledger.queue_path(leaf)).all(|id| {
        let (queue, held) = (ledger.queue(id), before[id.index()].0);
        (0..held.len()).all(|at| {
            let limit = quota_of(&queue.quota, at).limit;
            queue.allocated[at] <= held[at] || limit.is_none_or(|limit| queue.allocated[at] <= limit)
        })
    })
}

fn first(ledger: &Ledger, gang: GangId, requested: Share, kind: BoundKind) -> Option<Bound> {
    for id in ledger.queue_path(ledger.gang(gang).queue?) {
        let queue = ledger.queue(id);
        for (at, resource) in Resource::ALL.into_iter().enumerate() {
            let quota = quota_of(&queue.quota, at);
            let (bound, used) = match kind {
                BoundKind::Limit => (quota.limit, queue.allocated[at]),
                BoundKind::Quota => (quota.deserved, queue.allocated_non_preemptible[at]),
            };
            let Some(bound) = bound else { continue };
            if requested[at] > 0 && bound < used + requested[at] {
                return Some(Bound {
                    queue: id,
                    kind,
                    resource,
                    bound,
                    used,
                    requested: requested[at],
                });
            }
        }
    }
    None
}
