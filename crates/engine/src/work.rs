//! Budgets of work, so that no cluster can make a cycle long, and rounds, so that no gang starves for it.
//!
//! A cycle has a budget of steps. Every action may take its part of what is left, and one gang a part of that. An action
//! that runs out of work stops; its round goes on in the next cycle with the gangs that were not tried yet. At least one gang
//! is tried per action and cycle, so that a round takes at most as many cycles as gangs wait.

use crate::cycle::Cycle;
use crate::ids::GangId;
use crate::model::Action;
use crate::place::PlacementFailure;

/// One gang may take this part of what its action may.
const GANG_PART: u64 = 2;

/// Which actions are in the midst of a round over all gangs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rounds {
    /// Bits as in [`Gang::tried_by`](crate::tables::Gang).
    open: u8,
}

#[cfg(test)]
impl Rounds {
    /// Whether every action came to all gangs.
    pub(crate) fn are_over(self) -> bool {
        self.open == 0
    }
}

/// The round of one action: gangs tried in vain so far in this cycle.
#[derive(Debug)]
pub(crate) struct Round {
    bit: u8,
    end: u64,
    part: u64,
    tried: Vec<GangId>,
    began: bool,
    is_cut: bool,
    /// Gangs that were tried in earlier cycles are left out.
    is_resumed: bool,
    /// The gang in hand has less than its part, since the action is about to end.
    is_reduced: bool,
}

/// The bit of an action that takes its gangs in rounds.
fn bit(action: Action) -> u8 {
    match action {
        Action::Allocate => 1,
        Action::Consolidation => 2,
        Action::Reclaim => 4,
        Action::Preempt => 8,
        Action::StaleGangEviction => 0,
    }
}

impl Cycle<'_> {
    /// The work that an action may take: half of what is left for placing gangs on what is free, for others the same for
    /// each that is still to come.
    fn part_of_work(&self, action: Action) -> u64 {
        let left = self.cycle_end.saturating_sub(self.ledger.work());
        let later = self.config.actions.iter().skip_while(|other| **other != action).skip(1);
        let later = later.filter(|other| bit(**other) != 0).count() as u64;
        match action {
            Action::Allocate => left / (1 + later.min(1)),
            Action::Consolidation | Action::Reclaim | Action::Preempt | Action::StaleGangEviction => left / (1 + later),
        }
    }

    /// Begins an action. Of `gangs` those remain that the round has not come to yet; a new round begins if there is none.
    pub(crate) fn begin_round(&mut self, action: Action, gangs: &mut Vec<GangId>) -> Round {
        let part = self.part_of_work(action);
        let (bit, mut is_resumed) = (bit(action), false);
        if self.rounds.open & bit != 0 {
            let is_new = |gang: &GangId| self.ledger.gang(*gang).tried_by & bit == 0;
            if gangs.iter().any(is_new) {
                gangs.retain(is_new);
                is_resumed = true;
            } else {
                self.end_rounds(bit);
            }
        }
        Round {
            bit,
            end: self.ledger.work().saturating_add(part),
            part: part / GANG_PART,
            tried: Vec::new(),
            began: false,
            is_cut: false,
            is_resumed,
            is_reduced: false,
        }
    }

    /// Whether the next gang may be tried. The first one always may.
    pub(crate) fn may_try_next(&mut self, round: &mut Round) -> bool {
        let work = self.ledger.work();
        if std::mem::replace(&mut round.began, true) && work >= round.end {
            round.is_cut = true;
            return false;
        }
        let wanted = work.saturating_add(round.part);
        let end = round.end.max(work + 1);
        round.is_reduced = wanted > end;
        self.work_end = wanted.min(end);
        true
    }

    /// Ends an action.
    pub(crate) fn end_round(&mut self, round: Round) {
        self.work_end = u64::MAX;
        if round.is_cut {
            self.effort().exhausted = true;
            self.rounds.open |= round.bit;
            for gang in round.tried {
                self.ledger.gangs[gang.index()].tried_by |= round.bit;
            }
        } else if self.rounds.open & round.bit != 0 {
            self.end_rounds(round.bit);
        }
    }

    fn end_rounds(&mut self, bit: u8) {
        self.rounds.open &= !bit;
        for gang in &mut self.ledger.gangs {
            gang.tried_by &= !bit;
        }
    }

    /// Gangs that were not reached say why.
    pub(crate) fn explain_cut(&mut self, gangs: impl Iterator<Item = GangId>) {
        for gang in gangs {
            self.explanations
                .failures
                .entry(gang)
                .or_insert(PlacementFailure::OutOfWork);
        }
    }
}

impl Round {
    /// The gang was tried in vain. If it was cut short with less than its part, it is the first of the next cycle.
    pub(crate) fn failed(&mut self, gang: GangId, is_cut: bool) {
        if is_cut && self.is_reduced {
            self.is_cut = true;
        } else {
            self.tried.push(gang);
        }
    }

    /// Whether a gang that was cut short had its part of the work.
    pub(crate) fn was_full(&self) -> bool {
        !self.is_reduced
    }

    /// Stops the action for another reason than work.
    pub(crate) fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Whether some gangs were left out in this cycle.
    pub(crate) fn is_partial(&self) -> bool {
        self.is_cut || self.is_resumed
    }
}
