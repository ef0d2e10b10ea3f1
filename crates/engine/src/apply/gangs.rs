//! Gangs that come, change and go, and their pods' places in them.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::gangs::{DEFAULT_SUB_GROUP, Tree, build_tree, task_order};
use crate::ids::{GangId, PodId, Symbol};
use crate::model::{GangKey, GangSpec, Millis};
use crate::steps;
use crate::tables::{Gang, PodSet, PodSets, add_row};

/// Problems of one gang that are kept: they are for people, who mend the first and look again.
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

    /// Puts a pod into the pod set that it names.
    pub(super) fn enlist(&mut self, gang: GangId, pod: PodId) {
        let found = self.pod_set_of(gang, pod);
        self.ledger.pods[pod.index()].pod_set = found.map(|at| at as u32);
        match found {
            Some(at) => {
                let set = &self.ledger.gangs[gang.index()].pod_sets[at];
                let order = |other: &PodId| task_order(self.ledger.pod(*other), self.ledger.pod(pod));
                let position = set.pods.partition_point(|other| order(other) == Ordering::Less);
                self.ledger.gangs[gang.index()].pod_sets[at].pods.insert(position, pod);
            }
            None => self.ledger.gangs[gang.index()].strays.push(pod),
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

    /// Takes a pod out of its gang.
    pub(super) fn discharge(&mut self, gang: GangId, pod: PodId) {
        self.ledger.count(pod, -1);
        let row = &mut self.ledger.gangs[gang.index()];
        let list = match self.ledger.pods[pod.index()].pod_set {
            Some(set) => &mut row.pod_sets[set as usize].pods,
            None => return row.strays.retain(|other| *other != pod),
        };
        list.retain(|other| *other != pod);
    }

    pub(super) fn apply_gang(&mut self, spec: GangSpec) {
        let id = self.gang_id(&spec.key);
        let pods = self.disband(id);
        let Tree {
            groups,
            pod_sets,
            problems,
            excess,
        } = build_tree(&spec);
        let problems = problems.into_iter().map(|problem| {
            let text = format!("{}; the subgroup is left out", problem.problem);
            (format!("spec.subGroups[{}]", problem.sub_group), text)
        });
        let exceeded = excess.map(|excess| ("spec.subGroups".to_owned(), excess.to_string()));
        self.note(
            &format!("PodGroup {}", spec.key),
            problems.chain(exceeded).take(PROBLEMS_MAX).collect(),
        );
        let queue_name = self.ledger.symbols.intern(&spec.queue);
        let queue = self.leaf_queue(&spec.queue);
        let row = &mut self.ledger.gangs[id.index()];
        let listed = row.known;
        let same_age = listed && (row.created, &*row.uid) == (spec.created, spec.uid.as_str());
        *row = Gang {
            key: row.key.clone(),
            known: true,
            uid: spec.uid.into(),
            created: spec.created,
            seniority: row.seniority,
            queue_name,
            queue,
            priority: spec.priority,
            preemptible: spec.preemptible,
            groups,
            pod_sets,
            excess,
            strays: Vec::new(),
            last_start: spec.last_start,
            last_eviction: spec.last_eviction,
            stale_since: spec.stale_since,
            preemption_delay: spec.preemption_delay,
            staleness_grace: spec.staleness_grace,
            schedulable: spec.schedulable && spec.refused.is_none(),
            refused: spec.refused.map(Into::into),
            allocated: [0; 3],
            searches_cut: row.searches_cut,
            search_from: row.search_from,
            tried_by: row.tried_by,
            stirred: row.stirred,
        };
        self.ledger.stir(id);
        self.regroup(id, pods);
        if !same_age {
            if listed {
                self.strike_out(id);
            }
            self.young_gangs.push(id);
            /// So many gangs are merged in one go, so that none of them costs a look at all.
            const YOUNG_GANGS_MAX: usize = 4096;
            if self.young_gangs.len() >= YOUNG_GANGS_MAX.max(self.old_gangs.len() / 4) {
                self.merge_gangs();
            }
        }
    }

    pub(super) fn remove_gang(&mut self, key: &GangKey) {
        let Some(id) = self.gang_ids.get(key).copied() else {
            return;
        };
        let pods = self.disband(id);
        self.anomalies.remove(&format!("PodGroup {key}"));
        let empty = self.ledger.symbols.intern("");
        let key = self.ledger.gang(id).key.clone();
        self.strike_out(id);
        self.ledger.gangs[id.index()] = unknown_gang(key, empty);
        self.regroup(id, pods);
        self.drop_if_forgotten(id);
    }

    /// Takes all pods out of a gang's sums; returns them.
    fn disband(&mut self, id: GangId) -> Vec<PodId> {
        let row = self.ledger.gang(id);
        let pods: Vec<PodId> = row
            .pod_sets
            .iter()
            .flat_map(|set| &set.pods)
            .chain(&row.strays)
            .copied()
            .collect();
        for pod in &pods {
            self.ledger.count(*pod, -1);
        }
        pods
    }

    fn regroup(&mut self, id: GangId, pods: Vec<PodId>) {
        for pod in pods {
            self.enlist(id, pod);
            self.ledger.count(pod, 1);
        }
    }

    /// Forgets a gang that neither exists nor has pods.
    pub(super) fn drop_if_forgotten(&mut self, id: GangId) {
        let row = self.ledger.gang(id);
        let has_pods = !row.strays.is_empty() || row.pod_sets.iter().any(|set| !set.pods.is_empty());
        if !row.known && !has_pods {
            let key = row.key.clone();
            self.gang_ids.remove(&key);
            self.free_gangs.push(id);
        }
    }

    /// Takes a gang out of those by age.
    fn strike_out(&mut self, id: GangId) {
        let seniority = self.ledger.gang(id).seniority as usize;
        match self.old_gangs.get_mut(seniority) {
            Some(place) if *place == Some(id) => *place = None,
            Some(_) | None => {
                debug_assert!(!self.old_gangs.contains(&Some(id)), "an old gang is at its seniority");
                self.young_gangs.retain(|gang| *gang != id);
            }
        }
    }

    /// Numbers gangs by age.
    pub(crate) fn merge_gangs(&mut self) {
        if self.young_gangs.is_empty() {
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
        let mut young = std::mem::take(&mut self.young_gangs);
        young.sort_unstable_by(order);
        let old = std::mem::take(&mut self.old_gangs);
        let mut merged = Vec::with_capacity(old.len() + young.len());
        let (mut old, mut young) = (old.into_iter().flatten().peekable(), young.into_iter().peekable());
        loop {
            let next = match (old.peek(), young.peek()) {
                (Some(a), Some(b)) if order(a, b) == Ordering::Less => old.next(),
                (_, Some(_)) => young.next(),
                (_, None) => old.next(),
            };
            let Some(next) = next else { break };
            merged.push(Some(next));
        }
        for (seniority, gang) in merged.iter().flatten().enumerate() {
            self.ledger.gangs[gang.index()].seniority = seniority as u32;
        }
        self.old_gangs = merged;
    }
}

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
        preemptible: false,
        groups: Arc::default(),
        pod_sets: PodSets::new(),
        excess: None,
        strays: Vec::new(),
        last_start: None,
        last_eviction: None,
        stale_since: None,
        preemption_delay: Millis(0),
        staleness_grace: None,
        schedulable: true,
        refused: None,
        allocated: [0; 3],
        searches_cut: 0,
        search_from: 0,
        tried_by: 0,
        stirred: false,
    }
}
