//! The common part of consolidation, reclaim and preemption: take pending gangs in fair order, search victims for each, and
//! commit each solution.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::cycle::Cycle;
use crate::fit::fits_empty_node;
use crate::gangs::Candidates;
use crate::ids::{GangId, PodId, QueueId, ShapeId};
use crate::ledger::{Checkpoint, Ledger, VolumeSignature};
use crate::model::{Action, Preemptibility};
use crate::place::static_check;
use crate::report::SearchResult;
use crate::victims::{Search, SearchState, SimulationBudget, Solution};
use crate::work::{Round, RoundOf};

impl Cycle<'_> {
    /// Runs an action. `takes_part` filters the gangs before the action begins; `may_try` checks a gang with its pods just
    /// before its search.
    pub(crate) fn place_with_victims(
        &mut self,
        action: Action,
        may_try: impl Fn(&Cycle<'_>, &Search<'_>, &[PodId]) -> bool,
        takes_part: impl Fn(&Cycle<'_>, GangId) -> bool,
    ) {
        let mut waiting = self.gangs_to_search(takes_part);
        if waiting.is_empty() {
            return;
        }
        let mut round = self.begin_round(RoundOf::Action(action), &mut waiting);
        let mut state = SearchState::new(self.ledger);
        let mut queues = self.iterate(self.by_leaf(action, waiting));
        let mut progress = ActionProgress {
            simulations_left: self.config.failed_scenarios_per_action_max,
            failed: FxHashSet::default(),
        };
        let mut fitting = FxHashMap::default();
        let mut pods = Vec::new();
        while let Some(gang) = queues.pop(self) {
            let Some(queue) = self.ledger.gang(gang).queue else {
                continue;
            };
            self.ledger.pods_to_place(gang, Candidates::Simulated, &mut pods);
            let signature = Signature::of(self.ledger, action, queue, gang, &pods);
            if pods.is_empty() || (self.config.use_signatures && progress.failed.contains(&signature)) {
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
                state: &mut state,
                before: Vec::new(),
            };
            // The last search may have left outdated charges.
            self.ledger.settle_cores();
            if !may_try(self, &search, &pods) || !self.fit_some_empty_node(&pods, &mut fitting) {
                round.record_failure(gang, false);
                continue;
            }
            if self.try_gang(&mut search, &pods, signature, &mut progress, &mut round) {
                queues.changed();
            }
            if progress.simulations_left == 0 {
                round.cut();
                break;
            }
        }
        self.end_round(round);
    }

    /// Searches victims for a gang and commits the solution; whether there is one.
    fn try_gang(
        &mut self,
        search: &mut Search<'_>,
        pods: &[PodId],
        signature: Signature,
        progress: &mut ActionProgress,
        round: &mut Round,
    ) -> bool {
        let (solution, budget) = self.search_victims(search, pods, progress.simulations_left);
        progress.simulations_left = budget.action;
        match solution {
            Solution::Found(checkpoint) => {
                self.commit_solution(search, checkpoint);
                progress.failed.clear();
            }
            Solution::None(_) => {
                progress.failed.insert(signature);
                round.record_failure(search.gang, self.is_out_of_work());
            }
        }
        let is_solved = solution.end() == SearchResult::Solved;
        let was_cut = !is_solved && !self.can_continue(&budget);
        let had_full_work = round.has_full_budget() || !self.is_out_of_work();
        self.set_search_pause(search.gang, was_cut, had_full_work);
        is_solved
    }

    /// Waiting gangs that may search for victims in this cycle.
    fn gangs_to_search(&self, takes_part: impl Fn(&Cycle<'_>, GangId) -> bool) -> Vec<GangId> {
        let may_search = |gang: &GangId| {
            let row = self.ledger.gang(*gang);
            row.waiting() > 0
                && row.schedulable
                && row.is_ready()
                && !row.is_background()
                && takes_part(self, *gang)
                && row.delayed_until(self.now).is_none()
                && row.search_from <= self.number
        };
        self.waiting.iter().copied().filter(may_search).collect()
    }

    /// Searches victims for a gang and counts the search in the report. Returns what is left of the budget, too.
    fn search_victims(
        &mut self,
        search: &mut Search<'_>,
        pods: &[PodId],
        simulations_left: u32,
    ) -> (Solution, SimulationBudget) {
        let mut budget = SimulationBudget {
            action: simulations_left,
            gang: self.config.failed_scenarios_per_gang_max,
        };
        let is_reduced = budget.action < budget.gang;
        let solution = self.solve(search, pods, &mut budget);
        let stats = self.stats();
        stats.tried += 1;
        stats.searches[solution.end() as usize][usize::from(is_reduced)] += 1;
        (solution, budget)
    }

    /// Commits the solution in the ledger and updates the state of the searches that follow.
    fn commit_solution(&mut self, search: &mut Search<'_>, checkpoint: Checkpoint) {
        self.stats().placed += 1;
        let changed = self.ledger.changed_since(checkpoint);
        let fairness = self.fairness_of_victims(search, &changed);
        self.commit(checkpoint, search.action, search.gang, &fairness);
        let mut gangs: Vec<GangId> = changed.iter().filter_map(|pod| self.ledger.pod(*pod).gang).collect();
        gangs.sort_unstable();
        gangs.dedup();
        search.state.update(self.ledger, self.resources, &gangs);
    }

    /// Excludes a gang whose search was cut short from the next 2, 4, 8, ... cycles, unless the search had less work than a
    /// gang may use. A search that ended by itself resets the pause.
    fn set_search_pause(&mut self, gang: GangId, was_cut: bool, had_full_work: bool) {
        /// Longest pause in cycles, as a power of two.
        const PAUSE_MAX: u32 = 5;
        if was_cut {
            self.explanations.cut_searches.insert(gang);
            if !had_full_work {
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

    /// Whether every pod would fit on some node if that were empty: if not, no eviction can help. `known` caches the answer
    /// by shape.
    fn fit_some_empty_node(&self, pods: &[PodId], known: &mut FxHashMap<ShapeId, bool>) -> bool {
        let mut shapes: Vec<ShapeId> = pods.iter().map(|pod| self.ledger.pod(*pod).shape).collect();
        shapes.sort_unstable();
        shapes.dedup();
        let fits_some = |id: &ShapeId| {
            let shape = self.ledger.shape(*id);
            self.ledger.note_work(self.ledger.present_nodes / 16);
            self.ledger
                .nodes
                .iter()
                .any(|node| fits_empty_node(node, shape) && static_check(node, shape).is_ok())
        };
        shapes
            .into_iter()
            .all(|shape| *known.entry(shape).or_insert_with_key(fits_some))
    }
}

/// The searches of one action so far.
struct ActionProgress {
    /// How many more simulations may fail.
    simulations_left: u32,
    /// Signatures of gangs without a solution since the ledger changed last.
    failed: FxHashSet<Signature>,
}

/// The properties of a gang that decide its search. After a failed search, gangs with the same signature are skipped until
/// a solution changes the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Signature {
    queue: Option<QueueId>,
    priority: i32,
    preemptibility: Preemptibility,
    pods: Vec<(Option<u32>, ShapeId, Option<VolumeSignature>)>,
    /// The gang itself, if no other gang has its signature.
    unlike_others: Option<GangId>,
    topology: Vec<Option<std::sync::Arc<crate::model::TopologyConstraint>>>,
}

impl Signature {
    fn of(ledger: &Ledger, action: Action, queue: QueueId, gang: GangId, pods: &[PodId]) -> Signature {
        let row = ledger.gang(gang);
        let mut shapes: Vec<(Option<u32>, ShapeId, Option<VolumeSignature>)> = pods
            .iter()
            .map(|pod| {
                let row = ledger.pod(*pod);
                (row.pod_set, row.shape, ledger.volume_signature(*pod))
            })
            .collect();
        shapes.sort_unstable();
        let of_sub_groups = row.sub_groups.iter().map(|group| group.topology.clone());
        let of_sets = row.pod_sets.iter().map(|set| set.topology.clone());
        Signature {
            queue: (action != Action::Consolidation).then_some(queue),
            priority: row.priority,
            preemptibility: row.preemptibility,
            pods: shapes,
            // Running pods restrict the topology domains, and differ from gang to gang. So does the core.
            unlike_others: (row.active_used() > 0 || row.is_semi_preemptible()).then_some(gang),
            topology: of_sub_groups.chain(of_sets).collect(),
        }
    }
}
