//! Victims that a solution does not need. A simulation places victims again from scratch, so some are moved or evicted
//! although no other pod uses their place: another node had a higher score, or their own node does not accept them again
//! (it is cordoned, or the victim itself still uses the host port). A gang whose victims can all stay is not evicted,
//! unless fairness of the outcome depends on its loss.

use crate::cycle::Cycle;
use crate::ids::{GangId, PodId};
use crate::report::Status;
use crate::share;
use crate::tables::When;
use crate::victims::by_gang::VictimsByGang;
use crate::victims::simulate::{VictimOutcome, victim_outcome};
use crate::victims::solve::Search;

/// The most gangs that are checked: each check validates the whole outcome again.
const ATTEMPTS_MAX: usize = 64;

impl Cycle<'_> {
    /// Undoes the eviction of victims whose places the simulation in the ledger does not need for `pods`.
    pub(crate) fn keep_unneeded_victims(&mut self, search: &Search<'_>, pods: &[PodId], victims: &[PodId]) {
        // Victims may be thousands, and nearly always all their places are needed.
        if !victims.iter().any(|pod| self.could_stay(*pod)) {
            return;
        }
        let affected = self.evicted_or_moved(victims);
        // A pod with required affinity may depend on the new place of a moved victim.
        let has_required_affinity = |pod: &PodId| !self.ledger.shape_of(*pod).constraints.affinity.required.is_empty();
        if pods.iter().chain(&affected).any(has_required_affinity) {
            return;
        }
        let mut attempts = 0;
        // The gang that lost pods last gets them back first.
        for (gang, victims) in VictimsByGang::new(self.ledger, &affected).iter().rev() {
            let start = self.ledger.checkpoint();
            let stays =
                self.undo_evictions(gang, victims) && share::limits_hold(self.ledger, gang, &search.before) && {
                    attempts += 1;
                    // Reclaim compares queues after the loss: a queue that keeps its pods may make the outcome unfair.
                    self.is_allowed(search, pods, &self.evicted_or_moved(&affected))
                };
            if !stays {
                self.ledger.rollback(start);
            }
            if attempts == ATTEMPTS_MAX {
                return;
            }
        }
    }

    /// A cheap test whether the victim can possibly stay.
    fn could_stay(&self, pod: PodId) -> bool {
        match victim_outcome(self, pod) {
            VictimOutcome::Evicted => self.place_is_free(pod),
            VictimOutcome::Moved => true,
            VictimOutcome::Kept => false,
        }
    }

    /// The victims that are evicted or moved.
    fn evicted_or_moved(&self, victims: &[PodId]) -> Vec<PodId> {
        let is_affected = |pod: &PodId| victim_outcome(self, *pod) != VictimOutcome::Kept;
        victims.iter().copied().filter(is_affected).collect()
    }

    /// Undoes the eviction of all victims of a gang; false if not all of their places are free. It must be all of them: the
    /// rest of the gang could be below its minimum, or its missing pods could be placed first in the next cycle, on the same
    /// nodes, and be evicted again in every cycle.
    fn undo_evictions(&mut self, gang: GangId, victims: &[PodId]) -> bool {
        let (returning, promised): (Vec<PodId>, Vec<PodId>) = victims.iter().partition(|pod| {
            let row = self.ledger.pod(**pod);
            // A pod that was pipelined to one node and now is pipelined to another one loses nothing.
            row.evicted_from != Some(Status::Pipelined)
                && (row.old_placement.is_some() || victim_outcome(self, **pod) != VictimOutcome::Moved)
        });
        // The pods that keep their new nodes must stay in the same topology domain as the rest of the gang.
        if !promised.is_empty() && self.ledger.gang(gang).has_topology() {
            return false;
        }
        let moved = |pod: &&PodId| victim_outcome(self, **pod) == VictimOutcome::Moved;
        let moved: Vec<PodId> = returning.iter().filter(moved).copied().collect();
        moved.iter().for_each(|pod| self.ledger.undo_move(*pod));
        !returning.is_empty()
            && returning.iter().all(|pod| {
                let is_free = self.place_is_free(*pod);
                if is_free {
                    self.ledger.undo_eviction(*pod);
                }
                is_free
            })
    }

    /// Whether an evicted pod can keep its place: it still fits on its node, or no pod is pipelined to the node, so that the
    /// node stays as it was, even if it was overcommitted before.
    pub(crate) fn place_is_free(&self, pod: PodId) -> bool {
        let ledger = &*self.ledger;
        let Some(node) = ledger.pod(pod).placement.node else {
            return false;
        };
        let is_pipelined_here = |other: &PodId| {
            let place = &ledger.pod(*other).placement;
            place.status == Status::Pipelined && place.node == Some(node)
        };
        if ledger.still_fits(pod) {
            return true;
        }
        // The pod that takes its claim may be pipelined to another node.
        if ledger.has_claim_in_use(pod, When::AfterRelease) {
            return false;
        }
        let pods = &ledger.node(node).pods;
        ledger.note_work(pods.len());
        !pods.iter().any(is_pipelined_here)
    }
}
