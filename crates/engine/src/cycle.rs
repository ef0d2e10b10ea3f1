//! One cycle: the state that all actions share, and how decisions become final.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::actions::TentativeEvictions;
use crate::gangs::{Candidates, GangRank};
use crate::ids::{GangId, PodId, QueueId};
use crate::ledger::{Checkpoint, Ledger};
use crate::model::{Action, Config, GpuFraction, Millis, QueueResources, VolumeChoice};
use crate::order::{Direction, GangsByQueue, QueueHeap};
use crate::place::frag::Prices;
use crate::place::{Domains, PlacementFailure, ShapeIndexes, VolumePools};
use crate::reasons::{EvictionReason, Rejections};
use crate::report::{ActionStats, CycleProgress, Decision, Placed, Received, Report, Status};
use crate::share::QueueChange;
use crate::tables::GpuKind;
use crate::victims::FairnessOfVictims;
use crate::work::Rounds;

/// The state of one running cycle: borrows from [`Cluster`](crate::Cluster), and the report that the actions fill.
pub(crate) struct Cycle<'a> {
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) indexes: &'a mut ShapeIndexes,
    /// The prices of strategy `frag`.
    pub(crate) prices: Option<&'a Prices>,
    pub(crate) domains: &'a mut Domains,
    pub(crate) volume_pools: &'a mut VolumePools,
    pub(crate) gpu_group_names: &'a crate::intern::GpuGroupNames,
    pub(crate) resources: &'a crate::cluster::ResourceNames,
    pub(crate) config: &'a Config,
    pub(crate) now: Millis,
    /// Number of this cycle, counted from the start of the engine.
    pub(crate) number: u64,
    /// The resources that queues divide.
    pub(crate) total: QueueResources,
    /// The smallest and the largest known GPU memory of any node.
    pub(crate) gpu_memory_min_mib: Option<i64>,
    pub(crate) gpu_memory_max_mib: Option<i64>,
    /// Gangs with pods that were pending at the start of the cycle. A cycle adds none: a pod whose binding is undone was pending before.
    pub(crate) waiting: &'a [GangId],
    /// Gangs with pending pods, and gangs that are or were stale or lose their minimum, as of the start of the cycle.
    pub(crate) active_gangs: &'a [GangId],
    /// Pods by uid.
    pub(crate) pods_by_uid: &'a FxHashMap<std::sync::Arc<str>, PodId>,
    /// Pods that this cycle bound.
    pub(crate) bound_pods: Vec<PodId>,
    /// Gangs that this cycle started, each with its `last_start` from before.
    pub(crate) started_gangs: Vec<(GangId, Option<Millis>)>,
    /// Gangs of which this cycle evicted pods for other gangs, each with its `last_eviction` from before.
    pub(crate) evicted_gangs: Vec<(GangId, Option<Millis>)>,
    /// Evictions of background pods that [`Action::BackgroundPods`] undoes or reports at its end.
    pub(crate) tentative_evictions: Option<TentativeEvictions>,
    /// Called at each [`CycleProgress`]: the caller has a clock, the engine has none.
    pub(crate) observe: &'a mut dyn FnMut(CycleProgress),
    /// The value of [`Ledger::work`] at which the budget of the cycle is used up.
    pub(crate) cycle_end: u64,
    /// The value of [`Ledger::work`] at which the budget of the current gang is used up.
    pub(crate) work_end: u64,
    pub(crate) rounds: &'a mut Rounds,
    pub(crate) report: Report,
    pub(crate) explanations: Explanations,
}

/// Why gangs wait and pods were evicted, kept after the cycle for the views.
#[derive(Clone, Debug, Default)]
pub(crate) struct Explanations {
    /// Why a gang was not placed.
    pub(crate) failures: FxHashMap<GangId, PlacementFailure>,
    /// Gangs whose victim search ended for lack of budget.
    pub(crate) cut_searches: FxHashSet<GangId>,
    /// Why a pod was evicted.
    pub(crate) evictions: FxHashMap<PodId, EvictionReason>,
    /// Why nodes rejected a shape, without and with volumes that other pods can miss; each with the end of [`Ledger::changed_nodes`] at that time.
    pub(crate) rejections: FxHashMap<(crate::ids::ShapeId, bool), (u64, std::sync::Arc<Rejections>)>,
    /// How many times this cycle has checked all nodes for an explanation.
    pub(crate) node_scans: u32,
}

