//! Sparing victims. A simulation lets victims compete for room anew, so some come out moved or gone although nobody took
//! their place: another node looked better, or theirs would not let them in again (it is cordoned, its host port is the
//! victim's own). A gang whose victims can all stay where they are stays, unless the outcome needs its loss.

use crate::cycle::Cycle;
use crate::ids::{GangId, PodId};
use crate::report::Status;
use crate::share::{self, AllocatedBefore};
use crate::victims::simulate::{Outcome, outcome};
use crate::victims::solve::Search;
use crate::victims::validate::by_gang;

/// So many gangs are tried at most: each judges the outcome anew.
const ATTEMPTS_MAX: usize = 64;

impl Cycle<'_> {
    /// Lets victims of the simulation in the ledger stay where `pods`, for which it is, do not need their place.
    pub(crate) fn spare(&mut self, search: &Search<'_>, pods: &[PodId], victims: &[PodId], before: &AllocatedBefore) {
        // Nearly always every place is needed, and victims may be thousands.
        if !victims.iter().any(|pod| self.could_stay(*pod)) {
            return;
        }
        let harmed = self.harmed(victims);
        // Somebody may have been placed near another on purpose.
        let is_clingy = |pod: &PodId| !self.ledger.shape_of(*pod).constraints.affinity.required.is_empty();
        if pods.iter().chain(&harmed).any(is_clingy) {
            return;
        }
        let mut attempts = 0;
        // The last to lose is the first to be spared.
        for (gang, victims) in by_gang(self, &harmed).into_iter().rev() {
            let start = self.ledger.checkpoint();
            let stays = self.stay(gang, &victims) && share::limits_hold(self.ledger, gang, before) && {
                attempts += 1;
                // Who takes from its own branch may need that to stay behind other branches.
                self.is_allowed(search, pods, &self.harmed(&harmed), before)
            };
            if !stays {
                self.ledger.rollback(start);
            }
            if attempts == ATTEMPTS_MAX {
                return;
            }
        }
    }

    /// Whether a look at the victim is worth while.
    fn could_stay(&self, pod: PodId) -> bool {
        match outcome(self, pod) {
            Outcome::Evicted => self.place_is_free(pod),
            Outcome::Moved => true,
            Outcome::Kept => false,
        }
    }

    /// Those victims that have to go or move.
    fn harmed(&self, victims: &[PodId]) -> Vec<PodId> {
        let is_harmed = |pod: &PodId| outcome(self, *pod) != Outcome::Kept;
        victims.iter().copied().filter(is_harmed).collect()
    }

    /// Puts victims of a gang back where they are; whether all their places are free. A part of them would not do: the gang
    /// would be torn, or its missing pods be placed again before anybody else, maybe where they were, and so on for ever.
    fn stay(&mut self, gang: GangId, victims: &[PodId]) -> bool {
        let (here, promised): (Vec<PodId>, Vec<PodId>) = victims.iter().partition(|pod| {
            let row = self.ledger.pod(**pod);
            // One that only waited for a place and now waits for another loses nothing.
            row.evicted_from != Some(Status::Pipelined)
                && (row.old_placement.is_some() || outcome(self, **pod) != Outcome::Moved)
        });
        // What was promised elsewhere meanwhile must not be torn from the rest.
        if !promised.is_empty() && self.ledger.gang(gang).has_topology() {
            return false;
        }
        let moved = |pod: &&PodId| outcome(self, **pod) == Outcome::Moved;
        let moved: Vec<PodId> = here.iter().filter(moved).copied().collect();
        moved.iter().for_each(|pod| self.ledger.undo_move(*pod));
        !here.is_empty()
            && here.iter().all(|pod| {
                let is_free = self.place_is_free(*pod);
                if is_free {
                    self.ledger.undo_eviction(*pod);
                }
                is_free
            })
    }

    /// Whether the place of an evicted pod can stay its own: it fits there, or nobody was promised anything on the node,
    /// so that all there can stay as it was, were it too much.
    fn place_is_free(&self, pod: PodId) -> bool {
        let ledger = &*self.ledger;
        let Some(node) = ledger.pod(pod).placement.node else {
            return false;
        };
        let is_promised = |other: &PodId| {
            let place = &ledger.pod(*other).placement;
            place.status == Status::Pipelined && place.node == Some(node)
        };
        ledger.still_fits(pod) || !ledger.node(node).pods.iter().any(is_promised)
    }
}
