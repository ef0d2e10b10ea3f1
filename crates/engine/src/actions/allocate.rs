//! Places pending gangs on idle and releasing capacity, in fair order.

use crate::cycle::Cycle;
use crate::gangs::Candidates;
use crate::ids::GangId;
use crate::model::Action;
use crate::order::{Direction, GangsByQueue};
use crate::place::{NodeSet, PlacementFailure, PlacementMode};
use crate::report::Status;
use crate::tables::Gang;
use crate::work::RoundOf;

impl Cycle<'_> {
    pub(crate) fn allocate(&mut self) {
        let waiting = self.waiting_gangs(|gang| !gang.is_background());
        self.place_in_order(RoundOf::Action(Action::Allocate), waiting);
    }

    /// Places gangs on idle and releasing capacity, in fair order.
    pub(super) fn place_in_order(&mut self, of: RoundOf, mut waiting: Vec<GangId>) {
        let all = waiting.clone();
        let mut round = self.begin_round(of, &mut waiting);
        let mut queues = self.iterate(self.by_leaf(Action::Allocate, waiting));
        let mut pods = Vec::new();
        while let Some(gang) = queues.pop(self) {
            if !self.may_try_next(&mut round) {
                break;
            }
            self.stats().tried += 1;
            let started_before = self.ledger.gang(gang).has_started();
            let checkpoint = self.ledger.checkpoint();
            self.ledger.pods_to_place(gang, Candidates::Waiting, &mut pods);
            if let Err(failure) = self.place_gang(gang, &pods, PlacementMode::Real, &NodeSet::All) {
                round.record_failure(gang, failure == PlacementFailure::OutOfWork);
                self.explanations.failures.insert(gang, failure);
                continue;
            }
            let must_wait = self.starts_in_part(gang);
            if must_wait {
                for pod in &pods {
                    if self.ledger.pod(*pod).placement.status == Status::Binding {
                        self.ledger.bind_to_pipeline(*pod);
                    }
                }
            }
            self.commit(checkpoint, of.action(), gang, &Default::default());
            self.stats().placed += 1;
            if !must_wait && !started_before {
                self.record_start(gang);
            }
            queues.served(self, gang);
            if self.ledger.gang(gang).waiting() > 0 {
                queues.push(self, gang);
            }
        }
        if round.is_partial() {
            self.explain_cut(all.into_iter());
        }
        self.end_round(round);
    }

    /// Gangs of a kind with pods that can be placed now.
    pub(crate) fn waiting_gangs(&self, is_of_kind: impl Fn(&Gang) -> bool) -> Vec<GangId> {
        let wants = |gang: &GangId| {
            let gang = self.ledger.gang(*gang);
            gang.waiting() > 0 && gang.schedulable && gang.is_ready() && is_of_kind(gang)
        };
        self.waiting.iter().copied().filter(wants).collect()
    }

    /// These gangs by leaf queue, of each queue as many as the action may try.
    pub(crate) fn by_leaf(&self, action: Action, gangs: Vec<GangId>) -> GangsByQueue {
        let mut gangs = GangsByQueue::build(self.ledger, Direction::Serve, gangs.into_iter());
        if let Some(depth) = self.config.depth(action) {
            gangs.cap(depth);
        }
        gangs
    }

    /// Whether some pods of a gang would start while others that its minimum needs are only pipelined.
    fn starts_in_part(&self, gang: GangId) -> bool {
        self.ledger.gang(gang).pod_sets.iter().any(|set| {
            let promised = set.counts[Status::Pipelined as usize];
            promised > 0 && set.active_allocated() - promised < set.min
        })
    }
}