impl Cycle<'_> {
    /// Runs the actions of the configuration.
    pub(crate) fn run_all(&mut self) {
        let actions = &self.config.actions;
        let last = actions.iter().rposition(|action| action.places());
        for (at, action) in actions.iter().enumerate() {
            self.run(
                *action,
                match action {
                    Action::Allocate => Self::allocate,
                    Action::Consolidation => Self::consolidate,
                    Action::Reclaim => Self::reclaim,
                    Action::Preempt => Self::preempt,
                    Action::StaleGangEviction => Self::evict_stale,
                    // No configuration lists it.
                    Action::BackgroundPods => continue,
                },
            );
            if self.ledger.background_pods == 0 {
                continue;
            }
            if *action == Action::Allocate
                && self.tentative_evictions.is_none()
                && !self.explanations.failures.is_empty()
            {
                self.run(Action::BackgroundPods, Self::place_on_background_room);
            }
            if Some(at) == last {
                self.run(Action::BackgroundPods, Self::finish_background_gangs);
            }
        }
    }

    /// Runs an action or a part of one, and counts its steps.
    fn run(&mut self, action: Action, body: fn(&mut Self)) {
        (self.observe)(CycleProgress::ActionStarts(action));
        self.report.action_stats.push(ActionStats::new(action));
        let before = self.ledger.work();
        body(self);
        let steps = self.ledger.work() - before;
        let is_cut = action == Action::Allocate && self.ledger.has_terms_left_out();
        let stats = self.stats();
        (stats.steps, stats.exhausted) = (steps, stats.exhausted || is_cut);
    }

    /// Whether the budget of the current gang is used up.
    pub(crate) fn is_out_of_work(&self) -> bool {
        self.ledger.work() >= self.work_end
    }

    /// The counters of the running action.
    pub(crate) fn stats(&mut self) -> &mut ActionStats {
        self.report.action_stats.last_mut().expect("an action runs")
    }

    /// Sets `pods` to those that the next attempt places; returns what they request from queues.
    pub(crate) fn request_of(&self, gang: GangId, candidates: Candidates, pods: &mut Vec<PodId>) -> QueueResources {
        self.ledger.pods_to_place(gang, candidates, pods);
        self.ledger.requested_by(pods, self.gpu_memory_min_mib)
    }

    /// Iterates over gangs in fair order.
    pub(crate) fn iterate(&self, gangs: GangsByQueue) -> QueueIterator {
        let mut iterator = QueueIterator {
            queues: QueueHeap::new(self.ledger, Direction::Serve, self.total),
            gangs,
            pods: Vec::new(),
        };
        for leaf in iterator.gangs.leaves() {
            iterator.refresh(self, leaf);
        }
        iterator
    }

    /// Makes all changes since the checkpoint final, and reports them as decisions.
    pub(crate) fn commit(
        &mut self,
        since: Checkpoint,
        action: Action,
        preemptor: GangId,
        fairness: &FairnessOfVictims,
    ) {
        let changed = self.ledger.changed_since(since);
        let evicted: Vec<PodId> = changed
            .iter()
            .copied()
            .filter(|pod| self.ledger.pod(*pod).evicted_from.is_some())
            .collect();
        let pods = evicted.len() as u32;
        for pod in &evicted {
            let moved = self.ledger.pod(*pod).placement.status == Status::Pipelined;
            let gang = self.ledger.gang(preemptor).key.clone();
            let reason = EvictionReason::For {
                action,
                gang,
                moved,
                pods,
                fairness: fairness.get(pod).cloned(),
            };
            if self.report_eviction(*pod, reason) {
                let gang = self.ledger.pod(*pod).gang.expect("only pods of gangs are evicted");
                self.record_eviction(gang);
            }
        }
        for pod in changed {
            match self.ledger.pod(pod).placement.status {
                // A pod whose binding was reported before may be among the changed pods, because a simulation evicted and restored it.
                Status::Binding if self.ledger.pod(pod).observed != self.ledger.pod(pod).placement => {
                    self.ledger.assume_bound(pod);
                    self.bound_pods.push(pod);
                    self.report.decisions.push(Decision::Bind(self.placed(pod, action)));
                }
                Status::Pipelined => self.report.decisions.push(Decision::Pipeline(self.placed(pod, action))),
                _ => {}
            }
        }
        self.ledger.commit();
    }

    /// Reports the start of a gang that had no running pods.
    pub(crate) fn record_start(&mut self, gang: GangId) {
        let row = &mut self.ledger.gangs[gang.index()];
        let before = row.last_start.replace(self.now);
        self.report.decisions.push(Decision::Started(row.key.clone()));
        self.started_gangs.push((gang, before));
    }

    /// Reports that pods of a gang were evicted for another gang.
    pub(crate) fn record_eviction(&mut self, gang: GangId) {
        let row = &mut self.ledger.gangs[gang.index()];
        if row.last_eviction != Some(self.now) {
            let before = row.last_eviction.replace(self.now);
            self.report.decisions.push(Decision::Evicted(row.key.clone()));
            self.evicted_gangs.push((gang, before));
        }
    }

    /// Reports an eviction that is already in the ledger; returns whether there is a pod to delete.
    pub(crate) fn report_eviction(&mut self, pod: PodId, reason: EvictionReason) -> bool {
        self.ledger.finish_eviction(pod);
        let row = &mut self.ledger.pods[pod.index()];
        // A pod that was only pipelined runs nowhere: there is nothing to delete.
        let is_allocated = row.observed.status.is_allocated();
        if is_allocated {
            row.observed.status = Status::Releasing;
            self.report.decisions.push(Decision::Evict {
                pod: row.uid.clone(),
                reason: reason.clone(),
            });
        }
        self.explanations.evictions.insert(pod, reason);
        is_allocated
    }

    pub(crate) fn placed(&self, pod: PodId, action: Action) -> Placed {
        let row = self.ledger.pod(pod);
        let node = self.ledger.node(row.placement.node.expect("a placed pod has a node"));
        let shape = self.ledger.shape(row.shape);
        let received = match shape.gpu {
            GpuKind::None => Received::Regular { devices: 0 },
            GpuKind::Whole { devices } => Received::Regular { devices },
            GpuKind::Fraction { devices, .. } | GpuKind::Memory { devices, .. } => Received::Fraction {
                devices,
                portion: GpuFraction::from_hundredths(shape.accepted_hundredths(node.memory_mib)),
                compute_mode: shape.constraints.share.compute_mode,
            },
            GpuKind::Mig { .. } => Received::MigInstance,
        };
        Placed {
            pod: row.uid.clone(),
            node: node.name.clone(),
            gpu_groups: row
                .placement
                .gpu_groups
                .iter()
                .map(|group| self.gpu_group_names.text(*group))
                .collect(),
            received,
            volumes: row
                .placement
                .volumes
                .iter()
                .flat_map(|volumes| volumes.iter())
                .map(|chosen| VolumeChoice {
                    claim: chosen.claim.to_string(),
                    volume: chosen.volume.as_deref().map(str::to_owned),
                })
                .collect(),
            action,
        }
    }
}

