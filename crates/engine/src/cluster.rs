//! The long-lived state of the engine and its cycle.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::cycle::{Cycle, Explanations};
use crate::ids::{GangId, NodeId, PodId, QueueId, ResourceId, ShapeId, Symbol};
use crate::intern::GroupNames;
use crate::ledger::{Ledger, add};
use crate::model::{Action, Config, GangKey, Gpus, Millis, NodeSpec, Requests};
use crate::place::{Domains, ShapeIndexes};
use crate::report::{Anomaly, Decision, Moment, Report, Status, Waiting};
use crate::share::divide_tree;
use crate::tables::{Place, PodSet, Share};
use crate::work::Rounds;

/// Everything the engine knows about a cluster.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    pub(crate) ledger: Ledger,
    pub(crate) indexes: ShapeIndexes,
    pub(crate) domains: Domains,
    pub(crate) groups: GroupNames,
    pub(crate) resources: ResourceNames,
    pub(crate) shapes: FxHashMap<(Requests, crate::model::Constraints), ShapeId>,
    /// With more shapes than this it is time to look for unused ones.
    pub(crate) shapes_max: usize,
    pub(crate) node_ids: FxHashMap<Symbol, NodeId>,
    pub(crate) node_specs: Vec<Option<NodeSpec>>,
    pub(crate) pod_ids: FxHashMap<Arc<str>, PodId>,
    pub(crate) gang_ids: FxHashMap<Arc<GangKey>, GangId>,
    pub(crate) queue_ids: FxHashMap<Box<str>, QueueId>,
    pub(crate) free_nodes: Vec<NodeId>,
    pub(crate) free_pods: Vec<PodId>,
    pub(crate) free_gangs: Vec<GangId>,
    pub(crate) free_queues: Vec<QueueId>,
    /// Pods that name a node which is not there (yet).
    pub(crate) homeless: FxHashMap<Symbol, Vec<PodId>>,
    /// Pods that were asked to leave.
    pub(crate) leaving: Vec<PodId>,
    /// Gangs by age, each at its seniority, with gaps where one left; those in `young_gangs` are yet to be merged in.
    pub(crate) old_gangs: Vec<Option<GangId>>,
    pub(crate) young_gangs: Vec<GangId>,
    /// Gangs that a cycle may have to do with, as of the begin of the last one: with pods that wait, or that are or were below
    /// their minimum. Most gangs of a large cluster just run, and a cycle that evicts nobody must not cost a look at each.
    pub(crate) restless: Vec<GangId>,
    /// Those of them that have a queue and pods that wait.
    pub(crate) waiting: Vec<GangId>,
    pub(crate) roots: Vec<QueueId>,
    /// Usage by queue name, also of queues not seen yet.
    pub(crate) usage: FxHashMap<Box<str>, Share>,
    pub(crate) queues_changed: bool,
    pub(crate) ranks_changed: bool,
    pub(crate) memory_changed: bool,
    pub(crate) memory_min: Option<i64>,
    pub(crate) memory_max: Option<i64>,
    pub(crate) total: Share,
    pub(crate) now: Millis,
    /// Cycles so far.
    pub(crate) number: u64,
    /// Actions that did not come to all gangs in the last cycle.
    pub(crate) rounds: Rounds,
    pub(crate) explanations: Explanations,
    pub(crate) anomalies: std::collections::BTreeMap<String, Vec<Anomaly>>,
    /// Promises of the last cycle are still in the ledger, for the views.
    pub(crate) unsettled: bool,
}

/// Names of extended resources.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResourceNames {
    ids: FxHashMap<Box<str>, ResourceId>,
    names: Vec<(Box<str>, Gpus)>,
}

impl ResourceNames {
    pub(crate) fn intern(&mut self, name: &str) -> ResourceId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = ResourceId::new(self.names.len());
        self.names.push((name.into(), Gpus::whole(mig_slices(name))));
        self.ids.insert(name.into(), id);
        id
    }

    pub(crate) fn name(&self, id: ResourceId) -> &str {
        &self.names[id.index()].0
    }

    /// What one unit of the resource counts as in GPUs: a MIG slice counts as many as it has compute slices.
    pub(crate) fn mig_gpus(&self, id: ResourceId) -> Gpus {
        self.names[id.index()].1
    }
}

