//! Events about gangs, and the pod sets of their pods.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::gangs::{DEFAULT_SUB_GROUP, Tree, TreeProblem, build_tree, task_order};
use crate::ids::{GangId, PodId, Symbol};
use crate::model::{GangKey, GangSpec, Millis, Preemptibility, QueueResources};
use crate::reasons::{Refusal, SubGroupExcess};
use crate::steps;
use crate::tables::{Gang, PodSet, PodSets, add_row};

/// How many problems of one gang are shown.
const PROBLEMS_MAX: usize = 16;

impl Cluster {
    pub(super) fn gang_id(&mut self, key: &GangKey) -> GangId {
        if let Some(id) = self.gang_ids.get(key) {
            return *id;
        }
        let key = Arc::new(key.clone());
        let row = unknown_gang(key.clone(), self.ledger.symbols.intern(""));
        let id = match self.free_gangs.pop() {
            Some(id) => {
                self.ledger.gangs[id.index()] = row;
                id
            }
            None => {
                add_row(&mut self.ledger.gangs, row);
                GangId::new(self.ledger.gangs.len() - 1)
            }
        };
        self.gang_ids.insert(key, id);
        id
    }

    /// Adds a pod to the pod set of its subgroup, in task order.
    pub(super) fn add_to_pod_set(&mut self, gang: GangId, pod: PodId) {
        let found = self.pod_set_of(gang, pod);
        self.ledger.pods[pod.index()].pod_set = found.map(|at| at as u32);
        match found {
            Some(at) => {
                let set = &self.ledger.gangs[gang.index()].pod_sets[at];
                let order = |other: &PodId| task_order(self.ledger.pod(*other), self.ledger.pod(pod));
                let position = set.pods.partition_point(|other| order(other) == Ordering::Less);
                self.ledger.gangs[gang.index()].pod_sets[at].pods.insert(position, pod);
            }
            None => self.ledger.gangs[gang.index()].unmatched_pods.push(pod),
        }
    }

    fn pod_set_of(&self, gang: GangId, pod: PodId) -> Option<usize> {
        let gang = self.ledger.gang(gang);
        if gang.excess.is_some() {
            return Some(0);
        }
        let name = match self.ledger.pod(pod).sub_group {
            Some(name) => self.ledger.symbols.text(name),
            None => DEFAULT_SUB_GROUP,
        };
        let order = |set: &PodSet| {
            steps::count(1);
            (*set.name).cmp(name)
        };
        gang.pod_sets.binary_search_by(order).ok()
    }

    /// Removes a pod from its pod set and from the sums of its gang.
    pub(super) fn remove_from_pod_set(&mut self, gang: GangId, pod: PodId) {
        self.ledger.count_pod(pod, -1);
        let row = &mut self.ledger.gangs[gang.index()];
        let list = match self.ledger.pods[pod.index()].pod_set {
            Some(set) => &mut row.pod_sets[set as usize].pods,
            None => return row.unmatched_pods.retain(|other| *other != pod),
        };
        list.retain(|other| *other != pod);
    }

    pub(super) fn apply_gang(&mut self, spec: GangSpec) {
        let id = self.gang_id(&spec.key);
        let pods = self.uncount_pods(id);
        let Tree {
            sub_groups,
            pod_sets,
            problems,
            excess,
        } = build_tree(&spec);
        self.report_problems(&spec.key, problems, excess);
        let queue_name = self.ledger.symbols.intern(&spec.queue);
        let withheld = spec.refused.as_ref().is_some_and(Refusal::withholds_queue);
        let queue = self.leaf_queue(&spec.queue).filter(|_| !withheld);
        let row = &mut self.ledger.gangs[id.index()];
        let was_known = row.known;
        let same_age = was_known && (row.created, &*row.uid) == (spec.created, spec.uid.as_str());
        *row = Gang {
            key: row.key.clone(),
            known: true,
            uid: spec.uid.into(),
            created: spec.created,
            seniority: row.seniority,
            queue_name,
            queue,
            priority: spec.priority,
            preemptibility: spec.preemptibility,
            sub_groups,
            pod_sets,
            background_pods: 0,
            excess,
            unmatched_pods: Vec::new(),
            last_start: spec.last_start,
            last_eviction: spec.last_eviction,
            stale_since: spec.stale_since,
            preemption_delay: spec.preemption_delay,
            staleness_grace: spec.staleness_grace,
            schedulable: spec.schedulable && spec.refused.is_none(),
            refused: spec.refused.map(Box::new),
            allocated: QueueResources::ZERO,
            core_allocated: QueueResources::ZERO,
            gpu_order: row.gpu_order,
            searches_cut: row.searches_cut,
            search_from: row.search_from,
            tried_by: row.tried_by,
            dirty: row.dirty,
            core_unsettled: row.core_unsettled,
        };
        self.ledger.mark_dirty(id);
        self.assign_pods(id, pods);
        if !same_age {
            if was_known {
                self.remove_from_age_order(id);
            }
            self.add_to_age_order(id);
        }
    }

    fn report_problems(&mut self, key: &GangKey, problems: Vec<TreeProblem>, excess: Option<SubGroupExcess>) {
        let problems = problems.into_iter().map(|problem| {
            let text = format!("{}; the subgroup is left out", problem.problem);
            (format!("spec.subGroups[{}]", problem.sub_group), text)
        });
        let exceeded = excess.map(|excess| ("spec.subGroups".to_owned(), excess.to_string()));
        self.set_anomalies(
            &format!("PodGroup {key}"),
            problems.chain(exceeded).take(PROBLEMS_MAX).collect(),
        );
    }

