//! Pods whose affinity terms are not in the index yet, and how a cycle adds them.
//!
//! Running pods come first, since their terms concern others already; then namespaces take turns, so that the many terms of one
//! tenant do not delay the few of another.

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::cluster::Cluster;
use crate::ids::{PodId, ShapeId, Symbol};
use crate::ledger::Ledger;
use crate::model::Config;
use crate::reasons::AffinityTermBound;

/// The part of a cycle's budget of work that new terms can take.
const BUDGET_DIVISOR: u64 = 8;

/// Whether the affinity terms of a pod are in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TermsState {
    /// They are, or the pod has none.
    Indexed,
    /// No cycle has added them yet, because they are new or for lack of budget.
    New,
    /// They exceed this bound.
    Exceeded(AffinityTermBound),
}

/// The pods whose terms are not in the index.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitingPods {
    pods: BTreeSet<PodId>,
    /// Whether a pod was added, or terms were removed, since the last cycle that tried all pods.
    is_changed: bool,
}

impl WaitingPods {
    pub(super) fn add(&mut self, pod: PodId) {
        self.pods.insert(pod);
        self.is_changed = true;
    }

    pub(super) fn remove(&mut self, pod: PodId) {
        self.pods.remove(&pod);
    }

    /// Notes that terms were removed, which may leave room for others.
    pub(super) fn retry(&mut self) {
        self.is_changed = true;
    }
}

impl Cluster {
    /// Adds the terms of waiting pods to the index, within a part of the cycle's budget.
    pub(crate) fn index_waiting_terms(&mut self, config: &Config) {
        let work = config.work_for(self.node_ids.len(), self.pod_ids.len());
        self.ledger.index_waiting_terms(work / BUDGET_DIVISOR);
    }
}

impl Ledger {
    /// Adds the terms of waiting pods until the budget is used up; those of the first pod at least.
    pub(super) fn index_waiting_terms(&mut self, budget: u64) {
        if !std::mem::take(&mut self.affinity.waiting.is_changed) {
            return;
        }
        let mut tried = FxHashMap::default();
        let pods = self.waiting_in_order();
        let end = self.work().saturating_add(budget).max(self.work() + 1);
        for pod in pods {
            let shape = self.pod(pod).shape;
            let result = if self.is_shape_matched(shape) {
                Ok(true)
            } else if let Some(bound) = tried.get(&shape) {
                Err(*bound)
            } else if self.work() >= end {
                Ok(false)
            } else {
                self.try_shape(shape, self.pod(pod).namespace, end)
            };
            match result {
                Ok(false) => self.affinity.waiting.is_changed = true,
                Ok(true) => {
                    self.index_pod(pod);
                    self.affinity.waiting.remove(pod);
                    self.set_terms_state(pod, TermsState::Indexed);
                }
                Err(bound) => {
                    tried.insert(shape, bound);
                    self.set_terms_state(pod, TermsState::Exceeded(bound));
                }
            }
        }
    }

    /// Adds the terms of a shape, if there is room, and matches them; returns whether all are matched before `end`.
    fn try_shape(&mut self, shape: ShapeId, owner: Symbol, end: u64) -> Result<bool, AffinityTermBound> {
        if self.shape(shape).terms.is_none() {
            self.add_shape_terms(shape, owner)?;
        }
        Ok(self.match_terms(shape, end))
    }

    /// Waiting pods: those on nodes first, then the oldest of each namespace, the second of each namespace, and so on.
    fn waiting_in_order(&self) -> Vec<PodId> {
        let mut pods: Vec<PodId> = self.affinity.waiting.pods.iter().copied().collect();
        self.note_work(pods.len());
        let on_node = |pod: &PodId| self.pod(*pod).nodes_in_use().next().is_some();
        pods.sort_by_cached_key(|pod| (!on_node(pod), self.pod(*pod).created, self.pod(*pod).uid.clone()));
        let mut turns: FxHashMap<Symbol, u32> = FxHashMap::default();
        let mut shapes = FxHashSet::default();
        let mut in_turn: Vec<(bool, u32, PodId)> = Vec::with_capacity(pods.len());
        for pod in pods {
            let row = self.pod(pod);
            let turn = turns.entry(row.namespace).or_default();
            // All pods of a shape wait for the same terms.
            *turn += u32::from(shapes.insert(row.shape));
            in_turn.push((!on_node(&pod), *turn, pod));
        }
        in_turn.sort_by_key(|(pending, turn, _)| (*pending, *turn));
        in_turn.into_iter().map(|(_, _, pod)| pod).collect()
    }

    /// Whether the last cycle left out terms for lack of budget.
    pub(crate) fn has_terms_left_out(&self) -> bool {
        self.affinity.waiting.is_changed
    }

    fn set_terms_state(&mut self, pod: PodId, state: TermsState) {
        if self.pod(pod).terms != state {
            self.count_pod(pod, -1);
            self.pods[pod.index()].terms = state;
            self.count_pod(pod, 1);
        }
    }
}
