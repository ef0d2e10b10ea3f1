//! What victim search looks at, kept up to date while an action changes it.

use crate::cluster::ResourceNames;
use crate::gangs::{Candidates, GangRank};
use crate::ids::{GangId, QueueId};
use crate::ledger::Ledger;
use crate::model::Gpus;
use crate::order::{ByLeaf, Direction, Tournament};
use crate::report::Status;
use crate::share::Load;
use crate::tables::{SHARE_GPU, Share};
use crate::victims::scenario::BaseCapacity;

/// Pending gangs in the order in which they are served, gangs with something to lose in the order in which they do, and
/// the GPUs that are free.
#[derive(Clone, Debug)]
pub(crate) struct SearchState {
    pub(crate) pending: ByLeaf,
    pub(crate) victims: ByLeaf,
    pub(crate) base_capacity: BaseCapacity,
    /// The rank under which a gang is listed.
    ranks: Vec<GangRank>,
    /// By leaf queue: at least what any of its victims holds.
    pub(crate) largest: Vec<Gpus>,
    /// Whose turn it is among the pending gangs; `None` = not asked for yet.
    pub(crate) pending_order: Option<PendingQueueOrder>,
}

/// The order of leaf queues by their next pending gang. A simulation changes it for the leaves that take part and restores
/// these afterwards.
#[derive(Clone, Debug)]
pub(crate) struct PendingQueueOrder {
    pub(crate) tournament: Tournament,
    /// What the next pending gang of a leaf asks for, by queue.
    loads: Vec<Option<Load>>,
    /// What a pending gang asks for, where it was asked before.
    requests: Vec<Option<Share>>,
    memory_min: Option<i64>,
}

impl PendingQueueOrder {
    pub(crate) fn new(ledger: &Ledger, pending: &ByLeaf, total: Share, memory_min: Option<i64>) -> PendingQueueOrder {
        let mut pending_order = PendingQueueOrder {
            tournament: Tournament::new(ledger, Direction::Serve, total),
            loads: vec![None; ledger.queues.len()],
            requests: vec![None; ledger.gangs.len()],
            memory_min,
        };
        for leaf in pending.leaves() {
            pending_order.follow(ledger, pending, leaf);
        }
        pending_order
    }

    /// What a pending gang asks for that takes no part in the running simulation.
    pub(crate) fn request(&mut self, ledger: &Ledger, gang: GangId) -> Share {
        if let Some(request) = self.requests[gang.index()] {
            return request;
        }
        let mut pods = Vec::new();
        ledger.pods_to_place(gang, Candidates::Simulated, &mut pods);
        let request = ledger.requested_by(&pods, self.memory_min);
        self.requests[gang.index()] = Some(request);
        request
    }

    /// Follows a change of a leaf's pending gangs, or of what its queues hold.
    fn follow(&mut self, ledger: &Ledger, pending: &ByLeaf, leaf: QueueId) {
        self.loads[leaf.index()] = pending.next(leaf).map(|gang| Load {
            request: self.request(ledger, gang),
            freed: [0; 3],
        });
        self.restore(ledger, leaf);
    }

    /// Takes back what a simulation changed of a leaf.
    pub(crate) fn restore(&mut self, ledger: &Ledger, leaf: QueueId) {
        self.tournament.set(ledger, leaf, self.loads[leaf.index()]);
    }
}

impl SearchState {
    pub(crate) fn new(ledger: &Ledger) -> SearchState {
        let mut lists = SearchState {
            largest: vec![Gpus::ZERO; ledger.queues.len()],
            pending: ByLeaf::empty(ledger, Direction::Serve),
            victims: ByLeaf::empty(ledger, Direction::Take),
            base_capacity: BaseCapacity::default(),
            ranks: Vec::with_capacity(ledger.gangs.len()),
            pending_order: None,
        };
        // All in one pass: the rows of gangs are many and far apart.
        for (at, gang) in ledger.gangs.iter().enumerate() {
            let (id, rank) = (GangId::new(at), GangRank::of(gang));
            lists.ranks.push(rank);
            let Some(queue) = gang.queue.filter(|_| gang.known) else {
                continue;
            };
            let held = &mut lists.largest[queue.index()];
            *held = (*held).max(Gpus(gang.allocated[SHARE_GPU]));
            if is_pending(ledger, id) {
                lists.pending.add(queue, rank, id);
            }
            if is_victim(ledger, id) {
                lists.victims.add(queue, rank, id);
            }
        }
        lists.pending.sort();
        lists.victims.sort();
        lists
    }

    /// Follows a change of these gangs and of nodes.
    pub(crate) fn follow(&mut self, ledger: &Ledger, resources: &ResourceNames, gangs: &[GangId]) {
        /// From this part of all gangs on it is quicker to list all of them anew than to take each out of long lists.
        const ANEW_PART: usize = 64;
        /// And from this number on.
        const ANEW_MIN: usize = 16;
        if gangs.len() >= (ledger.gangs.len() / ANEW_PART).max(ANEW_MIN) {
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
                pending_order.follow(ledger, &self.pending, leaf);
            }
        }
        self.base_capacity.catch_up(ledger, resources);
    }
}

fn is_pending(ledger: &Ledger, gang: GangId) -> bool {
    ledger.gang(gang).count(Status::Pending) > 0
}

fn is_victim(ledger: &Ledger, gang: GangId) -> bool {
    let gang = ledger.gang(gang);
    gang.preemptible && gang.active_allocated() > 0
}
