//! The long-lived state of the engine, and the start and end of a cycle.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::cycle::{Cycle, Explanations};
use crate::ids::{GangId, NodeId, PodId, QueueId, ResourceId, ShapeId, Symbol};
use crate::intern::GpuGroupNames;
use crate::ledger::Ledger;
use crate::model::{
    Action, Config, GangKey, GpuJobOrder, Gpus, Millis, NodeSpec, PerResource, QueueResources, Requests,
};
use crate::place::frag::PriceState;
use crate::place::{Domains, ShapeIndexes, VolumePools};
use crate::report::{Anomaly, CycleProgress, Decision, PendingGang, Report, Status};
use crate::share::divide_tree;
use crate::tables::{Node, Placement, PodSet};
use crate::work::Rounds;

/// Everything the engine knows about a cluster. [`Cluster::apply`] changes it, [`Cluster::cycle`] decides.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    pub(crate) ledger: Ledger,
    pub(crate) indexes: ShapeIndexes,
    /// The prices of strategy `frag`, if the configuration uses it.
    pub(crate) prices: PriceState,
    pub(crate) domains: Domains,
    pub(crate) volume_pools: VolumePools,
    pub(crate) gpu_group_names: GpuGroupNames,
    pub(crate) resources: ResourceNames,
    /// Shapes by requests, constraints and, if the pod has affinity terms, its namespace.
    pub(crate) shapes: FxHashMap<(Requests, crate::model::Constraints, Option<Symbol>), ShapeId>,
    /// The number of shapes above which unused ones are dropped.
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
    /// Pods whose node the engine does not know (yet), by the node's name.
    pub(crate) pods_on_unknown_nodes: FxHashMap<Symbol, Vec<PodId>>,
    /// Pods with a deletion time.
    pub(crate) terminating_pods: Vec<PodId>,
    /// Gangs by age, each at the index of its seniority; `None` where a gang was removed.
    pub(crate) gangs_by_age: Vec<Option<GangId>>,
    /// New gangs that are not merged into `gangs_by_age` yet.
    pub(crate) new_gangs: Vec<GangId>,
    /// Gangs with pending pods, and gangs that are or were stale, as of the start of the last cycle. Most gangs of a large cluster run
    /// undisturbed; a cycle does not visit them unless it searches for victims.
    pub(crate) active_gangs: Vec<GangId>,
    /// Active gangs with a queue and pending pods.
    pub(crate) waiting: Vec<GangId>,
    pub(crate) roots: Vec<QueueId>,
    /// Historic usage in billionths by queue name, also of queues that are not known yet.
    pub(crate) usage: FxHashMap<Box<str>, PerResource<i64>>,
    pub(crate) queues_changed: bool,
    pub(crate) ranks_changed: bool,
    pub(crate) gpu_memory_changed: bool,
    /// The smallest known GPU memory of any node.
    pub(crate) gpu_memory_min_mib: Option<i64>,
    /// The largest known GPU memory of any node.
    pub(crate) gpu_memory_max_mib: Option<i64>,
    /// The resources that queues divide, as of the start of the last cycle.
    pub(crate) total: QueueResources,
    pub(crate) now: Millis,
    /// Number of cycles so far.
    pub(crate) number: u64,
    /// Actions that did not try all gangs in the last cycle.
    pub(crate) rounds: Rounds,
    pub(crate) explanations: Explanations,
    pub(crate) anomalies: std::collections::BTreeMap<String, Vec<Anomaly>>,
    /// Whether the pipelined placements of the last cycle are still in the ledger, where the views read them.
    pub(crate) has_pipelined: bool,
    /// Whether gangs have an order by requested GPUs from the last cycle.
    pub(crate) has_gpu_order: bool,
}

