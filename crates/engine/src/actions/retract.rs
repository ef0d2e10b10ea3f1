//! What later actions of a cycle made of the decisions of earlier ones. A binding that was undone is taken back: nothing
//! has been carried out yet, so there is nothing to delete, and the room is free at once for those to whom it was
//! promised. A gang that would start in part for it does not start. Of several promises to a pod the last one holds.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::cycle::Cycle;
use crate::ids::{GangId, PodId};
use crate::report::{Decision, Status};

impl Cycle<'_> {
    /// Run after all actions.
    pub(crate) fn retract(&mut self) {
        self.take_back_bindings();
        if self
            .report
            .decisions
            .iter()
            .any(|decision| matches!(decision, Decision::Pipeline(_)))
        {
            self.keep_last_promises();
        }
    }

    fn keep_last_promises(&mut self) {
        let mut later: FxHashSet<PodId> = FxHashSet::default();
        let mut kept: Vec<Decision> = Vec::with_capacity(self.report.decisions.len());
        for decision in std::mem::take(&mut self.report.decisions).into_iter().rev() {
            let superseded = match &decision {
                Decision::Pipeline(placed) => {
                    let pod = self.pods_by_uid[&*placed.pod];
                    self.ledger.pod(pod).placement.status != Status::Pipelined || !later.insert(pod)
                }
                Decision::Bind(_)
                | Decision::Evict { .. }
                | Decision::Started(_)
                | Decision::Evicted(_)
                | Decision::Stale { .. }
                | Decision::Recovered(_) => false,
            };
            if !superseded {
                kept.push(decision);
            }
        }
        kept.reverse();
        self.report.decisions = kept;
    }

    fn take_back_bindings(&mut self) {
        let bound = std::mem::take(&mut self.bound_pods);
        let undone: FxHashSet<PodId> = bound
            .iter()
            .copied()
            .filter(|pod| self.ledger.pod(*pod).placement.status != Status::Binding)
            .collect();
        if undone.is_empty() {
            return;
        }
        let uid = |pod: &PodId| self.ledger.pod(*pod).uid.clone();
        let uids: FxHashSet<Arc<str>> = undone.iter().map(uid).collect();
        self.report.decisions.retain(|decision| match decision {
            Decision::Bind(placed) => !uids.contains(&placed.pod),
            Decision::Evict { pod, .. } => !uids.contains(pod),
            Decision::Pipeline(_)
            | Decision::Started(_)
            | Decision::Evicted(_)
            | Decision::Stale { .. }
            | Decision::Recovered(_) => true,
        });
        let mut order: Vec<PodId> = undone.into_iter().collect();
        order.sort_unstable();
        let mut gangs: Vec<GangId> = Vec::new();
        for pod in order {
            self.ledger.retract_binding(pod);
            self.explanations.evictions.remove(&pod);
            gangs.extend(self.ledger.pod(pod).gang);
        }
        self.forget_robberies();
        gangs.sort_unstable();
        gangs.dedup();
        for gang in gangs {
            if !self.ledger.gang(gang).holds_minimum() {
                self.hold_back(gang, &bound);
            }
        }
        self.redeem();
    }

    /// A gang all of whose evictions were taken back has lost nothing.
    fn forget_robberies(&mut self) {
        let lost = self.report.decisions.iter().filter_map(|decision| match decision {
            Decision::Evict { pod, .. } => self.ledger.pod(self.pods_by_uid[&**pod]).gang,
            Decision::Bind(_)
            | Decision::Pipeline(_)
            | Decision::Started(_)
            | Decision::Evicted(_)
            | Decision::Stale { .. }
            | Decision::Recovered(_) => None,
        });
        let lost: FxHashSet<GangId> = lost.collect();
        let mut unharmed = FxHashSet::default();
        for (gang, before) in std::mem::take(&mut self.evicted_gangs) {
            if !lost.contains(&gang) {
                let row = &mut self.ledger.gangs[gang.index()];
                row.last_eviction = before;
                unharmed.insert(row.key.clone());
            }
        }
        let is_true = |decision: &Decision| !matches!(decision, Decision::Evicted(gang) if unharmed.contains(gang));
        self.report.decisions.retain(is_true);
    }

    /// Turns what is left of a gang's bindings of this cycle into promises: with the others undone it would start in part.
    fn hold_back(&mut self, gang: GangId, bound: &[PodId]) {
        for pod in bound.iter().copied() {
            let row = self.ledger.pod(pod);
            if row.gang != Some(gang) || row.placement.status != Status::Binding {
                continue;
            }
            self.ledger.bind_to_pipeline(pod);
            self.ledger.forget_binding(pod);
            let promise = Decision::Pipeline(self.placed(pod));
            let uid = &self.ledger.pod(pod).uid;
            let binding = |decision: &&mut Decision| matches!(decision, Decision::Bind(placed) if *placed.pod == **uid);
            if let Some(decision) = self.report.decisions.iter_mut().find(binding) {
                *decision = promise;
            }
        }
        if let Some(at) = self.started_gangs.iter().position(|(started, _)| *started == gang) {
            let (_, before) = self.started_gangs.swap_remove(at);
            let row = &mut self.ledger.gangs[gang.index()];
            row.last_start = before;
            let key = &row.key;
            self.report
                .decisions
                .retain(|decision| !matches!(decision, Decision::Started(started) if started == key));
        }
    }

    /// Binds the gangs whose promised places are free now.
    fn redeem(&mut self) {
        let mut gangs: Vec<GangId> = Vec::new();
        for decision in &self.report.decisions {
            if let Decision::Pipeline(placed) = decision
                && let Some(gang) = self
                    .pods_by_uid
                    .get(&*placed.pod)
                    .and_then(|pod| self.ledger.pod(*pod).gang)
                && !gangs.contains(&gang)
            {
                gangs.push(gang);
            }
        }
        for gang in gangs {
            let sets = &self.ledger.gang(gang).pod_sets;
            let promised = |pod: &PodId| self.ledger.pod(*pod).placement.status == Status::Pipelined;
            let pods: Vec<PodId> = sets
                .iter()
                .flat_map(|set| &set.pods)
                .copied()
                .filter(promised)
                .collect();
            let checkpoint = self.ledger.checkpoint();
            // A pod that is still leaving its old place can't start anew before it is gone.
            let free = |cycle: &mut Self, pod: PodId| {
                cycle.ledger.pod(pod).observed.status == Status::Pending && cycle.ledger.promote_to_bind(pod)
            };
            let ran_before = self.ledger.gang(gang).has_started();
            let redeemed = !pods.is_empty() && pods.iter().all(|pod| free(self, *pod));
            if !redeemed || !self.ledger.gang(gang).holds_minimum() {
                self.ledger.rollback(checkpoint);
                continue;
            }
            for pod in pods {
                self.ledger.assume_bound(pod);
                let placed = self.placed(pod);
                let promise = |decision: &&mut Decision| matches!(decision, Decision::Pipeline(promised) if promised.pod == placed.pod);
                if let Some(decision) = self.report.decisions.iter_mut().find(promise) {
                    *decision = Decision::Bind(placed);
                }
            }
            if !ran_before {
                self.record_start(gang);
            }
        }
        self.ledger.commit();
    }
}
