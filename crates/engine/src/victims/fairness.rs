//! Why it was fair to take pods from a gang: the rule and its numbers, for people. They are found once a solution is accepted.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::cycle::Cycle;
use crate::ids::{GangId, PodId};
use crate::model::Action;
use crate::reasons::Fairness;
use crate::share::{self, Reclaimer};
use crate::victims::solve::Search;

/// By victim. Pods that lose nothing, because they are moved, have no entry.
pub(crate) type FairnessOfVictims = FxHashMap<PodId, Arc<Fairness>>;

impl Cycle<'_> {
    /// The rules by which the victims among the changed pods are evicted. The ledger contains the solution of the search.
    pub(crate) fn fairness_of_victims(&self, search: &Search<'_>, changed: &[PodId]) -> FairnessOfVictims {
        let mut by_gang: FxHashMap<GangId, Option<Arc<Fairness>>> = FxHashMap::default();
        let is_placed = |pod: &PodId| self.ledger.pod(*pod).gang == Some(search.gang);
        let placed: Vec<PodId> = changed.iter().copied().filter(is_placed).collect();
        let reclaimer = (search.action == Action::Reclaim).then(|| search.reclaimer_for(self, &placed));
        let moves_are_free = search.action == Action::Reclaim && self.config.allow_consolidating_reclaim;
        let victims = changed.iter().copied().filter_map(|pod| {
            let row = self.ledger.pod(pod);
            let is_loss = !(moves_are_free && row.placement.status.is_active_allocated());
            let is_victim = row.evicted_from.is_some() && is_loss;
            Some((pod, row.gang.filter(|_| is_victim)?))
        });
        victims
            .filter_map(|(pod, gang)| {
                let fairness = by_gang
                    .entry(gang)
                    .or_insert_with(|| self.fairness_of(search, reclaimer.as_ref(), gang).map(Arc::new));
                Some((pod, fairness.clone()?))
            })
            .collect()
    }

    fn fairness_of(&self, search: &Search<'_>, reclaimer: Option<&Reclaimer>, victim: GangId) -> Option<Fairness> {
        match search.action {
            Action::Reclaim => {
                let queue = self.ledger.gang(victim).queue?;
                share::reclaim_fairness(self.ledger, &search.before, reclaimer?, queue)
            }
            Action::Preempt => Some(Fairness::Priority {
                victim: self.ledger.gang(victim).priority,
                beneficiary: self.ledger.gang(search.gang).priority,
            }),
            Action::Allocate | Action::Consolidation | Action::StaleGangEviction | Action::BackgroundPods => None,
        }
    }
}
