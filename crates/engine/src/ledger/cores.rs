//! The charge of the cores of semi-preemptible gangs, which is part of what queues hold for non-preemptible gangs.
//!
//! Which pods are the core depends on all pods of a gang, so a change of one pod only marks its gang. [`Ledger::settle_cores`] computes
//! the charges of the marked gangs anew, once for many changes. The actions call it before they read quotas; it reads nothing but
//! placements, so that a rollback needs no record of it.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::Ledger;
use crate::ids::{GangId, PodId, QueueId};
use crate::model::{Preemptibility, QueueResources};
use crate::steps;
use crate::tables::{Gang, Shape};

/// A visit of so many pods counts as a step of work: it reads no more than a status.
const PODS_PER_STEP: usize = 8;

/// How the core of a semi-preemptible gang changes once pods of it are placed.
#[derive(Clone, Debug)]
pub(crate) struct CoreChange {
    /// Those of the pods that belong to the core then.
    pub(crate) joining: FxHashSet<PodId>,
    /// The charge of other pods that belong to the core then, less the charge of pods that do not any more.
    pub(crate) others: QueueResources,
}

/// What pods request from queues.
#[derive(Clone, Debug)]
pub(crate) struct QueueRequest {
    /// All that is charged.
    pub(crate) all: QueueResources,
    /// The part that quotas bound: all of it for a non-preemptible gang, what its core gains for a semi-preemptible one.
    pub(crate) non_preemptible: QueueResources,
    /// For a semi-preemptible gang.
    pub(crate) core: Option<CoreChange>,
}

/// Marks the charge of a gang's core as outdated.
pub(super) fn mark(id: GangId, gang: &mut Gang, unsettled_cores: &mut Vec<GangId>) {
    if !std::mem::replace(&mut gang.core_unsettled, true) {
        unsettled_cores.push(id);
    }
}

impl Ledger {
    /// Brings the charges of all cores up to date.
    pub(crate) fn settle_cores(&mut self) {
        while let Some(gang) = self.unsettled_cores.pop() {
            if std::mem::take(&mut self.gangs[gang.index()].core_unsettled) {
                let (charge, steps) = self.core_charge(gang);
                // Before the actions of a cycle it depends on past events which gangs are marked; decisions must not.
                if self.recording {
                    self.note_work(steps / PODS_PER_STEP);
                }
                let change = charge - self.gang(gang).core_allocated;
                self.change_core(gang, change);
            }
        }
    }

    /// Changes of the charges of cores that are not settled yet, by queue and its ancestors.
    pub(crate) fn unsettled_charges(&self) -> FxHashMap<QueueId, QueueResources> {
        let mut changes: FxHashMap<QueueId, QueueResources> = FxHashMap::default();
        let mut gangs: Vec<GangId> = self.unsettled_cores.clone();
        gangs.sort_unstable();
        gangs.dedup();
        for gang in gangs.into_iter().filter(|gang| self.gang(*gang).core_unsettled) {
            let change = self.core_charge(gang).0 - self.gang(gang).core_allocated;
            let leaf = self.gang(gang).queue;
            for queue in leaf.into_iter().flat_map(|leaf| self.queue_path(leaf)) {
                *changes.entry(queue).or_default() += change;
            }
        }
        changes
    }

    /// Whether the queues' sums include the charges of all cores.
    pub(crate) fn is_settled(&self) -> bool {
        self.unsettled_cores.iter().all(|gang| !self.gang(*gang).core_unsettled)
    }

    /// Takes the core of a gang out of the sums of its queues, before the gang changes its queue or its subgroups.
    pub(crate) fn withdraw_core(&mut self, gang: GangId) {
        let row = self.gang(gang);
        if row.is_semi_preemptible() {
            let charge = row.core_allocated;
            self.change_core(gang, charge * -1);
            mark(gang, &mut self.gangs[gang.index()], &mut self.unsettled_cores);
        }
    }

    fn change_core(&mut self, gang: GangId, change: QueueResources) {
        if change == QueueResources::ZERO {
            return;
        }
        let row = &mut self.gangs[gang.index()];
        row.core_allocated += change;
        let mut queue = row.queue;
        while let Some(id) = queue {
            let row = &mut self.queues[id.index()];
            row.allocated_non_preemptible += change;
            queue = row.parent;
        }
    }

