//! What victim search looks at, kept up to date while an action changes it.

use crate::cluster::ResourceNames;
use crate::gangs::{Candidates, GangRank};
use crate::ids::{GangId, QueueId};
use crate::ledger::Ledger;
use crate::model::Gpus;
use crate::order::{Direction, GangsByQueue, QueueHeap};
use crate::report::Status;
use crate::share::QueueChange;
use crate::tables::{QUEUE_GPU, QueueResources};
use crate::victims::scenario::BaseRoom;

/// Pending gangs in the order in which they are served, gangs with something to lose in the order in which they do, and
/// the GPUs that are free.
#[derive(Clone, Debug)]
pub(crate) struct Lists {
    pub(crate) pending: GangsByQueue,
    pub(crate) victims: GangsByQueue,
    pub(crate) room: BaseRoom,
    /// The rank under which a gang is listed.
    ranks: Vec<GangRank>,
    /// By leaf queue: at least what any of its victims holds.
    pub(crate) largest: Vec<Gpus>,
    /// Whose turn it is among the pending gangs; `None` = not asked for yet.
    pub(crate) turns: Option<PendingTurns>,
}

/// The order of leaf queues by their next pending gang. A simulation changes it for the leaves that take part and restores
/// these afterwards.
#[derive(Clone, Debug)]
pub(crate) struct PendingTurns {
    pub(crate) tournament: QueueHeap,
    /// What the next pending gang of a leaf asks for, by queue.
    loads: Vec<Option<QueueChange>>,
    /// What a pending gang asks for, where it was asked before.
    requests: Vec<Option<QueueResources>>,
    gpu_memory_min_mib: Option<i64>,
}

impl PendingTurns {
    pub(crate) fn new(
        ledger: &Ledger,
        pending: &GangsByQueue,
        total: QueueResources,
        gpu_memory_min_mib: Option<i64>,
    ) -> PendingTurns {
        let mut turns = PendingTurns {
            tournament: QueueHeap::new(ledger, Direction::Serve, total),
            loads: vec![None; ledger.queues.len()],
            requests: vec![None; ledger.gangs.len()],
            gpu_memory_min_mib,
        };
        for leaf in pending.leaves() {
            turns.follow(ledger, pending, leaf);
        }
        turns
    }

    /// What a pending gang asks for that takes no part in the running simulation.
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

    /// Follows a change of a leaf's pending gangs, or of what its queues hold.
    fn follow(&mut self, ledger: &Ledger, pending: &GangsByQueue, leaf: QueueId) {
        self.loads[leaf.index()] = pending.next(leaf).map(|gang| QueueChange {
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

impl Lists {
    pub(crate) fn new(ledger: &Ledger) -> Lists {
        let mut lists = Lists {
            largest: vec![Gpus::ZERO; ledger.queues.len()],
            pending: GangsByQueue::empty(ledger, Direction::Serve),
            victims: GangsByQueue::empty(ledger, Direction::Evict),
            room: BaseRoom::default(),
            ranks: Vec::with_capacity(ledger.gangs.len()),
            turns: None,
        };
        // All in one pass: the rows of gangs are many and far apart.
        for (at, gang) in ledger.gangs.iter().enumerate() {
            let (id, rank) = (GangId::new(at), GangRank::of(gang));
            lists.ranks.push(rank);
            let Some(queue) = gang.queue.filter(|_| gang.known) else {
                continue;
            };
            let held = &mut lists.largest[queue.index()];
            *held = (*held).max(Gpus(gang.allocated[QUEUE_GPU]));
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
            let room = std::mem::take(&mut self.room);
            *self = Lists {
                room,
                ..Lists::new(ledger)
            };
            return self.room.catch_up(ledger, resources);
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
        if let Some(turns) = &mut self.turns {
            gangs.iter().for_each(|gang| turns.requests[gang.index()] = None);
            let mut leaves: Vec<QueueId> = gangs.iter().filter_map(|gang| ledger.gang(*gang).queue).collect();
            leaves.sort_unstable();
            leaves.dedup();
            for leaf in leaves {
                turns.follow(ledger, &self.pending, leaf);
            }
        }
        self.room.catch_up(ledger, resources);
    }
}

fn is_pending(ledger: &Ledger, gang: GangId) -> bool {
    ledger.gang(gang).count(Status::Pending) > 0
}

fn is_victim(ledger: &Ledger, gang: GangId) -> bool {
    let gang = ledger.gang(gang);
    gang.preemptible && gang.active_allocated() > 0
}
