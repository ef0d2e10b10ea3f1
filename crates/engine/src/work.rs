//! Budgets of work, which bound the length of a cycle, and rounds, which keep a budget from starving gangs.
//!
//! A cycle has a budget of steps. Every action gets a part of what is left, and every gang a part of that. An action whose budget is
//! used up stops; its round goes on in the next cycle with the gangs that it has not tried yet. Every action tries at least one gang
//! per cycle, so a round takes at most as many cycles as there are waiting gangs.

use crate::cycle::Cycle;
use crate::ids::GangId;
use crate::model::Action;
use crate::place::PlacementFailure;

/// The budget of a gang is the budget of its action, divided by this.
const GANGS_PER_ACTION_BUDGET: u64 = 2;

/// The actions whose round continues in the next cycle.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rounds {
    /// Bits as in [`Gang::tried_by`](crate::tables::Gang).
    open: u8,
}

#[cfg(test)]
impl Rounds {
    /// Whether all gangs of the round have been tried.
    pub(crate) fn is_complete(self, of: RoundOf) -> bool {
        self.open & of.bit() == 0
    }
}

/// The round of one action, in one cycle.
#[derive(Debug)]
pub(crate) struct Round {
    action_bit: u8,
    /// The value of `Ledger::work` at which the budget of the action is used up.
    end: u64,
    /// The budget of one gang.
    gang_budget: u64,
    /// Gangs that this cycle failed to place.
    failed: Vec<GangId>,
    has_tried: bool,
    /// Whether the action stopped before it tried all gangs.
    is_cut: bool,
    /// Whether the round began in an earlier cycle: gangs tried there are left out.
    is_resumed: bool,
    /// Whether the current gang has less than `gang_budget`, because the budget of the action ends before.
    is_reduced: bool,
}

/// The work that a round is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundOf {
    /// Placing the gangs of an action; of [`Action::BackgroundPods`], the waiting background gangs.
    Action(Action),
    /// Placing gangs on the room of background gangs.
    BackgroundRoom,
    /// Evicting background pods tentatively.
    TentativeEvictions {
        /// Also pods after which no pod is left on a shared GPU.
        empties_gpus: bool,
    },
}

impl RoundOf {
    pub(crate) fn action(self) -> Action {
        match self {
            RoundOf::Action(action) => action,
            RoundOf::BackgroundRoom | RoundOf::TentativeEvictions { .. } => Action::BackgroundPods,
        }
    }

    /// The bit of the round in [`Gang::tried_by`](crate::tables::Gang); 0 for an action without rounds.
    pub(crate) fn bit(self) -> u8 {
        match self {
            RoundOf::Action(Action::Allocate) => 1,
            RoundOf::Action(Action::Consolidation) => 2,
            RoundOf::Action(Action::Reclaim) => 4,
            RoundOf::Action(Action::Preempt) => 8,
            RoundOf::Action(Action::StaleGangEviction) => 0,
            RoundOf::Action(Action::BackgroundPods) => 16,
            RoundOf::BackgroundRoom => 32,
            RoundOf::TentativeEvictions { empties_gpus: false } => 64,
            RoundOf::TentativeEvictions { empties_gpus: true } => 128,
        }
    }
}

impl Cycle<'_> {
    /// The budget of a round. Allocate gets half of what is left of the cycle's budget; other actions divide it evenly with the actions
    /// that are still to run. The last action gets all.
    fn budget_of(&self, of: RoundOf) -> u64 {
        let left = self.cycle_end.saturating_sub(self.ledger.work());
        let after = |action: Action| {
            let later = self.config.actions.iter().skip_while(|other| **other != action).skip(1);
            let later = later.filter(|other| other.places()).count() as u64;
            // Waiting background gangs come last.
            later + u64::from(self.ledger.background_pods > 0)
        };
        match of {
            RoundOf::Action(Action::Allocate) => left / (1 + after(Action::Allocate).min(1)),
            RoundOf::Action(action @ (Action::Consolidation | Action::Reclaim | Action::Preempt)) => {
                left / (1 + after(action))
            }
            RoundOf::Action(Action::BackgroundPods | Action::StaleGangEviction) => left,
            RoundOf::BackgroundRoom => left / (1 + after(Action::Allocate)),
            // Undoing the evictions takes as many steps.
            RoundOf::TentativeEvictions { .. } => left / (1 + after(Action::Allocate)) / 2,
        }
    }

    /// Begins a round, or continues it: then the gangs that it has tried are removed from `gangs`.
    pub(crate) fn begin_round(&mut self, of: RoundOf, gangs: &mut Vec<GangId>) -> Round {
        let budget = self.budget_of(of);
        let (bit, mut is_resumed) = (of.bit(), false);
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
            action_bit: bit,
            end: self.ledger.work().saturating_add(budget),
            gang_budget: budget / GANGS_PER_ACTION_BUDGET,
            failed: Vec::new(),
            has_tried: false,
            is_cut: false,
            is_resumed,
            is_reduced: false,
        }
    }

    /// Whether the action may try the next gang, and sets the budget of that gang. The action may always try the first gang.
    pub(crate) fn may_try_next(&mut self, round: &mut Round) -> bool {
        let work = self.ledger.work();
        if std::mem::replace(&mut round.has_tried, true) && work >= round.end {
            round.is_cut = true;
            return false;
        }
        let wanted = work.saturating_add(round.gang_budget);
        let end = round.end.max(work + 1);
        round.is_reduced = wanted > end;
        self.work_end = wanted.min(end);
        true
    }

    /// Ends the round of an action, or interrupts it if gangs are left to try.
    pub(crate) fn end_round(&mut self, round: Round) {
        self.work_end = u64::MAX;
        if round.is_cut {
            self.stats().exhausted = true;
            self.rounds.open |= round.action_bit;
            for gang in round.failed {
                self.ledger.gangs[gang.index()].tried_by |= round.action_bit;
            }
        } else if self.rounds.open & round.action_bit != 0 {
            self.end_rounds(round.action_bit);
        }
    }

    fn end_rounds(&mut self, bit: u8) {
        self.rounds.open &= !bit;
        for gang in &mut self.ledger.gangs {
            gang.tried_by &= !bit;
        }
    }

    /// Sets the explanation of gangs that the action did not try.
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
    /// Records that the gang was not placed. A gang whose attempt was cut by a reduced budget is tried again in the next cycle.
    pub(crate) fn record_failure(&mut self, gang: GangId, is_cut: bool) {
        if is_cut && self.is_reduced {
            self.is_cut = true;
        } else {
            self.failed.push(gang);
        }
    }

    /// Whether the current gang has its full budget.
    pub(crate) fn has_full_budget(&self) -> bool {
        !self.is_reduced
    }

    /// Marks that the action stops early for a reason other than its budget of work.
    pub(crate) fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Whether the action left out some gangs in this cycle.
    pub(crate) fn is_partial(&self) -> bool {
        self.is_cut || self.is_resumed
    }
}
