//! What consolidation, reclaim and preemption have in common: pending gangs in fair order, a search for victims for
//! each, and the outcome made final.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::cycle::Cycle;
use crate::gangs::Candidates;
use crate::ids::{GangId, PodId, QueueId, ShapeId};
use crate::ledger::Ledger;
use crate::model::Action;
use crate::place::{fits, static_check};
use crate::report::SearchResult;
use crate::tables::When;
use crate::victims::{Budget, Lists, Search, Solution};

impl Cycle<'_> {
    /// Runs an action. `may_try` is asked per gang with its pods, `takes_part` once per gang up front.
    pub(crate) fn make_room(
        &mut self,
        action: Action,
        may_try: impl Fn(&Cycle<'_>, &Search<'_>, &[PodId]) -> bool,
        takes_part: impl Fn(&Cycle<'_>, GangId) -> bool,
    ) {
        let now = self.now;
        let wants = |gang: GangId| {
            let row = self.ledger.gang(gang);
            row.waiting() > 0 && row.schedulable && row.is_ready() && takes_part(self, gang)
        };
        let waiting = self.waiting.iter().copied().filter(|gang| {
            let row = self.ledger.gang(*gang);
            wants(*gang) && row.delayed_until(now).is_none() && row.search_from <= self.number
        });
        let mut waiting: Vec<GangId> = waiting.collect();
        if waiting.is_empty() {
            return;
        }
        let mut round = self.begin_round(action, &mut waiting);
        let mut lists = Lists::new(self.ledger);
        let mut walk = self.iterate(self.by_leaf(action, waiting));
        let mut left = self.config.failed_scenarios_per_action_max;
        let mut failed: FxHashSet<Signature> = FxHashSet::default();
        let mut fitting = FxHashMap::default();
        let mut pods = Vec::new();
        while let Some(gang) = walk.pop(self) {
            let Some(queue) = self.ledger.gang(gang).queue else {
                continue;
            };
            self.ledger.pods_to_place(gang, Candidates::Simulated, &mut pods);
            let signature = Signature::of(self.ledger, action, queue, gang, &pods);
            if pods.is_empty() || (self.config.use_signatures && failed.contains(&signature)) {
                round.record_failure(gang, false);
                continue;
            }
            if !self.may_try_next(&mut round) {
                break;
            }
            let mut search = Search {
                action,
                gang,
                queue,
                lists: &mut lists,
            };
            if !may_try(self, &search, &pods) || !self.fit_somewhere(&pods, &mut fitting) {
                round.record_failure(gang, false);
                continue;
            }
            let mut budget = Budget {
                action: left,
                gang: self.config.failed_scenarios_per_gang_max,
            };
            let reduced = left < budget.gang;
            let solution = self.solve(&mut search, &pods, &mut budget);
            left = budget.action;
            let effort = self.stats();
            effort.tried += 1;
            effort.searches[solution.end() as usize][usize::from(reduced)] += 1;
            match solution {
                Solution::Found(checkpoint) => {
                    self.stats().placed += 1;
                    let changed = self.ledger.changed_since(checkpoint);
                    self.commit(checkpoint, action, gang);
                    let mut gangs: Vec<GangId> = changed.iter().filter_map(|pod| self.ledger.pod(*pod).gang).collect();
                    gangs.sort_unstable();
                    gangs.dedup();
                    lists.follow(self.ledger, self.resources, &gangs);
                    walk.changed();
                    failed.clear();
                }
                Solution::None(_) => {
                    failed.insert(signature);
                    round.record_failure(gang, self.is_out_of_work());
                }
            }
            let was_cut = solution.end() != SearchResult::Solved && !self.may_go_on(&budget);
            self.step_back(gang, was_cut, round.has_full_budget() || !self.is_out_of_work());
            if left == 0 {
                round.cut();
                break;
            }
        }
        self.end_round(round);
    }

    /// A gang whose search was cut short stays out of the next 2, 4, 8, ... cycles, unless it had less than its part of the
    /// work; any other is free again.
    fn step_back(&mut self, gang: GangId, was_cut: bool, had_its_part: bool) {
        /// Longest pause, as a power of two.
        const PAUSE_MAX: u32 = 5;
        if was_cut {
            self.explanations.cut_searches.insert(gang);
            if !had_its_part {
                return;
            }
        }
        let row = &mut self.ledger.gangs[gang.index()];
        row.searches_cut = if was_cut {
            (row.searches_cut + 1).min(PAUSE_MAX)
        } else {
            0
        };
        row.search_from = if was_cut {
            self.number + (1 << row.searches_cut)
        } else {
            0
        };
    }

    /// Whether every pod would fit some empty node: if not, no eviction can help. What is known of a shape is in `known`.
    fn fit_somewhere(&self, pods: &[PodId], known: &mut FxHashMap<ShapeId, bool>) -> bool {
        let mut shapes: Vec<ShapeId> = pods.iter().map(|pod| self.ledger.pod(*pod).shape).collect();
        shapes.sort_unstable();
        shapes.dedup();
        let fits_some = |id: &ShapeId| {
            let shape = self.ledger.shape(*id);
            self.ledger.note_work(self.ledger.present_nodes / 16);
            self.ledger.nodes.iter().any(|node| {
                let enough = (0..4).all(|resource| shape.base[resource] <= node.allocatable[resource]);
                enough
                    && static_check(node, shape).is_ok()
                    && fits(node, shape, [i64::MAX / 2; 4], When::AfterRelease)
                        != Err(crate::reasons::Check::GpuTooSmall)
            })
        };
        shapes
            .into_iter()
            .all(|shape| *known.entry(shape).or_insert_with_key(fits_some))
    }
}

/// Gangs of one queue that need the same: once one failed and nothing has changed since, so will the others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Signature {
    queue: Option<QueueId>,
    priority: i32,
    preemptible: bool,
    pods: Vec<(Option<u32>, ShapeId)>,
    running: Option<GangId>,
    topology: Vec<Option<std::sync::Arc<crate::model::TopologyConstraint>>>,
}

impl Signature {
    fn of(ledger: &Ledger, action: Action, queue: QueueId, gang: GangId, pods: &[PodId]) -> Signature {
        let row = ledger.gang(gang);
        let mut shapes: Vec<(Option<u32>, ShapeId)> = pods
            .iter()
            .map(|pod| (ledger.pod(*pod).pod_set, ledger.pod(*pod).shape))
            .collect();
        shapes.sort_unstable();
        let of_groups = row.sub_groups.iter().map(|group| group.topology.clone());
        let of_sets = row.pod_sets.iter().map(|set| set.topology.clone());
        Signature {
            queue: (action != Action::Consolidation).then_some(queue),
            priority: row.priority,
            preemptible: row.preemptible,
            pods: shapes,
            // Pods that run already pin topology domains and differ from gang to gang.
            running: (row.active_used() > 0).then_some(gang),
            topology: of_groups.chain(of_sets).collect(),
        }
    }
}