/// The compute slices in a name such as `nvidia.com/mig-3g.40gb`; 0 for anything else.
pub(crate) fn mig_slices(name: &str) -> i64 {
    let profile = name
        .strip_prefix("nvidia.com/mig-")
        .and_then(|profile| profile.split_once("g."));
    let Some((slices, memory)) = profile else { return 0 };
    let memory = memory.strip_suffix("gb").and_then(|memory| memory.parse::<u32>().ok());
    memory.and(slices.parse::<u32>().ok()).map_or(0, i64::from)
}

impl Cluster {
    /// An empty cluster.
    pub fn new() -> Cluster {
        Cluster::default()
    }

    /// Decides. Bindings and evictions are assumed to be carried out; tell the engine by [`Cluster::apply`] what really
    /// happened.
    pub fn cycle(&mut self, now: Millis, config: &Config) -> Report {
        self.cycle_observed(now, config, &mut |_| {})
    }

    /// The same; `observe` is told of each step, so that the caller can take times.
    pub fn cycle_observed(&mut self, now: Millis, config: &Config, observe: &mut dyn FnMut(Moment)) -> Report {
        self.settle();
        self.prepare(now, config);
        self.ledger.record();
        let mut cycle = self.begin(config, observe);
        for action in &config.actions {
            cycle.run(*action);
        }
        cycle.reconcile_decisions();
        let (report, explanations) = (cycle.report, cycle.explanations);
        self.explanations = explanations;
        self.ledger.stop_recording();
        self.assume_deleted(&report, now);
        self.unsettled = true;
        let nodes = self.ledger.nodes.len();
        self.ledger.touched.trim(nodes);
        report
    }

