//! Evicts gangs that run below their minimum for longer than their grace period: they make no progress and hold resources.

use crate::cycle::Cycle;
use crate::ids::{GangId, PodId};
use crate::reasons::EvictionReason;
use crate::report::Decision;

impl Cycle<'_> {
    pub(crate) fn evict_stale(&mut self) {
        // Other gangs had their minimum when the cycle began, and the cycle did not change them.
        let candidates = self.active_gangs.iter().chain(&self.ledger.dirty_gangs).copied();
        let mut order: Vec<GangId> = candidates
            .filter(|gang| self.ledger.gang(*gang).is_or_was_stale())
            .collect();
        order.sort_by_key(|gang| self.ledger.gang(*gang).seniority);
        // Duplicates are adjacent after the sort, since no two known gangs have the same seniority.
        order.dedup();
        for gang in order {
            self.check_staleness(gang);
        }
    }

    fn check_staleness(&mut self, gang: GangId) {
        let row = &mut self.ledger.gangs[gang.index()];
        if !row.is_stale() {
            row.stale_since = None;
            self.report.decisions.push(Decision::Recovered(row.key.clone()));
            return;
        }
        let since = *row.stale_since.get_or_insert(self.now);
        self.report.decisions.push(Decision::Stale {
            gang: row.key.clone(),
            since,
        });
        let Some(grace) = row.staleness_grace.unwrap_or(self.config.staleness_grace) else {
            return;
        };
        if self.now - since < grace {
            return;
        }
        let pods: Vec<PodId> = row.pod_sets.iter().flat_map(|set| set.pods.iter().copied()).collect();
        for pod in pods {
            if self.ledger.pod(pod).placement.status.is_active_allocated() {
                self.ledger.evict(pod);
                self.report_eviction(pod, EvictionReason::StaleGang);
            }
        }
        self.ledger.commit();
    }
}
