//! Evicts gangs that run below their minimum for longer than their grace period: they make no progress and hold resources. A gang that
//! loses pods with a node that is being removed, and has more pods there, is not given that time: it moves as a whole.

use crate::cycle::Cycle;
use crate::ids::{GangId, PodId};
use crate::reasons::EvictionReason;
use crate::report::Decision;
use crate::tables::Gang;

impl Cycle<'_> {
    pub(crate) fn evict_stale(&mut self) {
        // Other gangs had their minimum when the cycle began, and the cycle did not change them.
        let candidates = self.active_gangs.iter().chain(&self.ledger.dirty_gangs).copied();
        let mut order: Vec<GangId> = candidates
            .filter(|gang| {
                let gang = self.ledger.gang(*gang);
                gang.is_or_was_stale() || self.leaves_in_parts(gang)
            })
            .collect();
        order.sort_by_key(|gang| self.ledger.gang(*gang).seniority);
        // Duplicates are adjacent after the sort, since no two known gangs have the same seniority.
        order.dedup();
        for gang in order {
            if self.leaves_in_parts(self.ledger.gang(gang)) {
                self.evict_gang(gang, EvictionReason::LeavingNode);
            }
            if self.ledger.gang(gang).is_or_was_stale() {
                self.check_staleness(gang);
            }
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
        self.evict_gang(gang, EvictionReason::StaleGang);
    }

    /// Whether the gang falls below its minimum, and the pods that it has left are partly on nodes that are being removed. Pods that
    /// terminate are gone: the drain has begun. A gang that may run below its minimum for ever is left alone.
    fn leaves_in_parts(&self, gang: &Gang) -> bool {
        let may_be_evicted = gang.staleness_grace.unwrap_or(self.config.staleness_grace).is_some();
        if !may_be_evicted || !gang.loses_minimum() {
            return false;
        }
        gang.pod_sets.iter().flat_map(|set| &set.pods).any(|pod| {
            self.ledger.note_work(1);
            let placement = &self.ledger.pod(*pod).placement;
            let node = placement.node.filter(|_| placement.status.is_active_allocated());
            node.is_some_and(|node| self.ledger.node(node).leaving)
        })
    }

    fn evict_gang(&mut self, gang: GangId, reason: EvictionReason) {
        let sets = &self.ledger.gangs[gang.index()].pod_sets;
        let pods: Vec<PodId> = sets.iter().flat_map(|set| set.pods.iter().copied()).collect();
        for pod in pods {
            if self.ledger.pod(pod).placement.status.is_active_allocated() {
                self.ledger.evict(pod);
                self.report_eviction(pod, reason.clone());
            }
        }
        self.ledger.commit();
    }
}
