//! Whether the outcome of a simulation is allowed.

use rustc_hash::FxHashMap;

use crate::cycle::Cycle;
use crate::ids::{GangId, PodId};
use crate::model::Action;
use crate::share::{self, AllocatedBefore, QueueLoss, Reclaimer};
use crate::victims::simulate::{Outcome, outcome};
use crate::victims::solve::Search;

impl Cycle<'_> {
    /// Judges the simulation that is in the ledger. `pods` are those of the gang that were placed.
    pub(crate) fn is_allowed(
        &self,
        search: &Search<'_>,
        pods: &[PodId],
        victims: &[PodId],
        before: &AllocatedBefore,
    ) -> bool {
        self.ledger.note_work(victims.len());
        if !self.leaves_gangs_whole(victims) {
            return false;
        }
        match search.action {
            Action::Consolidation => victims.iter().all(|pod| outcome(self, *pod) != Outcome::Evicted),
            Action::Preempt => self.spares_protected(search, victims),
            Action::Reclaim => {
                self.is_fair_reclaim(search, pods, victims, before) && self.spares_protected(search, victims)
            }
            Action::Allocate | Action::StaleGangEviction => true,
        }
    }

    /// A gang is evicted down to its minimum or altogether: what is left in between could not work.
    fn leaves_gangs_whole(&self, victims: &[PodId]) -> bool {
        by_gang(self, victims).iter().all(|(gang, pods)| {
            let gang = self.ledger.gang(*gang);
            let loses = pods.iter().any(|pod| outcome(self, *pod) == Outcome::Evicted);
            !loses || gang.active_allocated() == 0 || gang.is_satisfied()
        })
    }

    /// A gang within its minimum runtime may lose what is above its minimum, no more.
    fn spares_protected(&self, search: &Search<'_>, victims: &[PodId]) -> bool {
        for (gang, pods) in by_gang(self, victims) {
            let row = self.ledger.gang(gang);
            if !row.is_elastic() || !self.is_protected(search.action, search.queue, gang) {
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

    fn is_fair_reclaim(
        &self,
        search: &Search<'_>,
        pods: &[PodId],
        victims: &[PodId],
        before: &AllocatedBefore,
    ) -> bool {
        let request = self.ledger.requested_by(pods, self.gpu_memory_min_mib);
        let reclaimer = Reclaimer {
            request,
            ..search.reclaimer(self)
        };
        let mut losses: Vec<QueueLoss> = Vec::new();
        for (gang, pods) in by_gang(self, victims) {
            let units = self.losses_of(gang, &pods);
            let Some(queue) = self.ledger.gang(gang).queue.filter(|_| !units.is_empty()) else {
                continue;
            };
            match losses.iter_mut().find(|loss| loss.queue == queue) {
                Some(loss) => loss.units.extend(units),
                None => losses.push(QueueLoss { queue, units }),
            }
        }
        share::reclaim_is_fair(self.ledger, before, &reclaimer, &losses)
    }

    /// What a gang loses, in units that are judged one by one: pods above its minimum each, the rest together. Pods
    /// that have a place again are no loss where reclaim may move.
    fn losses_of(&self, gang: GangId, pods: &[PodId]) -> Vec<crate::tables::QueueResources> {
        let row = self.ledger.gang(gang);
        let (mut units, mut core) = (Vec::new(), None);
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
                    core = Some(share::plus(core.unwrap_or_default(), accepted));
                } else {
                    units.push(accepted);
                }
            }
        }
        units.extend(core);
        units
    }
}

/// Victims by gang, in the order in which they were taken.
pub(crate) fn by_gang(cycle: &Cycle<'_>, victims: &[PodId]) -> Vec<(GangId, Vec<PodId>)> {
    let mut gangs: Vec<(GangId, Vec<PodId>)> = Vec::new();
    let mut position: FxHashMap<GangId, usize> = FxHashMap::default();
    for pod in victims {
        let Some(gang) = cycle.ledger.pod(*pod).gang else {
            continue;
        };
        let at = *position.entry(gang).or_insert_with(|| {
            gangs.push((gang, Vec::new()));
            gangs.len() - 1
        });
        gangs[at].1.push(*pod);
    }
    gangs
}