    pub(super) fn remove_gang(&mut self, key: &GangKey) {
        let Some(id) = self.gang_ids.get(key).copied() else {
            return;
        };
        let pods = self.uncount_pods(id);
        self.anomalies.remove(&format!("PodGroup {key}"));
        let empty = self.ledger.symbols.intern("");
        let key = self.ledger.gang(id).key.clone();
        self.remove_from_age_order(id);
        self.ledger.gangs[id.index()] = unknown_gang(key, empty);
        self.assign_pods(id, pods);
        self.drop_if_unused(id);
    }

    /// Changes the row of a gang whose pods stay in their pod sets.
    pub(crate) fn change_gang(&mut self, id: GangId, change: impl FnOnce(&mut Gang)) {
        self.revert_pipelined();
        let pods = self.uncount_pods(id);
        change(&mut self.ledger.gangs[id.index()]);
        for pod in pods {
            self.ledger.count_pod(pod, 1);
        }
        self.ledger.mark_dirty(id);
    }

    /// Subtracts all pods of a gang from its sums; returns them.
    fn uncount_pods(&mut self, id: GangId) -> Vec<PodId> {
        self.ledger.withdraw_core(id);
        let row = self.ledger.gang(id);
        let pods: Vec<PodId> = row
            .pod_sets
            .iter()
            .flat_map(|set| &set.pods)
            .chain(&row.unmatched_pods)
            .copied()
            .collect();
        for pod in &pods {
            self.ledger.count_pod(*pod, -1);
        }
        pods
    }

    /// Assigns pods to the pod sets of a gang, and adds them to its sums.
    fn assign_pods(&mut self, id: GangId, pods: Vec<PodId>) {
        for pod in pods {
            self.add_to_pod_set(id, pod);
            self.ledger.count_pod(pod, 1);
        }
    }

    /// Drops the row of a gang that neither exists nor has pods.
    pub(super) fn drop_if_unused(&mut self, id: GangId) {
        let row = self.ledger.gang(id);
        let has_pods = !row.unmatched_pods.is_empty() || row.pod_sets.iter().any(|set| !set.pods.is_empty());
        if !row.known && !has_pods {
            let key = row.key.clone();
            self.gang_ids.remove(&key);
            self.free_gangs.push(id);
        }
    }

    fn add_to_age_order(&mut self, id: GangId) {
        /// At least this many new gangs are merged at once, so that the cost of a merge is spread over many gangs.
        const NEW_GANGS_MAX: usize = 4096;
        self.new_gangs.push(id);
        if self.new_gangs.len() >= NEW_GANGS_MAX.max(self.gangs_by_age.len() / 4) {
            self.rank_gangs();
        }
    }

    fn remove_from_age_order(&mut self, id: GangId) {
        let seniority = self.ledger.gang(id).seniority as usize;
        match self.gangs_by_age.get_mut(seniority) {
            Some(entry) if *entry == Some(id) => *entry = None,
            Some(_) | None => {
                debug_assert!(
                    !self.gangs_by_age.contains(&Some(id)),
                    "a gang in the age order is at the index of its seniority"
                );
                self.new_gangs.retain(|gang| *gang != id);
            }
        }
    }

    /// Merges new gangs into the age order, and sets the seniority of all gangs.
    pub(crate) fn rank_gangs(&mut self) {
        if self.new_gangs.is_empty() {
            return;
        }
        let gangs = &self.ledger.gangs;
        let order = |a: &GangId, b: &GangId| {
            let (a, b) = (&gangs[a.index()], &gangs[b.index()]);
            a.created
                .cmp(&b.created)
                .then_with(|| a.uid.cmp(&b.uid))
                .then_with(|| a.key.cmp(&b.key))
        };
        let mut new = std::mem::take(&mut self.new_gangs);
        new.sort_unstable_by(order);
        let old = std::mem::take(&mut self.gangs_by_age);
        let mut merged = Vec::with_capacity(old.len() + new.len());
        let (mut old, mut new) = (old.into_iter().flatten().peekable(), new.into_iter().peekable());
        loop {
            let next = match (old.peek(), new.peek()) {
                (Some(a), Some(b)) if order(a, b) == Ordering::Less => old.next(),
                (_, Some(_)) => new.next(),
                (_, None) => old.next(),
            };
            let Some(next) = next else { break };
            merged.push(Some(next));
        }
        for (seniority, gang) in merged.iter().flatten().enumerate() {
            self.ledger.gangs[gang.index()].seniority = seniority as u32;
        }
        self.gangs_by_age = merged;
    }
}

/// A gang of which only pods are known.
fn unknown_gang(key: Arc<GangKey>, no_queue: Symbol) -> Gang {
    Gang {
        key,
        known: false,
        uid: "".into(),
        created: Millis(0),
        seniority: 0,
        queue_name: no_queue,
        queue: None,
        priority: 0,
        preemptibility: Preemptibility::NonPreemptible,
        sub_groups: Arc::default(),
        pod_sets: PodSets::new(),
        background_pods: 0,
        excess: None,
        unmatched_pods: Vec::new(),
        last_start: None,
        last_eviction: None,
        stale_since: None,
        preemption_delay: Millis(0),
        staleness_grace: None,
        schedulable: true,
        refused: None,
        allocated: QueueResources::ZERO,
        core_allocated: QueueResources::ZERO,
        gpu_order: 0,
        searches_cut: 0,
        search_from: 0,
        tried_by: 0,
        dirty: false,
        core_unsettled: false,
    }
}
