//! Lists of gangs and the available capacity that all victim searches of one action read. The action updates them after
//! each solution.

use crate::cluster::ResourceNames;
use crate::gangs::{Candidates, GangRank};
use crate::ids::{GangId, QueueId};
use crate::ledger::Ledger;
use crate::model::{Gpus, QueueResources};
use crate::order::{Direction, GangsByQueue, QueueHeap};
use crate::report::Status;
use crate::share::QueueChange;
use crate::victims::capacity::BaseCapacity;

/// The state that the victim searches of one action share.
#[derive(Clone, Debug)]
pub(crate) struct SearchState {
    /// Gangs with pending pods, in the order in which they are placed.
    pub(crate) pending: GangsByQueue,
    /// Gangs with pods on nodes that may be evicted, in the order in which they lose pods.
    pub(crate) victims: GangsByQueue,
    pub(crate) base_capacity: BaseCapacity,
    /// By gang: the rank with which the lists contain it.
    ranks: Vec<GangRank>,
    /// By leaf queue: an upper bound on the GPUs that one of its gangs holds.
    pub(crate) largest_gang: Vec<Gpus>,
    /// The first simulation with several leaf queues builds it.
    pub(crate) pending_order: Option<PendingQueueOrder>,
}

/// The order of leaf queues by their next pending gang. A simulation changes the leaves of its participants and restores
/// them at its end.
#[derive(Clone, Debug)]
pub(crate) struct PendingQueueOrder {
    pub(crate) heap: QueueHeap,
    /// By leaf queue: the request of its next pending gang.
    changes: Vec<Option<QueueChange>>,
    /// By gang: its request, once computed.
    requests: Vec<Option<QueueResources>>,
    gpu_memory_min_mib: Option<i64>,
}

impl PendingQueueOrder {
    pub(crate) fn new(
        ledger: &Ledger,
        pending: &GangsByQueue,
        total: QueueResources,
        gpu_memory_min_mib: Option<i64>,
    ) -> PendingQueueOrder {
        let mut pending_order = PendingQueueOrder {
            heap: QueueHeap::new(ledger, Direction::Serve, total),
            changes: vec![None; ledger.queues.len()],
            requests: vec![None; ledger.gangs.len()],
            gpu_memory_min_mib,
        };
        for leaf in pending.leaves() {
            pending_order.update_leaf(ledger, pending, leaf);
        }
        pending_order
    }

    /// The request of a pending gang that is no participant of the running simulation.
    pub(crate) fn request(&mut self, ledger: &Ledger, gang: GangId) -> QueueResources {
        if let Some(request) = self.requests[gang.index()] {
            return request;
        }
        let mut pods = Vec::new();
        ledger.pods_to_place(gang, Candidates::Simulated, &mut pods);
        let request = ledger.requested_by(&pods, self.gpu_memory_min_mib);
        self.requests[gang.index()] = Some(request);
        request
    }

    /// Updates a leaf after a change of its pending gangs or of the resources of its queue.
    fn update_leaf(&mut self, ledger: &Ledger, pending: &GangsByQueue, leaf: QueueId) {
        self.changes[leaf.index()] = pending.next(leaf).map(|gang| QueueChange {
            request: self.request(ledger, gang),
            freed: QueueResources::ZERO,
        });
        self.restore_leaf(ledger, leaf);
    }

    /// Reverts the changes of a simulation to a leaf.
    pub(crate) fn restore_leaf(&mut self, ledger: &Ledger, leaf: QueueId) {
        self.heap.set(ledger, leaf, self.changes[leaf.index()]);
    }
}

impl SearchState {
    pub(crate) fn new(ledger: &Ledger) -> SearchState {
        let mut state = SearchState {
            largest_gang: vec![Gpus::ZERO; ledger.queues.len()],
            pending: GangsByQueue::empty(ledger, Direction::Serve),
            victims: GangsByQueue::empty(ledger, Direction::Evict),
            base_capacity: BaseCapacity::default(),
            ranks: Vec::with_capacity(ledger.gangs.len()),
            pending_order: None,
        };
        // One pass fills all lists, since the rows of gangs are many and each costs a cache miss.
        for (at, gang) in ledger.gangs.iter().enumerate() {
            let (id, rank) = (GangId::new(at), GangRank::of(gang));
            state.ranks.push(rank);
            let Some(queue) = gang.queue.filter(|_| gang.known) else {
                continue;
            };
            let held = &mut state.largest_gang[queue.index()];
            *held = (*held).max(gang.allocated.gpus);
            if is_pending(ledger, id) {
                state.pending.add(queue, rank, id);
            }
            if is_victim(ledger, id) {
                state.victims.add(queue, rank, id);
            }
        }
        state.pending.sort();
        state.victims.sort();
        state
    }

    /// Updates the lists after a change of these gangs and of nodes.
    pub(crate) fn update(&mut self, ledger: &Ledger, resources: &ResourceNames, gangs: &[GangId]) {
        /// If at least one in this many gangs changed, a rebuild is faster than moving each within long lists.
        const REBUILD_DIVISOR: usize = 64;
        /// Fewer changed gangs than this never cause a rebuild.
        const REBUILD_MIN: usize = 16;
        if gangs.len() >= (ledger.gangs.len() / REBUILD_DIVISOR).max(REBUILD_MIN) {
            let base_capacity = std::mem::take(&mut self.base_capacity);
            *self = SearchState {
                base_capacity,
                ..SearchState::new(ledger)
            };
            return self.base_capacity.catch_up(ledger, resources);
        }
        for gang in gangs.iter().copied() {
            let rank = std::mem::replace(&mut self.ranks[gang.index()], GangRank::of(ledger.gang(gang)));
            self.pending.remove(ledger, gang, rank);
            self.victims.remove(ledger, gang, rank);
            if is_pending(ledger, gang) {
                self.pending.insert(ledger, gang);
            }
            if is_victim(ledger, gang) {
                self.victims.insert(ledger, gang);
            }
        }
        if let Some(pending_order) = &mut self.pending_order {
            gangs
                .iter()
                .for_each(|gang| pending_order.requests[gang.index()] = None);
            let mut leaves: Vec<QueueId> = gangs.iter().filter_map(|gang| ledger.gang(*gang).queue).collect();
            leaves.sort_unstable();
            leaves.dedup();
            for leaf in leaves {
                pending_order.update_leaf(ledger, &self.pending, leaf);
            }
        }
        self.base_capacity.catch_up(ledger, resources);
    }
}

fn is_pending(ledger: &Ledger, gang: GangId) -> bool {
    let gang = ledger.gang(gang);
    // Background gangs are placed after all others, so they delay none.
    gang.count(Status::Pending) > 0 && !gang.is_background()
}

fn is_victim(ledger: &Ledger, gang: GangId) -> bool {
    ledger.gang(gang).has_evictable_pods()
}
