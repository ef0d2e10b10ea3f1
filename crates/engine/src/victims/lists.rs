//! What victim search looks at, kept up to date while an action changes it.

use crate::cluster::ResourceNames;
use crate::gangs::GangRank;
use crate::ids::GangId;
use crate::ledger::Ledger;
use crate::model::Gpus;
use crate::order::{ByLeaf, Direction};
use crate::report::Status;
use crate::tables::SHARE_GPU;
use crate::victims::scenario::BaseRoom;

/// Pending gangs in the order in which they are served, gangs with something to lose in the order in which they do, and
/// the GPUs that are free.
#[derive(Clone, Debug)]
pub(crate) struct Lists {
    pub(crate) pending: ByLeaf,
    pub(crate) victims: ByLeaf,
    pub(crate) room: BaseRoom,
    /// The rank under which a gang is listed.
    ranks: Vec<GangRank>,
    /// By leaf queue: at least what any of its victims holds.
    pub(crate) largest: Vec<Gpus>,
}

impl Lists {
    pub(crate) fn new(ledger: &Ledger) -> Lists {
        let mut lists = Lists {
            largest: vec![Gpus::ZERO; ledger.queues.len()],
            pending: ByLeaf::empty(ledger, Direction::Serve),
            victims: ByLeaf::empty(ledger, Direction::Take),
            room: BaseRoom::default(),
            ranks: Vec::with_capacity(ledger.gangs.len()),
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
