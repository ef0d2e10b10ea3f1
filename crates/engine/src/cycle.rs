//! One cycle: the state that all actions share, and how decisions become final.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::gangs::{Candidates, GangRank};
use crate::ids::{GangId, PodId, QueueId};
use crate::ledger::{Checkpoint, Ledger};
use crate::model::{Action, Config, Millis};
use crate::order::{ByLeaf, Direction, Tournament};
use crate::place::{Domains, PlacementFailure, ShapeIndexes};
use crate::reasons::{EvictionReason, Rejections};
use crate::report::{Decision, Effort, Moment, Placed, Received, Report, Status};
use crate::share::Load;
use crate::tables::{GpuKind, Share};
use crate::work::Rounds;

/// Everything a cycle works with.
pub(crate) struct Cycle<'a> {
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) indexes: &'a mut ShapeIndexes,
    pub(crate) domains: &'a mut Domains,
    pub(crate) groups: &'a crate::intern::GroupNames,
    pub(crate) resources: &'a crate::cluster::ResourceNames,
    pub(crate) config: &'a Config,
    pub(crate) now: Millis,
    /// Counts cycles.
    pub(crate) number: u64,
    /// What queues divide.
    pub(crate) total: Share,
    /// Smallest and largest GPU memory of any node.
    pub(crate) memory_min: Option<i64>,
    pub(crate) memory_max: Option<i64>,
    /// Gangs with pods that waited when the cycle began. No others come to wait within it: what is undone had waited before.
    pub(crate) waiting: &'a [GangId],
    /// Gangs with pods that wait, or that are or were below their minimum, as the cycle began.
    pub(crate) restless: &'a [GangId],
    /// Pods by uid.
    pub(crate) pods_by_uid: &'a FxHashMap<std::sync::Arc<str>, PodId>,
    /// Pods bound by this cycle.
    pub(crate) bound: Vec<PodId>,
    /// Gangs started by this cycle, and when they had started before.
    pub(crate) started: Vec<(GangId, Option<Millis>)>,
    /// Gangs that lost pods to others in this cycle, and when they had lost some before.
    pub(crate) robbed: Vec<(GangId, Option<Millis>)>,
    /// Told of each step, so that who has a clock can take times.
    pub(crate) observe: &'a mut dyn FnMut(Moment),
    /// Where the counter of work must not go beyond, in this cycle and while one gang is served.
    pub(crate) cycle_end: u64,
    pub(crate) work_end: u64,
    pub(crate) rounds: &'a mut Rounds,
    pub(crate) report: Report,
    pub(crate) explanations: Explanations,
}

/// What is remembered for people.
#[derive(Clone, Debug, Default)]
pub(crate) struct Explanations {
    /// Why a gang was not placed.
    pub(crate) failures: FxHashMap<GangId, PlacementFailure>,
    /// Gangs for which the search for victims was cut short.
    pub(crate) cut_searches: FxHashSet<GangId>,
    /// Why a pod was evicted.
    pub(crate) evictions: FxHashMap<PodId, EvictionReason>,
    /// Why nodes could not take a shape, as of a state of the ledger.
    pub(crate) rejections: FxHashMap<crate::ids::ShapeId, (u64, std::sync::Arc<Rejections>)>,
    /// Looks at all nodes in this cycle for the sake of explanations.
    pub(crate) looks: u32,
}