/// Gangs that an action still has to serve, in fair order: the best queue first, and of its gangs the one with the highest rank.
pub(crate) struct QueueIterator {
    queues: QueueHeap,
    gangs: GangsByQueue,
    /// A buffer that saves allocations.
    pods: Vec<PodId>,
}

impl QueueIterator {
    /// Removes the next gang. If the caller then changes what queues hold, it calls [`QueueIterator::served`] or
    /// [`QueueIterator::changed`].
    pub(crate) fn pop(&mut self, cycle: &Cycle<'_>) -> Option<GangId> {
        let leaf = self.queues.best_leaf(cycle.ledger)?;
        let gang = self.gangs.pop(leaf);
        self.refresh(cycle, leaf);
        gang
    }

    /// Updates the order after a change of this gang's queue and its ancestors only.
    pub(crate) fn served(&mut self, cycle: &Cycle<'_>, gang: GangId) {
        if let Some(queue) = cycle.ledger.gang(gang).queue {
            self.queues.invalidate(cycle.ledger, queue);
        }
    }

    /// Updates the order after a change of any queues.
    pub(crate) fn changed(&mut self) {
        self.queues.invalidate_all();
    }

    /// Puts back a gang with more pods to place.
    pub(crate) fn push(&mut self, cycle: &Cycle<'_>, gang: GangId) {
        self.gangs.insert(cycle.ledger, gang);
        if let Some(queue) = cycle.ledger.gang(gang).queue {
            self.refresh(cycle, queue);
        }
    }

    fn refresh(&mut self, cycle: &Cycle<'_>, leaf: QueueId) {
        let mut pods = std::mem::take(&mut self.pods);
        let change = self.gangs.next(leaf).map(|gang| QueueChange {
            request: cycle.request_of(gang, Candidates::Simulated, &mut pods),
            freed: QueueResources::ZERO,
        });
        self.queues.set(cycle.ledger, leaf, change);
        self.pods = pods;
    }
}

/// The rank under which a gang is listed in [`GangsByQueue`].
pub(crate) fn rank_of(ledger: &Ledger, gang: GangId) -> GangRank {
    GangRank::of(ledger.gang(gang))
}