    fn begin<'a>(&'a mut self, config: &'a Config, observe: &'a mut dyn FnMut(Moment)) -> Cycle<'a> {
        let work = config.work_for(self.node_ids.len(), self.pod_ids.len());
        let cycle_end = self.ledger.work().saturating_add(work);
        Cycle {
            ledger: &mut self.ledger,
            indexes: &mut self.indexes,
            domains: &mut self.domains,
            groups: &self.groups,
            resources: &self.resources,
            config,
            now: self.now,
            number: self.number,
            total: self.total,
            memory_min: self.memory_min,
            memory_max: self.memory_max,
            waiting: &self.waiting,
            restless: &self.restless,
            pods_by_uid: &self.pod_ids,
            bound: Vec::new(),
            started: Vec::new(),
            robbed: Vec::new(),
            observe,
            cycle_end,
            work_end: u64::MAX,
            rounds: &mut self.rounds,
            report: Report::default(),
            explanations: Explanations::default(),
        }
    }

    /// Gangs that wait, in the order in which they are served next: queues by fairness, gangs within a queue by rank, each with
    /// its queue and priority. Takes back the promises of the last cycle, as the next one would.
    pub fn serving_order(&mut self, config: &Config) -> Vec<Waiting> {
        self.settle();
        self.count_pending();
        let mut nobody = |_| {};
        let cycle = self.begin(config, &mut nobody);
        let mut walk = cycle.walk(cycle.by_leaf(Action::Allocate, cycle.waiting_gangs()));
        let mut order = Vec::new();
        while let Some(gang) = walk.pop(&cycle) {
            let row = cycle.ledger.gang(gang);
            order.push(Waiting {
                gang: row.key.clone(),
                queue: cycle.ledger.symbols.text(row.queue_name).to_owned(),
                priority: row.priority,
            });
        }
        order
    }

    /// The time to leave runs from the decision, should the world stay silent about the deletion.
    fn assume_deleted(&mut self, report: &Report, now: Millis) {
        for decision in &report.decisions {
            let Decision::Evict { pod, .. } = decision else {
                continue;
            };
            let Some(id) = self.pod_ids.get(&**pod).copied() else {
                continue;
            };
            let row = &mut self.ledger.pods[id.index()];
            if row.deletion.is_none() {
                row.deletion = Some(now);
                self.leaving.push(id);
            }
        }
    }

    /// Takes back the promises of the last cycle: they are decided anew each time.
    pub(crate) fn settle(&mut self) {
        if !std::mem::take(&mut self.unsettled) {
            return;
        }
        for pod in self.ledger.take_decided() {
            let row = self.ledger.pod(pod);
            if row.place != row.observed || row.leaving.is_some() {
                let observed = row.observed.clone();
                self.ledger.observe(pod, observed);
            }
        }
    }

    fn prepare(&mut self, now: Millis, config: &Config) {
        self.now = now;
        self.number += 1;
        self.drop_unused_shapes();
        self.relink_queues();
        self.measure_memory();
        self.rank_nodes();
        self.merge_gangs();
        self.find_stuck(now, config);
        self.total = self.divisible();
        self.count_pending();
        for queue in &mut self.ledger.queues {
            queue.requested = crate::share::plus(queue.allocated, queue.pending);
        }
        divide_tree(
            &mut self.ledger.queues,
            &self.roots,
            self.total,
            config.usage_weight_millionths,
        );
    }

    /// Pods long past their deletion time can't be counted on to leave.
    fn find_stuck(&mut self, now: Millis, config: &Config) {
        let mut leaving = std::mem::take(&mut self.leaving);
        leaving.retain(|pod| self.ledger.pod(*pod).deletion.is_some());
        for pod in &leaving {
            let row = self.ledger.pod(*pod);
            let Some(deletion) = row.deletion else { continue };
            if row.observed.status == Status::Releasing && now - deletion > config.stuck_in_releasing {
                let stuck = Place {
                    status: Status::StuckInReleasing,
                    ..row.observed.clone()
                };
                self.ledger.observe(*pod, stuck);
            }
        }
        self.leaving = leaving;
    }

    /// What queues divide: all ready nodes, less what other schedulers have there.
    fn divisible(&self) -> Share {
        let mut total = [0; 3];
        for node in self
            .ledger
            .nodes
            .iter()
            .filter(|node| !node.not_ready && !node.unschedulable)
        {
            let mig: Gpus = node
                .extended
                .iter()
                .map(|extended| self.resources.mig_gpus(extended.resource) * extended.allocatable)
                .sum();
            let gpus = Gpus::whole(node.allocatable[crate::tables::GPU]) + mig;
            add(&mut total, [node.allocatable[0], node.allocatable[1], gpus.0], 1);
            add(&mut total, node.foreign, -1);
        }
        total
    }

    /// Brings the gangs that a cycle may have to do with up to date.
    fn find_restless(&mut self) {
        let stirred = self.ledger.take_stirred();
        if !stirred.is_empty() {
            self.restless.extend(stirred);
            self.restless.sort();
            self.restless.dedup();
        }
        let ledger = &self.ledger;
        self.restless.retain(|gang| ledger.gang(*gang).is_restless());
        let all = ledger.gangs.iter().enumerate();
        let looked_up = all
            .filter(|(_, gang)| gang.is_restless())
            .map(|(at, _)| GangId::new(at));
        debug_assert!(looked_up.eq(self.restless.iter().copied()), "a gang changed unnoticed");
    }

    fn count_pending(&mut self) {
        self.find_restless();
        let Ledger {
            pods,
            gangs,
            queues,
            shapes,
            ..
        } = &mut self.ledger;
        queues.iter_mut().for_each(|queue| queue.pending = [0; 3]);
        self.waiting.clear();
        let waits = |set: &&PodSet| set.counts[Status::Pending as usize] > 0;
        for id in &self.restless {
            let gang = &gangs[id.index()];
            let Some(leaf) = gang.queue.filter(|_| gang.known) else {
                continue;
            };
            if !gang.pod_sets.iter().any(|set| waits(&set)) {
                continue;
            }
            self.waiting.push(*id);
            let mut pending = [0; 3];
            for set in gang.pod_sets.iter().filter(waits) {
                for pod in &set.pods {
                    let row = &pods[pod.index()];
                    if row.place.status == Status::Pending {
                        add(&mut pending, shapes[row.shape.index()].requested(self.memory_min), 1);
                    }
                }
            }
            let mut queue = Some(leaf);
            while let Some(id) = queue {
                add(&mut queues[id.index()].pending, pending, 1);
                queue = queues[id.index()].parent;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mig_profiles_count_their_compute_slices() {
        assert_eq!(mig_slices("nvidia.com/mig-1g.5gb"), 1);
        assert_eq!(mig_slices("nvidia.com/mig-3g.40gb"), 3);
        assert_eq!(mig_slices("nvidia.com/mig-1g.5gb.me"), 0);
        assert_eq!(mig_slices("nvidia.com/mig-xg.5gb"), 0);
        assert_eq!(mig_slices("nvidia.com/gpu"), 0);
    }
}
