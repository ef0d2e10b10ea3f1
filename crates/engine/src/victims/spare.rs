//! Sparing victims. A simulation lets victims compete for room anew, so some come out moved or gone although nobody took
//! their place: another node looked better, or theirs would not let them in again (it is cordoned, its host port is the
//! victim's own, of an elastic gang one pod at a time is tried). Who can stay where it is, stays.

use crate::cycle::Cycle;
use crate::gangs::leads;
use crate::ids::{GangId, PodId};
use crate::place::Mode;
use crate::report::Status;
use crate::share::{self, Before};
use crate::victims::simulate::{Outcome, outcome};
use crate::victims::solve::Search;
use crate::victims::validate::by_gang;

/// Where gangs can't be spared all at once, so many attempts are made at single ones: each judges the outcome anew.
const SINGLE_ATTEMPTS_MAX: usize = 64;

/// Victims of one gang that go or move.
type Victims = (GangId, Vec<PodId>);

/// What all attempts have in common.
struct Sparing<'s, 'l> {
    search: &'s Search<'l>,
    /// The pods that all this is for.
    pods: &'s [PodId],
    /// What queues held before the search.
    before: &'s Before,
    /// Nobody was placed near another on purpose, so that moved pods may leave their new places.
    free_to_move: bool,
}

/// What came of an attempt to spare gangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spared {
    /// There is nothing to spare; the ledger is as before.
    Nobody,
    /// Some stay, and no gang is worse off for it.
    Some,
    /// A gang that had a new place would lose it.
    Conflict,
}

