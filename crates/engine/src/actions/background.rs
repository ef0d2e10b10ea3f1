//! Background pods, which never stand in the way of other workloads.
//!
//! A gang is a background gang if all its pods are background pods. While the other actions run, the pods of background gangs count as
//! releasing, so that other gangs are placed as if these pods were about to leave. Afterwards every background gang whose places were not
//! needed stays as it was; the others are evicted. At last, pending background gangs get what is left.

use crate::cycle::Cycle;
use crate::ids::{GangId, PodId};
use crate::model::Action;
use crate::reasons::EvictionReason;
use crate::report::Status;
use crate::share::{self, AllocatedBefore};

/// Background pods that count as releasing while the other actions run.
#[derive(Debug)]
pub(crate) struct LiftedPods {
    /// Their gangs, those that keep their places first.
    gangs: Vec<GangId>,
    /// Resources of all queues with the pods.
    before: AllocatedBefore,
}

impl Cycle<'_> {
    /// Lets the pods of background gangs count as releasing, if another gang waits.
    pub(crate) fn lift_background_pods(&mut self) {
        if self.ledger.background_pods == 0 || !self.has_ordinary_waiting_gang() {
            return;
        }
        let holds_places = |(at, gang): (usize, &crate::tables::Gang)| {
            let is_holder = gang.known && gang.is_background() && gang.active_allocated() > 0;
            is_holder.then(|| GangId::new(at))
        };
        let mut gangs: Vec<GangId> = self.ledger.gangs.iter().enumerate().filter_map(holds_places).collect();
        gangs.sort_by_key(|gang| {
            let row = self.ledger.gang(*gang);
            (std::cmp::Reverse(row.priority), row.seniority)
        });
        self.ledger.settle_cores();
        let before = share::allocated_of_queues(self.ledger);
        for gang in &gangs {
            for pod in self.pods_of(*gang) {
                let placement = &self.ledger.pod(pod).placement;
                // A pod on a node that the engine does not know takes no room.
                if placement.status.is_active_allocated() && placement.node.is_some() {
                    self.ledger.evict(pod);
                }
            }
        }
        self.ledger.commit();
        self.lifted = Some(LiftedPods { gangs, before });
    }

    /// Whether a gang that is no background gang waits.
    fn has_ordinary_waiting_gang(&self) -> bool {
        let waiting = self.waiting_gangs();
        waiting.iter().any(|gang| !self.ledger.gang(*gang).is_background())
    }

    /// Lets background gangs stay or evicts them, and places pending ones.
    pub(crate) fn place_background_gangs(&mut self) {
        if let Some(LiftedPods { gangs, before }) = self.lifted.take() {
            for gang in gangs {
                self.return_or_evict(gang, &before);
            }
            self.ledger.commit();
        }
        if self.config.actions.contains(&Action::Allocate) {
            let mut waiting = self.waiting_gangs();
            waiting.retain(|gang| self.ledger.gang(*gang).is_background());
            self.place_in_order(Action::BackgroundPods, waiting);
        }
    }

    /// Returns as many pods of a gang to their places as are free, but at least its minimum; evicts the others.
    fn return_or_evict(&mut self, gang: GangId, before: &AllocatedBefore) {
        let is_lifted = |cycle: &Self, pod: &PodId| {
            let row = cycle.ledger.pod(*pod);
            row.placement.status == Status::Releasing && row.evicted_from.is_some()
        };
        let is_non_preemptible = self.ledger.gang(gang).is_non_preemptible();
        let start = self.ledger.checkpoint();
        for pod in self.pods_of(gang) {
            if !is_lifted(self, &pod) || !self.place_is_free(pod) {
                continue;
            }
            let checkpoint = self.ledger.checkpoint();
            self.ledger.undo_eviction(pod);
            if !share::limits_hold(self.ledger, gang, before) || (is_non_preemptible && !self.quotas_hold(gang, before))
            {
                self.ledger.rollback(checkpoint);
            }
        }
        let lost = |cycle: &Self| -> Vec<PodId> {
            let pods = cycle.pods_of(gang).into_iter();
            pods.filter(|pod| is_lifted(cycle, pod)).collect()
        };
        let mut evicted = lost(self);
        // Which pods are the core is known once the last one has its place.
        let is_over_quota = self.ledger.gang(gang).is_semi_preemptible() && !self.quotas_hold(gang, before);
        let is_left_in_part = !evicted.is_empty() && !self.ledger.gang(gang).is_satisfied();
        if is_over_quota || is_left_in_part {
            self.ledger.rollback(start);
            evicted = lost(self);
        }
        let pods = evicted.len() as u32;
        for pod in evicted {
            if self.report_eviction(pod, EvictionReason::Background { pods }) {
                self.record_eviction(gang);
            }
        }
    }

    fn quotas_hold(&mut self, gang: GangId, before: &AllocatedBefore) -> bool {
        self.ledger.settle_cores();
        share::quotas_hold(self.ledger, gang, before)
    }

    /// The pods of a gang in task order: the first is evicted last.
    fn pods_of(&self, gang: GangId) -> Vec<PodId> {
        let sets = self.ledger.gang(gang).pod_sets.iter();
        let pods: Vec<PodId> = sets.flat_map(|set| &set.pods).copied().collect();
        self.ledger.note_work(pods.len());
        pods
    }
}
