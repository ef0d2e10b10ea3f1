//! Takes back bindings of this cycle that a later action of the same cycle undid. Nothing has been carried out yet, so
//! there is nothing to delete, and the room is free at once for those to whom it was promised.

use rustc_hash::FxHashSet;

use crate::cycle::Cycle;
use crate::ids::{GangId, PodId};
use crate::report::{Decision, Status};

impl Cycle<'_> {
    /// Run after all actions.
    pub(crate) fn retract(&mut self) {
        let undone: FxHashSet<PodId> = std::mem::take(&mut self.bound)
            .into_iter()
            .filter(|pod| self.ledger.pod(*pod).place.status != Status::Binding)
            .collect();
        if undone.is_empty() {
            return;
        }
        let uid = |pod: &PodId| self.ledger.pod(*pod).uid.to_string();
        let uids: FxHashSet<String> = undone.iter().map(uid).collect();
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
        for pod in order {
            self.ledger.retract(pod);
            self.explanations.evictions.remove(&pod);
        }
        self.redeem();
    }

    /// Binds the gangs whose promised places are free now.
    fn redeem(&mut self) {
        let mut gangs: Vec<GangId> = Vec::new();
        for decision in &self.report.decisions {
            if let Decision::Pipeline(placed) = decision
                && let Some(gang) = self
                    .pods_by_uid
                    .get(placed.pod.as_str())
                    .and_then(|pod| self.ledger.pod(*pod).gang)
                && !gangs.contains(&gang)
            {
                gangs.push(gang);
            }
        }
        for gang in gangs {
            let sets = &self.ledger.gang(gang).pod_sets;
            let promised = |pod: &PodId| self.ledger.pod(*pod).place.status == Status::Pipelined;
            let pods: Vec<PodId> = sets
                .iter()
                .flat_map(|set| &set.pods)
                .copied()
                .filter(promised)
                .collect();
            let checkpoint = self.ledger.checkpoint();
            // A pod that is still leaving its old place can't start anew before it is gone.
            let free = |cycle: &mut Self, pod: PodId| {
                cycle.ledger.pod(pod).observed.status == Status::Pending && cycle.ledger.redeem(pod)
            };
            if pods.is_empty() || !pods.iter().all(|pod| free(self, *pod)) {
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
            let row = &mut self.ledger.gangs[gang.index()];
            row.last_start = Some(self.now);
            self.report.decisions.push(Decision::Started(row.key.clone()));
        }
        self.ledger.commit();
    }
}