impl Cycle<'_> {
    /// Lets victims of the simulation in the ledger stay where `pods`, for which it is, do not need their place. No gang
    /// fares worse than before.
    pub(crate) fn spare(&mut self, search: &Search<'_>, pods: &[PodId], victims: &[PodId], before: &Before) {
        let could_stay = |pod: &PodId| match outcome(self, *pod) {
            Outcome::Evicted => self.place_is_free(*pod),
            Outcome::Moved => true,
            Outcome::Kept => false,
        };
        // Nearly always every place is needed, and victims may be thousands.
        if !victims.iter().any(could_stay) {
            return;
        }
        let harmed = self.harmed(victims);
        let is_clingy = |pod: &PodId| !self.ledger.shape_of(*pod).constraints.affinity.required.is_empty();
        let sparing = Sparing {
            search,
            pods,
            before,
            free_to_move: !pods.iter().chain(&harmed).any(is_clingy),
        };
        let mut gangs = by_gang(self, &harmed);
        // The last to lose is the first to be spared.
        gangs.reverse();
        let start = self.ledger.checkpoint();
        match self.spare_gangs(&sparing, &gangs) {
            Spared::Nobody => return,
            Spared::Some if self.may_spare(&sparing, &harmed) => return,
            Spared::Some | Spared::Conflict => self.ledger.rollback(start),
        }
        let mut attempts = 0;
        let mut again = true;
        // Who moves back may leave the place of another.
        while std::mem::take(&mut again) {
            for gang in &gangs {
                if attempts == SINGLE_ATTEMPTS_MAX {
                    return;
                }
                attempts += 1;
                let start = self.ledger.checkpoint();
                let spared = self.spare_gangs(&sparing, std::slice::from_ref(gang));
                if spared == Spared::Some && self.may_spare(&sparing, &harmed) {
                    again = true;
                } else {
                    self.ledger.rollback(start);
                }
            }
        }
    }

    /// Those victims that have to go or move.
    fn harmed(&self, victims: &[PodId]) -> Vec<PodId> {
        let is_harmed = |pod: &PodId| outcome(self, *pod) != Outcome::Kept;
        victims.iter().copied().filter(is_harmed).collect()
    }

    /// Whether the outcome is still allowed: who takes from its own branch may need that to stay behind other branches.
    fn may_spare(&self, sparing: &Sparing<'_, '_>, harmed: &[PodId]) -> bool {
        self.is_allowed(sparing.search, sparing.pods, &self.harmed(harmed), sparing.before)
    }

    fn spare_gangs(&mut self, sparing: &Sparing<'_, '_>, gangs: &[Victims]) -> Spared {
        let came_home = self.bring_home(sparing, gangs);
        if came_home == Spared::Conflict {
            return Spared::Conflict;
        }
        let mut stayed = false;
        for (gang, victims) in gangs {
            let is_evicted = |pod: &PodId| outcome(self, *pod) == Outcome::Evicted;
            if !victims.iter().any(is_evicted) {
                continue;
            }
            let moved = self.moved(victims);
            stayed |= (!moved.is_empty() && self.let_stay(sparing, *gang, victims, &moved))
                || self.let_stay(sparing, *gang, victims, &[]);
        }
        if stayed { Spared::Some } else { came_home }
    }

    /// Moved gangs go back to places that nobody but moved pods took. All leave their new places first: some may have
    /// changed places with each other. Who can't go back is placed anew.
    fn bring_home(&mut self, sparing: &Sparing<'_, '_>, gangs: &[Victims]) -> Spared {
        let moved: Vec<Victims> = gangs
            .iter()
            .map(|(gang, victims)| (*gang, self.moved(victims)))
            .filter(|(_, moved)| !moved.is_empty())
            .collect();
        let all: Vec<PodId> = moved.iter().flat_map(|(_, pods)| pods).copied().collect();
        if all.is_empty() || !sparing.free_to_move {
            return Spared::Nobody;
        }
        let start = self.ledger.checkpoint();
        all.iter().for_each(|pod| self.ledger.unmove(*pod));
        let mut homeless: Vec<Victims> = Vec::new();
        let gangs = moved.len();
        for (gang, pods) in moved {
            if !self.go_home(sparing, gang, &pods) {
                homeless.push((gang, pods));
            }
        }
        if homeless.len() == gangs {
            self.ledger.rollback(start);
            return Spared::Nobody;
        }
        let nodes = self.nodes_for(sparing.search, sparing.pods, &all);
        for (gang, pods) in homeless {
            if self.place_gang(gang, &pods, Mode::Simulated, &nodes).is_err() {
                self.ledger.rollback(start);
                return Spared::Conflict;
            }
        }
        Spared::Some
    }

    /// Keeps the pods of a gang where they are if all their places are free. In part would not do: what is missing of the
    /// gang would be placed again before anybody else, maybe where it was, and so on for ever.
    fn go_home(&mut self, sparing: &Sparing<'_, '_>, gang: GangId, pods: &[PodId]) -> bool {
        let start = self.ledger.checkpoint();
        let keep = |cycle: &mut Self, pod: PodId| {
            let is_free = cycle.place_is_free(pod);
            if is_free {
                cycle.ledger.keep(pod);
            }
            is_free
        };
        let home = pods.iter().all(|pod| keep(self, *pod)) && share::limits_hold(self.ledger, gang, sparing.before);
        if !home {
            self.ledger.rollback(start);
        }
        home
    }

    /// Keeps evicted pods of a gang where they are, as far as their places are free and what stays makes up a whole
    /// gang. Those of the gang that `moved` make room for the others first and are placed again after them.
    fn let_stay(&mut self, sparing: &Sparing<'_, '_>, gang: GangId, victims: &[PodId], moved: &[PodId]) -> bool {
        let is_moved = |pod: &PodId| outcome(self, *pod) == Outcome::Moved;
        let is_tied = self.ledger.gang(gang).has_topology() && victims.iter().any(is_moved);
        if is_tied || !(moved.is_empty() || sparing.free_to_move) {
            return false;
        }
        let (start, active) = (self.ledger.checkpoint(), self.ledger.gang(gang).active_allocated());
        moved.iter().for_each(|pod| self.ledger.unmove(*pod));
        let stay = self.keep_in_order(gang);
        if stay > 0 && !moved.is_empty() {
            let nodes = self.nodes_for(sparing.search, sparing.pods, moved);
            for pod in moved {
                // Who finds nothing now is made up for by those who stay, or the attempt is taken back.
                if self.ledger.pod(*pod).is_placeable() {
                    let _ = self.place_gang(gang, &[*pod], Mode::Simulated, &nodes);
                }
            }
        }
        let row = self.ledger.gang(gang);
        let loses = |set: u32| self.evicted(gang, set).next().is_some();
        let stays = stay > 0
            && row.active_allocated() >= active
            && !row.is_torn(loses)
            && share::limits_hold(self.ledger, gang, sparing.before);
        if !stays {
            self.ledger.rollback(start);
        }
        stays
    }

    /// Keeps those evicted pods of a gang whose places are free; how many. A pod set keeps its minimum or nothing.
    fn keep_in_order(&mut self, gang: GangId) -> usize {
        let mut stay = 0;
        for set in 0..self.ledger.gang(gang).pod_sets.len() as u32 {
            let start = self.ledger.checkpoint();
            let evicted: Vec<PodId> = self.evicted(gang, set).collect();
            let (mut kept, mut first_to_go) = (0, None);
            for pod in evicted {
                // Workers don't stay without their leader.
                let follows = |leader: PodId| leads(self.ledger.pod(leader), self.ledger.pod(pod));
                if first_to_go.is_some_and(follows) || !self.place_is_free(pod) {
                    first_to_go.get_or_insert(pod);
                } else {
                    self.ledger.keep(pod);
                    kept += 1;
                }
            }
            if first_to_go.is_some() && !self.ledger.gang(gang).pod_sets[set as usize].is_satisfied() {
                self.ledger.rollback(start);
            } else {
                stay += kept;
            }
        }
        stay
    }

    /// Victims of a pod set that have to go, in the order in which the gang starts them.
    fn evicted(&self, gang: GangId, set: u32) -> impl Iterator<Item = PodId> + '_ {
        let pods = self.ledger.gang(gang).pod_sets[set as usize].pods.iter().copied();
        pods.filter(|pod| outcome(self, *pod) == Outcome::Evicted)
    }

    /// Victims that were moved from a place where they really are. One that only waited for a place and now waits for
    /// another loses nothing.
    fn moved(&self, victims: &[PodId]) -> Vec<PodId> {
        let is_moved = |pod: &PodId| {
            let row = self.ledger.pod(*pod);
            let was_there = row.evicted_from != Some(Status::Pipelined) && row.leaving.is_some();
            outcome(self, *pod) == Outcome::Moved && was_there
        };
        victims.iter().copied().filter(is_moved).collect()
    }

    /// Whether the place of an evicted pod can stay its own: it fits there, or nobody was promised anything on the node,
    /// so that all there can stay as it was, were it too much.
    fn place_is_free(&self, pod: PodId) -> bool {
        let ledger = &*self.ledger;
        let Some(node) = ledger.pod(pod).place.node else {
            return false;
        };
        let is_promised = |other: &PodId| {
            let place = &ledger.pod(*other).place;
            place.status == Status::Pipelined && place.node == Some(node)
        };
        ledger.still_fits(pod) || !ledger.node(node).pods.iter().any(is_promised)
    }
}