/// The interned names of extended resources, each with its [`ResourceNames::mig_gpus`].
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

    /// The GPUs that one unit of the resource counts as: for a MIG slice the number of its compute slices, for others 0.
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

    /// Decides. The engine assumes that bindings and evictions are carried out, until an event of [`Cluster::apply`] shows otherwise.
    pub fn cycle(&mut self, now: Millis, config: &Config) -> Report {
        self.cycle_observed(now, config, &mut |_| {})
    }

    /// Like [`Cluster::cycle`]; calls `observe` at each [`CycleProgress`], so that the caller can measure times.
    pub fn cycle_observed(&mut self, now: Millis, config: &Config, observe: &mut dyn FnMut(CycleProgress)) -> Report {
        let start = self.ledger.work();
        self.revert_pipelined();
        self.index_waiting_terms(config);
        self.prepare(now, config);
        self.ledger.start_journal();
        let mut cycle = self.begin(config, start, observe);
        cycle.run_all();
        cycle.reconcile_decisions();
        let (report, explanations) = (cycle.report, cycle.explanations);
        // The views read the queues.
        self.ledger.settle_cores();
        self.explanations = explanations;
        self.ledger.stop_journal();
        self.assume_deleted(&report, now);
        self.has_pipelined = true;
        let nodes = self.ledger.nodes.len();
        self.ledger.changed_nodes.trim(nodes);
        report
    }

    /// `start` = the steps of work before the cycle.
    pub(crate) fn begin<'a>(
        &'a mut self,
        config: &'a Config,
        start: u64,
        observe: &'a mut dyn FnMut(CycleProgress),
    ) -> Cycle<'a> {
        let work = config.work_for(self.node_ids.len(), self.pod_ids.len());
        let cycle_end = start.saturating_add(work);
        Cycle {
            ledger: &mut self.ledger,
            indexes: &mut self.indexes,
            prices: self.prices.prices(),
            domains: &mut self.domains,
            volume_pools: &mut self.volume_pools,
            gpu_group_names: &self.gpu_group_names,
            resources: &self.resources,
            config,
            now: self.now,
            number: self.number,
            total: self.total,
            gpu_memory_min_mib: self.gpu_memory_min_mib,
            gpu_memory_max_mib: self.gpu_memory_max_mib,
            waiting: &self.waiting,
            active_gangs: &self.active_gangs,
            pods_by_uid: &self.pod_ids,
            bound_pods: Vec::new(),
            started_gangs: Vec::new(),
            evicted_gangs: Vec::new(),
            tentative_evictions: None,
            observe,
            cycle_end,
            work_end: u64::MAX,
            rounds: &mut self.rounds,
            report: Report::default(),
            explanations: Explanations::default(),
        }
    }

    /// Steps of work since the start of the engine, by events and cycles. Equal events give equal steps on every machine.
    pub fn steps(&self) -> u64 {
        self.ledger.work()
    }

    /// Gangs with pending pods, in the order in which the next cycle serves them: queues by fairness, gangs within a queue by rank.
    /// Reverts the pipelined placements of the last cycle, as the next cycle does.
    pub fn serving_order(&mut self, config: &Config) -> Vec<PendingGang> {
        let start = self.ledger.work();
        self.revert_pipelined();
        self.index_waiting_terms(config);
        self.count_pending();
        let mut ignore = |_| {};
        let cycle = self.begin(config, start, &mut ignore);
        let mut order = Vec::new();
        // Background gangs are served last.
        for is_background in [false, true] {
            let gangs = cycle.waiting_gangs(|gang| gang.is_background() == is_background);
            let mut queues = cycle.iterate(cycle.by_leaf(Action::Allocate, gangs));
            while let Some(gang) = queues.pop(&cycle) {
                let row = cycle.ledger.gang(gang);
                order.push(PendingGang {
                    gang: row.key.clone(),
                    queue: cycle.ledger.symbols.text(row.queue_name).to_owned(),
                    priority: row.priority,
                });
            }
        }
        order
    }

    /// Sets the deletion time of evicted pods to the time of the decision, until an event shows the real one.
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
                self.terminating_pods.push(id);
            }
        }
    }

    /// Reverts the pipelined placements of the last cycle: every cycle decides them anew.
    pub(crate) fn revert_pipelined(&mut self) {
        if !std::mem::take(&mut self.has_pipelined) {
            return;
        }
        for pod in self.ledger.take_changed_pods() {
            let row = self.ledger.pod(pod);
            if row.placement != row.observed || row.old_placement.is_some() {
                let observed = row.observed.clone();
                self.ledger.set_observed(pod, observed);
            }
        }
    }

    fn prepare(&mut self, now: Millis, config: &Config) {
        self.now = now;
        self.number += 1;
        self.drop_unused_shapes();
        self.relink_queues();
        self.update_gpu_memory_bounds();
        self.rank_nodes();
        self.refresh_prices(config);
        self.rank_gangs();
        self.rank_gangs_by_gpus(config);
        self.mark_stuck_pods(now, config);
        self.ledger.settle_cores();
        self.total = self.divisible_resources();
        self.count_pending();
        for queue in &mut self.ledger.queues {
            queue.requested = queue.allocated + queue.pending;
        }
        self.count_background_gangs();
        divide_tree(
            &mut self.ledger.queues,
            &self.roots,
            self.total,
            config.usage_weight_millionths,
        );
    }

    /// Sums what background gangs hold and wait for by queue.
    fn count_background_gangs(&mut self) {
        if self.ledger.background_pods == 0 {
            return;
        }
        self.ledger.note_work(self.gang_ids.len());
        let Ledger { gangs, queues, .. } = &mut self.ledger;
        for gang in gangs.iter().filter(|gang| gang.is_background()) {
            let mut queue = gang.queue;
            while let Some(id) = queue {
                queues[id.index()].background += gang.allocated;
                queue = queues[id.index()].parent;
            }
        }
    }

    /// Sets the order of gangs by the GPUs that their pods request, or resets it. It changes with every pod, so each cycle computes it anew.
    fn rank_gangs_by_gpus(&mut self, config: &Config) {
        if config.gpu_job_order.is_none() && !self.has_gpu_order {
            return;
        }
        self.has_gpu_order = config.gpu_job_order.is_some();
        let memory_mib = self.gpu_memory_min_mib;
        self.ledger.note_work(self.gang_ids.len() + self.pod_ids.len());
        let Ledger {
            gangs, pods, shapes, ..
        } = &mut self.ledger;
        for gang in gangs {
            let gpus_of = |pod: &PodId| {
                let row = &pods[pod.index()];
                let is_counted = row.placement.status.is_alive();
                is_counted.then(|| shapes[row.shape.index()].requested(memory_mib).gpus)
            };
            let gpus: Gpus = gang.pod_sets.iter().flat_map(|set| &set.pods).filter_map(gpus_of).sum();
            // Hundredths: queues are charged in them.
            let position = u32::try_from(gpus.0 / Gpus::hundredths(1).0).unwrap_or(u32::MAX);
            gang.gpu_order = match config.gpu_job_order {
                None => 0,
                Some(GpuJobOrder::PreferLarger) => !position,
                Some(GpuJobOrder::PreferSmaller) => position,
            };
        }
    }

    /// Marks pods long past their deletion time as stuck: their resources no longer count as releasing.
    fn mark_stuck_pods(&mut self, now: Millis, config: &Config) {
        let mut terminating = std::mem::take(&mut self.terminating_pods);
        terminating.retain(|pod| self.ledger.pod(*pod).deletion.is_some());
        for pod in &terminating {
            let row = self.ledger.pod(*pod);
            let Some(deletion) = row.deletion else { continue };
            if row.observed.status == Status::Releasing && now - deletion > config.stuck_in_releasing {
                let stuck = Placement {
                    status: Status::StuckInReleasing,
                    ..row.observed.clone()
                };
                self.ledger.set_observed(*pod, stuck);
            }
        }
        self.terminating_pods = terminating;
    }

    /// The resources that queues divide: those of all ready nodes, less those of other schedulers' pods.
    fn divisible_resources(&self) -> QueueResources {
        let mut total = QueueResources::ZERO;
        for node in self
            .ledger
            .nodes
            .iter()
            .filter(|node| !node.not_ready && !node.unschedulable)
        {
            total += self.allocatable(node) - node.foreign;
        }
        total
    }

    /// The resources of all nodes, whether or not they are ready and whoever uses them: what past usage is a part of.
    pub fn capacity(&self) -> QueueResources {
        let nodes = self.node_ids.values().map(|id| self.ledger.node(*id));
        nodes.fold(QueueResources::ZERO, |mut sum, node| {
            sum += self.allocatable(node);
            sum
        })
    }

    fn allocatable(&self, node: &Node) -> QueueResources {
        let mig: Gpus = node
            .extended
            .iter()
            .map(|extended| self.resources.mig_gpus(extended.resource) * extended.allocatable)
            .sum();
        QueueResources {
            cpu_milli: node.allocatable.cpu_milli,
            memory_bytes: node.allocatable.memory_bytes,
            gpus: Gpus::whole(node.allocatable.gpus) + mig,
        }
    }

    /// Brings `active_gangs` up to date with the gangs that changed.
    fn update_active_gangs(&mut self) {
        let dirty = self.ledger.take_dirty_gangs();
        if !dirty.is_empty() {
            self.active_gangs.extend(dirty);
            self.active_gangs.sort();
            self.active_gangs.dedup();
        }
        let ledger = &self.ledger;
        self.active_gangs.retain(|gang| ledger.gang(*gang).is_active());
        let all = ledger.gangs.iter().enumerate();
        let expected = all.filter(|(_, gang)| gang.is_active()).map(|(at, _)| GangId::new(at));
        debug_assert!(
            expected.eq(self.active_gangs.iter().copied()),
            "a gang changed and was not marked dirty"
        );
    }

    /// Finds the waiting gangs, and sums the requests of pending pods by queue.
    fn count_pending(&mut self) {
        self.update_active_gangs();
        let Ledger {
            pods,
            gangs,
            queues,
            shapes,
            ..
        } = &mut self.ledger;
        for queue in &mut *queues {
            (queue.pending, queue.background) = (QueueResources::ZERO, QueueResources::ZERO);
        }
        self.waiting.clear();
        let waits = |set: &&PodSet| set.counts[Status::Pending as usize] > 0;
        for id in &self.active_gangs {
            let gang = &gangs[id.index()];
            let Some(leaf) = gang.queue.filter(|_| gang.known) else {
                continue;
            };
            if !gang.pod_sets.iter().any(|set| waits(&set)) {
                continue;
            }
            self.waiting.push(*id);
            let mut pending = QueueResources::ZERO;
            for set in gang.pod_sets.iter().filter(waits) {
                for pod in &set.pods {
                    let row = &pods[pod.index()];
                    if row.placement.status == Status::Pending {
                        pending += shapes[row.shape.index()].requested(self.gpu_memory_min_mib);
                    }
                }
            }
            let mut queue = Some(leaf);
            while let Some(id) = queue {
                queues[id.index()].pending += pending;
                if gang.is_background() {
                    queues[id.index()].background += pending;
                }
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
