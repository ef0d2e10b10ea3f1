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
        let mut largest = vec![Gpus::ZERO; ledger.queues.len()];
        for gang in &ledger.gangs {
            if let Some(queue) = gang.queue {
                let held = &mut largest[queue.index()];
                *held = (*held).max(Gpus(gang.allocated[SHARE_GPU]));
            }
        }
        Lists {
            largest,
            pending: ByLeaf::build(ledger, Direction::Serve, |gang| is_pending(ledger, gang)),
            victims: ByLeaf::build(ledger, Direction::Take, |gang| is_victim(ledger, gang)),
            room: BaseRoom::default(),
            ranks: ledger.gangs.iter().map(GangRank::of).collect(),
        }
    }

    /// Follows a change of these gangs and of nodes.
    pub(crate) fn follow(&mut self, ledger: &Ledger, resources: &ResourceNames, gangs: impl Iterator<Item = GangId>) {
        for gang in gangs {
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
