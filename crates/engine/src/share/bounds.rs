//! Limits and quotas of queues. A quota bounds non-preemptible gangs and the cores of semi-preemptible ones only: they must stay within
//! the deserved quota of their queue.

use crate::ids::{GangId, QueueId};
use crate::ledger::{Ledger, QueueRequest};
use crate::model::QueueResources;
use crate::reasons::Resource;
use crate::share::AllocatedBefore;

/// A bound that a request would exceed, with the numbers that were compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) queue: QueueId,
    pub(crate) kind: BoundKind,
    pub(crate) resource: Resource,
    pub(crate) bound: i64,
    pub(crate) used: i64,
    pub(crate) requested: i64,
}

/// The kind of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BoundKind {
    Limit,
    Quota,
}

/// The first bound that the request would exceed, from the gang's queue to the root: a limit, else a quota.
pub(crate) fn exceeded(ledger: &Ledger, gang: GangId, request: &QueueRequest) -> Option<Bound> {
    over_limit(ledger, gang, request.all).or_else(|| over_quota(ledger, gang, request.non_preemptible))
}

/// The first limit that `requested` more would exceed.
pub(crate) fn over_limit(ledger: &Ledger, gang: GangId, requested: QueueResources) -> Option<Bound> {
    first_exceeded(ledger, gang, requested, BoundKind::Limit)
}

/// The first quota that `requested` more for non-preemptible pods would exceed.
pub(crate) fn over_quota(ledger: &Ledger, gang: GangId, requested: QueueResources) -> Option<Bound> {
    first_exceeded(ledger, gang, requested, BoundKind::Quota)
}

/// Whether every queue from the gang's queue to the root is within its limit, or exceeds it by no more than `before`.
pub(crate) fn limits_hold(ledger: &Ledger, gang: GangId, before: &AllocatedBefore) -> bool {
    let leaf = ledger.gang(gang).queue;
    leaf.into_iter().flat_map(|leaf| ledger.queue_path(leaf)).all(|id| {
        let (queue, held) = (ledger.queue(id), before[id.index()].0);
        Resource::all(|resource| {
            let (allocated, limit) = (queue.allocated[resource], queue.quota[resource].limit);
            allocated <= held[resource] || limit.is_none_or(|limit| allocated <= limit)
        })
    })
}

/// Whether every queue from the gang's queue to the root is within its quota, or exceeds it by no more than `before`.
pub(crate) fn quotas_hold(ledger: &Ledger, gang: GangId, before: &AllocatedBefore) -> bool {
    debug_assert!(ledger.is_settled());
    let within_quota = |id: QueueId| {
        let (queue, held) = (ledger.queue(id), before[id.index()].1);
        Resource::all(|resource| {
            let (allocated, quota) = (
                queue.allocated_non_preemptible[resource],
                queue.quota[resource].deserved,
            );
            allocated <= held[resource] || quota.is_none_or(|quota| allocated <= quota)
        })
    };
    let leaf = ledger.gang(gang).queue;
    leaf.into_iter()
        .flat_map(|leaf| ledger.queue_path(leaf))
        .all(within_quota)
}

fn first_exceeded(ledger: &Ledger, gang: GangId, requested: QueueResources, kind: BoundKind) -> Option<Bound> {
    for id in ledger.queue_path(ledger.gang(gang).queue?) {
        let queue = ledger.queue(id);
        for resource in Resource::ALL {
            if requested[resource] <= 0 {
                continue;
            }
            let quota = &queue.quota[resource];
            let (bound, used) = match kind {
                BoundKind::Limit => (quota.limit, queue.allocated[resource]),
                BoundKind::Quota => (quota.deserved, queue.allocated_non_preemptible[resource]),
            };
            let Some(bound) = bound else { continue };
            if bound < used + requested[resource] {
                return Some(Bound {
                    queue: id,
                    kind,
                    resource,
                    bound,
                    used,
                    requested: requested[resource],
                });
            }
        }
    }
    None
}
