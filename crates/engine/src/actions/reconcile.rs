//! Makes the decisions of a cycle consistent after its last action. A later action may evict a pod that an earlier one has
//! bound. The binding was not written to the API server yet, so no pod has to be deleted: the decision is removed, and its
//! resources are free for the pods that were pipelined to them. If the gang of that pod now has less than its minimum, its
//! other bindings become promises. Of several promises to one pod only the last one stays.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::cycle::Cycle;
use crate::ids::{GangId, PodId};
use crate::model::Action;
use crate::report::{Decision, Status};

impl Cycle<'_> {
    /// The cycle calls it after all actions.
    pub(crate) fn reconcile_decisions(&mut self) {
        self.revert_undone_bindings();
        if self
            .report
            .decisions
            .iter()
            .any(|decision| matches!(decision, Decision::Pipeline(_)))
        {
            self.drop_superseded_promises();
        }
    }

    /// Removes promises (pipeline decisions) of pods that were promised another place later, or that are not pipelined any
    /// more.
    fn drop_superseded_promises(&mut self) {
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

    /// Removes the bindings of this cycle whose pods a later action has evicted, and the evictions themselves.
    fn revert_undone_bindings(&mut self) {
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
        self.drop_reverted_evictions();
        gangs.sort_unstable();
        gangs.dedup();
        for gang in gangs {
            if !self.ledger.gang(gang).holds_minimum() {
                self.turn_bindings_into_promises(gang, &bound);
            }
        }
        self.bind_promised_gangs();
    }

    /// Removes [`Decision::Evicted`] of gangs that have no eviction left, and restores the time of their last eviction.
    fn drop_reverted_evictions(&mut self) {
        let lost = self.report.decisions.iter().filter_map(|decision| match decision {
            Decision::Evict { pod, .. } => self.ledger.pod(self.pods_by_uid[&**pod]).gang,
            Decision::Bind(_)
            | Decision::Pipeline(_)
            | Decision::Started(_)
            | Decision::Evicted(_)
            | Decision::Stale { .. }
            | Decision::Recovered(_) => None,
        });
        let with_loss: FxHashSet<GangId> = lost.collect();
        let mut without_loss = FxHashSet::default();
        for (gang, before) in std::mem::take(&mut self.evicted_gangs) {
            if !with_loss.contains(&gang) {
                let row = &mut self.ledger.gangs[gang.index()];
                row.last_eviction = before;
                without_loss.insert(row.key.clone());
            }
        }
        let is_valid =
            |decision: &Decision| !matches!(decision, Decision::Evicted(gang) if without_loss.contains(gang));
        self.report.decisions.retain(is_valid);
    }

    /// Turns the remaining bindings of a gang into promises: without the undone ones the gang has less than its minimum.
    fn turn_bindings_into_promises(&mut self, gang: GangId, bound: &[PodId]) {
        for pod in bound.iter().copied() {
            let row = self.ledger.pod(pod);
            if row.gang != Some(gang) || row.placement.status != Status::Binding {
                continue;
            }
            self.ledger.bind_to_pipeline(pod);
            self.ledger.forget_binding(pod);
            let uid = &self.ledger.pod(pod).uid;
            let binding = |decision: &Decision| match decision {
                Decision::Bind(placed) if placed.pod == *uid => Some(placed.action),
                _ => None,
            };
            if let Some((at, action)) = self.find_decision(binding) {
                self.report.decisions[at] = Decision::Pipeline(self.placed(pod, action));
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

    /// The first decision for which `action` is known, with its index.
    fn find_decision(&self, action: impl Fn(&Decision) -> Option<Action>) -> Option<(usize, Action)> {
        let mut decisions = self.report.decisions.iter().enumerate();
        decisions.find_map(|(at, decision)| Some((at, action(decision)?)))
    }

    /// Binds the gangs whose promised places have become idle.
    fn bind_promised_gangs(&mut self) {
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
            // A moved pod still runs on its old node: the new pod can't be bound before that one is deleted.
            let bind = |cycle: &mut Self, pod: PodId| {
                cycle.ledger.pod(pod).observed.status == Status::Pending && cycle.ledger.promote_to_bind(pod)
            };
            let ran_before = self.ledger.gang(gang).has_started();
            let all_bound = !pods.is_empty() && pods.iter().all(|pod| bind(self, *pod));
            if !all_bound || !self.ledger.gang(gang).holds_minimum() {
                self.ledger.rollback(checkpoint);
                continue;
            }
            for pod in pods {
                self.ledger.assume_bound(pod);
                let uid = &self.ledger.pod(pod).uid;
                let promise = |decision: &Decision| match decision {
                    Decision::Pipeline(placed) if placed.pod == *uid => Some(placed.action),
                    _ => None,
                };
                if let Some((at, action)) = self.find_decision(promise) {
                    self.report.decisions[at] = Decision::Bind(self.placed(pod, action));
                }
            }
            if !ran_before {
                self.record_start(gang);
            }
        }
        self.ledger.commit();
    }
}
