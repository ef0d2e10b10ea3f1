//! The rules for the outcome of a simulation: gangs stay whole, minimum runtimes are respected, reclaim is fair.

use crate::cycle::Cycle;
use crate::ids::{GangId, PodId};
use crate::model::{Action, QueueResources};
use crate::share::{self, QueueLoss};
use crate::victims::by_gang::VictimsByGang;
use crate::victims::simulate::{VictimOutcome, victim_outcome};
use crate::victims::solve::Search;

impl Cycle<'_> {
    /// Whether the simulation in the ledger is allowed. `pods` are the placed pods of the gang.
    pub(crate) fn is_allowed(&self, search: &Search<'_>, pods: &[PodId], victims: &[PodId]) -> bool {
        self.ledger.note_work(victims.len());
        let gangs = VictimsByGang::new(self.ledger, victims);
        if !self.keeps_gangs_whole(&gangs) {
            return false;
        }
        match search.action {
            Action::Consolidation => victims
                .iter()
                .all(|pod| victim_outcome(self, *pod) != VictimOutcome::Evicted),
            Action::Preempt => self.respects_min_runtime(search, &gangs),
            Action::Reclaim => self.is_fair_reclaim(search, pods, &gangs) && self.respects_min_runtime(search, &gangs),
            Action::Allocate | Action::StaleGangEviction | Action::BackgroundPods => true,
        }
    }

    /// Whether every victim gang keeps at least its minimum or loses all pods: with less than the minimum it can't work. Victims of a
    /// semi-preemptible gang are never of its core, so it keeps what it has of its minimum.
    fn keeps_gangs_whole(&self, gangs: &VictimsByGang) -> bool {
        gangs.iter().all(|(gang, pods)| {
            let gang = self.ledger.gang(gang);
            let loses = pods
                .iter()
                .any(|pod| victim_outcome(self, *pod) == VictimOutcome::Evicted);
            !loses || gang.is_semi_preemptible() || gang.active_allocated() == 0 || gang.is_satisfied()
        })
    }

    /// Whether gangs within their minimum runtime lose only pods above their minimum.
    fn respects_min_runtime(&self, search: &Search<'_>, gangs: &VictimsByGang) -> bool {
        for (gang, pods) in gangs.iter() {
            let row = self.ledger.gang(gang);
            if !row.is_elastic() || !self.is_within_min_runtime(search.action, search.queue, gang) {
                continue;
            }
            for (at, set) in row.pod_sets.iter().enumerate() {
                let lost = pods
                    .iter()
                    .filter(|pod| self.ledger.pod(**pod).pod_set == Some(at as u32))
                    .count() as u32;
                if lost > 0 && set.active_used() < set.min + lost {
                    return false;
                }
            }
        }
        true
    }

    fn is_fair_reclaim(&self, search: &Search<'_>, pods: &[PodId], gangs: &VictimsByGang) -> bool {
        let reclaimer = search.reclaimer_for(self, pods);
        let mut losses: Vec<QueueLoss> = Vec::new();
        for (gang, pods) in gangs.iter() {
            let units = self.losses_of(gang, pods);
            let Some(queue) = self.ledger.gang(gang).queue.filter(|_| !units.is_empty()) else {
                continue;
            };
            match losses.iter_mut().find(|loss| loss.queue == queue) {
                Some(loss) => loss.units.extend(units),
                None => losses.push(QueueLoss { queue, units }),
            }
        }
        share::reclaim_is_fair(self.ledger, &search.before, &reclaimer, &losses)
    }

    /// The losses of a gang in units that fairness checks one by one: each pod above the minimum is a unit, the others are
    /// one unit together. Moved pods are no loss if the configuration allows consolidating reclaim.
    fn losses_of(&self, gang: GangId, pods: &[PodId]) -> Vec<QueueResources> {
        let row = self.ledger.gang(gang);
        let (mut units, mut within_minimum) = (Vec::new(), None::<QueueResources>);
        for (at, set) in row.pod_sets.iter().enumerate() {
            let of_set = pods
                .iter()
                .filter(|pod| self.ledger.pod(**pod).pod_set == Some(at as u32));
            for (position, pod) in of_set.enumerate() {
                let place = &self.ledger.pod(*pod).placement;
                if self.config.allow_consolidating_reclaim && place.status.is_active_allocated() {
                    continue;
                }
                let Some(node) = place.node else { continue };
                let accepted = self.ledger.shape_of(*pod).accepted(self.ledger.node(node).memory_mib);
                if position < set.min as usize {
                    within_minimum = Some(within_minimum.unwrap_or_default() + accepted);
                } else {
                    units.push(accepted);
                }
            }
        }
        units.extend(within_minimum);
        units
    }
}