    /// What queues are charged for the core of a gang, and the steps that the computation took.
    fn core_charge(&self, gang: GangId) -> (QueueResources, usize) {
        if !self.gang(gang).is_semi_preemptible() {
            return (QueueResources::ZERO, 1);
        }
        let (core, steps) = self.core_pods(gang, &FxHashSet::default(), true);
        (core.into_iter().map(|pod| self.charge_of(pod)).sum(), steps)
    }

    /// What queues are charged for a pod.
    pub(crate) fn charge_of(&self, pod: PodId) -> QueueResources {
        let row = self.pod(pod);
        match row.placement.node {
            Some(node) if row.placement.status.is_active_allocated() => {
                self.shape(row.shape).accepted(self.node(node).memory_mib)
            }
            Some(_) | None => QueueResources::ZERO,
        }
    }

    /// The pods of the core of a gang. Explanations and views call it, so it notes no work.
    pub(crate) fn core_of(&self, gang: GangId) -> Vec<PodId> {
        self.core_pods(gang, &FxHashSet::default(), true).0
    }

    /// The pods of the core of a gang, if of its pods `assumed` all are placed (`placed`) or none is; and the steps that this took.
    fn core_pods(&self, gang: GangId, assumed: &FxHashSet<PodId>, placed: bool) -> (Vec<PodId>, usize) {
        let row = self.gang(gang);
        let has_place = |pod: PodId| self.pod(pod).placement.status.is_active_allocated();
        let mut counts: SmallVec<[u32; 2]> = row.pod_sets.iter().map(|set| set.active_allocated()).collect();
        for pod in assumed.iter().copied().filter(|pod| has_place(*pod) != placed) {
            if let Some(set) = self.pod(pod).pod_set {
                counts[set as usize] = counts[set as usize].wrapping_add_signed(if placed { 1 } else { -1 });
            }
        }
        let sizes = row.core_sizes(|set| counts[set]);
        let is_placed = |pod: &PodId| match assumed.contains(pod) {
            true => placed,
            false => has_place(*pod),
        };
        let mut core = Vec::new();
        let mut visited = 1 + row.pod_sets.len() + assumed.len();
        for (set, size) in row.pod_sets.iter().zip(sizes) {
            let seen = std::cell::Cell::new(0);
            let pods = set.pods.iter().copied().inspect(|_| seen.set(seen.get() + 1));
            core.extend(pods.filter(is_placed).take(size as usize));
            visited += seen.get();
        }
        steps::count(visited);
        (core, visited)
    }

    /// How the core of a semi-preemptible gang is larger once these pods are placed than without them.
    fn core_change(&self, gang: GangId, pods: &[PodId]) -> CoreChange {
        let assumed: FxHashSet<PodId> = pods.iter().copied().collect();
        let (with, steps_with) = self.core_pods(gang, &assumed, true);
        let (without, steps_without) = self.core_pods(gang, &assumed, false);
        self.note_work((steps_with + steps_without) / PODS_PER_STEP);
        let (joining, staying): (Vec<PodId>, Vec<PodId>) = with.into_iter().partition(|pod| assumed.contains(pod));
        let charge = |pods: Vec<PodId>| -> QueueResources { pods.into_iter().map(|pod| self.charge_of(pod)).sum() };
        CoreChange {
            joining: joining.into_iter().collect(),
            others: charge(staying) - charge(without),
        }
    }

    /// What these pods of a gang request from queues; `request` is the request of a pod without a node.
    pub(crate) fn queue_request(
        &self,
        gang: GangId,
        pods: &[PodId],
        request: impl Fn(&Shape) -> QueueResources,
    ) -> QueueRequest {
        let of_pod = |pod: &PodId| request(self.shape_of(*pod));
        let all: QueueResources = pods.iter().map(of_pod).sum();
        let (non_preemptible, core) = match self.gang(gang).preemptibility {
            Preemptibility::Preemptible => (QueueResources::ZERO, None),
            Preemptibility::NonPreemptible => (all, None),
            Preemptibility::SemiPreemptible => {
                let change = self.core_change(gang, pods);
                let joining: QueueResources = pods.iter().filter(|pod| change.joining.contains(pod)).map(of_pod).sum();
                (change.others + joining, Some(change))
            }
        };
        QueueRequest {
            all,
            non_preemptible,
            core,
        }
    }
}