impl Cycle<'_> {
    pub(crate) fn run(&mut self, action: Action) {
        (self.observe)(Moment::Action(action));
        self.report.efforts.push(Effort::new(action));
        let before = self.ledger.work();
        match action {
            Action::Allocate => self.allocate(),
            Action::Consolidation => self.consolidate(),
            Action::Reclaim => self.reclaim(),
            Action::Preempt => self.preempt(),
            Action::StaleGangEviction => self.evict_stale(),
        }
        self.effort().steps = self.ledger.work() - before;
    }

    /// Whether the work that the gang in hand may cost is used up.
    pub(crate) fn is_out_of_work(&self) -> bool {
        self.ledger.work() >= self.work_end
    }

    /// The counters of the action that runs.
    pub(crate) fn effort(&mut self) -> &mut Effort {
        self.report.efforts.last_mut().expect("an action runs")
    }

    /// The pods that the next attempt at a gang would place, and what they ask of queues.
    pub(crate) fn request_of(&self, gang: GangId, candidates: Candidates, pods: &mut Vec<PodId>) -> Share {
        self.ledger.pods_to_place(gang, candidates, pods);
        self.ledger.requested_by(pods, self.memory_min)
    }

    /// A walk over gangs in fair order.
    pub(crate) fn walk(&self, gangs: ByLeaf) -> Walk {
        let mut walk = Walk {
            tournament: Tournament::new(self.ledger, Direction::Serve, self.total),
            gangs,
            pods: Vec::new(),
        };
        for leaf in walk.gangs.leaves() {
            walk.refresh(self, leaf);
        }
        walk
    }

    /// Makes everything since the checkpoint final and reports it.
    pub(crate) fn commit(&mut self, since: Checkpoint, action: Action, preemptor: GangId) {
        let changed = self.ledger.changed_since(since);
        let evicted: Vec<PodId> = changed
            .iter()
            .copied()
            .filter(|pod| self.ledger.pod(*pod).evicted_from.is_some())
            .collect();
        let pods = evicted.len() as u32;
        for pod in &evicted {
            let moved = self.ledger.pod(*pod).place.status == Status::Pipelined;
            let gang = self.ledger.gang(preemptor).key.clone();
            let reason = EvictionReason::For {
                action,
                gang,
                moved,
                pods,
            };
            if self.report_eviction(*pod, reason) {
                let gang = self.ledger.pod(*pod).gang.expect("only pods of gangs are evicted");
                self.rob(gang);
            }
        }
        for pod in changed {
            match self.ledger.pod(pod).place.status {
                // One that was bound before and only came out of a simulation unchanged is not news.
                Status::Binding if self.ledger.pod(pod).observed != self.ledger.pod(pod).place => {
                    self.ledger.assume_bound(pod);
                    self.bound.push(pod);
                    self.report.decisions.push(Decision::Bind(self.placed(pod)));
                }
                Status::Pipelined => self.report.decisions.push(Decision::Pipeline(self.placed(pod))),
                _ => {}
            }
        }
        self.ledger.commit();
    }

    /// Reports that a gang of which nothing ran starts.
    pub(crate) fn start(&mut self, gang: GangId) {
        let row = &mut self.ledger.gangs[gang.index()];
        let before = row.last_start.replace(self.now);
        self.report.decisions.push(Decision::Started(row.key.clone()));
        self.started.push((gang, before));
    }

    /// Reports that a gang loses pods to another.
    fn rob(&mut self, gang: GangId) {
        let row = &mut self.ledger.gangs[gang.index()];
        if row.last_eviction != Some(self.now) {
            let before = row.last_eviction.replace(self.now);
            self.report.decisions.push(Decision::Evicted(row.key.clone()));
            self.robbed.push((gang, before));
        }
    }

    /// Reports an eviction that is already in the ledger; whether there is a pod to delete.
    pub(crate) fn report_eviction(&mut self, pod: PodId, reason: EvictionReason) -> bool {
        self.ledger.finish_eviction(pod);
        let row = &mut self.ledger.pods[pod.index()];
        // A pod that was only promised a place has nothing to leave: there is nothing to delete.
        let is_there = row.observed.status.is_allocated();
        if is_there {
            row.observed.status = Status::Releasing;
            self.report.decisions.push(Decision::Evict {
                pod: row.uid.clone(),
                reason: reason.clone(),
            });
        }
        self.explanations.evictions.insert(pod, reason);
        is_there
    }

    pub(crate) fn placed(&self, pod: PodId) -> Placed {
        let row = self.ledger.pod(pod);
        let node = self.ledger.node(row.place.node.expect("a placed pod has a node"));
        let shape = self.ledger.shape(row.shape);
        let received = match shape.gpu {
            GpuKind::None => Received::Regular { devices: 0 },
            GpuKind::Whole { devices } => Received::Regular { devices },
            GpuKind::Fraction { devices, .. } | GpuKind::Memory { devices, .. } => Received::Fraction {
                devices,
                hundredths: shape.accepted_hundredths(node.memory_mib),
            },
            GpuKind::Mig { .. } => Received::MigInstance,
        };
        Placed {
            pod: row.uid.clone(),
            node: node.name.clone(),
            gpu_groups: row.place.groups.iter().map(|group| self.groups.text(*group)).collect(),
            received,
        }
    }
}

/// Gangs still to be served, in fair order.
pub(crate) struct Walk {
    tournament: Tournament,
    gangs: ByLeaf,
    /// Only to save allocations.
    pods: Vec<PodId>,
}

impl Walk {
    /// The next gang. What it then gets must be told by [`Walk::served`].
    pub(crate) fn pop(&mut self, cycle: &Cycle<'_>) -> Option<GangId> {
        let leaf = self.tournament.best_leaf(cycle.ledger)?;
        let gang = self.gangs.pop(leaf);
        self.refresh(cycle, leaf);
        gang
    }

    /// Tells that only the queue of this gang has changed.
    pub(crate) fn served(&mut self, cycle: &Cycle<'_>, gang: GangId) {
        if let Some(queue) = cycle.ledger.gang(gang).queue {
            self.tournament.touch(cycle.ledger, queue);
        }
    }

    /// Tells that any queue may have changed.
    pub(crate) fn changed(&mut self) {
        self.tournament.touch_all();
    }

    /// Puts a gang back that wants more.
    pub(crate) fn push(&mut self, cycle: &Cycle<'_>, gang: GangId) {
        self.gangs.insert(cycle.ledger, gang);
        if let Some(queue) = cycle.ledger.gang(gang).queue {
            self.refresh(cycle, queue);
        }
    }

    fn refresh(&mut self, cycle: &Cycle<'_>, leaf: QueueId) {
        let mut pods = std::mem::take(&mut self.pods);
        let load = self.gangs.next(leaf).map(|gang| Load {
            request: cycle.request_of(gang, Candidates::Simulated, &mut pods),
            freed: [0; 3],
        });
        self.tournament.set(cycle.ledger, leaf, load);
        self.pods = pods;
    }
}

/// The rank under which gangs are listed.
pub(crate) fn rank_of(ledger: &Ledger, gang: GangId) -> GangRank {
    GangRank::of(ledger.gang(gang))
}
