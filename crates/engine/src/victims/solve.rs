//! The victim search for one gang: probes for growing numbers of its pods, each of which simulates growing sets of victims
//! until an outcome is allowed.

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashSet, FxHasher};

use crate::cycle::Cycle;
use crate::gangs::Candidates;
use crate::ids::{GangId, PodId, QueueId};
use crate::ledger::Checkpoint;
use crate::model::{Action, Preemptibility};
use crate::reasons::Resource;
use crate::report::{CycleProgress, Generator, SearchResult};
use crate::share::{self, AllocatedBefore, Reclaimer};
use crate::victims::SearchState;
use crate::victims::capacity::FreedCapacity;
use crate::victims::recorded::RecordedVictims;
use crate::victims::simulate::{SimulationOrder, VictimOutcome, victim_outcome};
use crate::victims::victim_iterator::{UnitCache, VictimIterator};

/// The gang that a search is for, and the state that the searches of an action share.
pub(crate) struct Search<'l> {
    pub(crate) action: Action,
    /// The pending gang.
    pub(crate) gang: GangId,
    /// The leaf queue of the pending gang.
    pub(crate) queue: QueueId,
    pub(crate) state: &'l mut SearchState,
    /// Resources of all queues when the last search for this gang began.
    pub(crate) before: AllocatedBefore,
}

/// Steps of work that each search counts on top of the objects that it visits.
const WORK_PER_SEARCH: usize = 16;

/// How many simulations may still fail, for the action and for the gang.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimulationBudget {
    pub(crate) action: u32,
    pub(crate) gang: u32,
}

impl SimulationBudget {
    pub(crate) fn is_left(&self) -> bool {
        self.action > 0 && self.gang > 0
    }

    fn spend(&mut self) {
        self.action = self.action.saturating_sub(1);
        self.gang = self.gang.saturating_sub(1);
    }
}

/// The state that the probes of one search share.
struct SearchProgress<'b> {
    failed: FailedSets,
    unit_cache: Option<UnitCache>,
    budget: &'b mut SimulationBudget,
    /// The size of the set that was simulated last.
    last_set_len: usize,
}

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Solution {
    /// The ledger contains the solution since this checkpoint; the caller commits it.
    Found(Checkpoint),
    /// No solution was found; the ledger is unchanged.
    None(SearchResult),
}

impl Solution {
    pub(crate) fn end(self) -> SearchResult {
        match self {
            Solution::Found(_) => SearchResult::Solved,
            Solution::None(end) => end,
        }
    }
}

/// One step of a search: find victims for exactly these pods.
#[derive(Clone, Copy)]
struct Probe<'p> {
    generator: Generator,
    pods: &'p [PodId],
    recorded: &'p RecordedVictims,
}

/// How many of a gang's pods have a solution.
enum MostPods {
    /// All pods, with these victims; the ledger contains the outcome.
    All(Vec<PodId>),
    /// The largest number that was found, with these victims; the ledger is unchanged.
    Some(RecordedVictims),
    /// Not even one pod.
    None,
}

impl Search<'_> {
    /// The gang as a reclaimer for all its pods.
    pub(crate) fn reclaimer(&self, cycle: &Cycle<'_>) -> Reclaimer {
        let mut pods = Vec::new();
        cycle.ledger.pods_to_place(self.gang, Candidates::Simulated, &mut pods);
        self.reclaimer_for(cycle, &pods)
    }

    /// The gang as a reclaimer for these pods, placed or not.
    pub(crate) fn reclaimer_for(&self, cycle: &Cycle<'_>, pods: &[PodId]) -> Reclaimer {
        let memory_mib = cycle.gpu_memory_min_mib;
        let request = cycle
            .ledger
            .queue_request(self.gang, pods, |shape| shape.requested(memory_mib));
        let has_amount = Resource::any(|resource| request.non_preemptible[resource] > 0);
        let non_preemptible = match cycle.ledger.gang(self.gang).preemptibility {
            Preemptibility::Preemptible => None,
            Preemptibility::SemiPreemptible => has_amount.then_some(request.non_preemptible),
            Preemptibility::NonPreemptible => Some(request.non_preemptible),
        };
        Reclaimer {
            queue: self.queue,
            request: request.all,
            non_preemptible,
            saturation_multiplier: cycle.config.saturation_multiplier_millionths,
        }
    }

    /// Leaf queues whose gangs can be victims, in a fixed order.
    pub(crate) fn victim_queues(&self, cycle: &Cycle<'_>) -> Vec<QueueId> {
        let mut queues = self.state.victims.leaves();
        match self.action {
            Action::Reclaim => {
                let reclaimer = self.reclaimer(cycle);
                queues
                    .retain(|queue| *queue != self.queue && share::may_reclaim_from(cycle.ledger, &reclaimer, *queue));
            }
            Action::Preempt => queues.retain(|queue| *queue == self.queue),
            Action::Allocate | Action::Consolidation | Action::StaleGangEviction | Action::BackgroundPods => {}
        }
        queues
    }

    /// Whether a gang of one of the [victim queues](Search::victim_queues) can be a victim.
    pub(crate) fn can_be_victim(&self, cycle: &Cycle<'_>, victim: GangId) -> bool {
        let row = cycle.ledger.gang(victim);
        let outranked = self.action != Action::Preempt || row.priority < cycle.ledger.gang(self.gang).priority;
        victim != self.gang
            && outranked
            && (row.is_elastic() || !cycle.is_within_min_runtime(self.action, self.queue, victim))
    }
}

impl Cycle<'_> {
    /// Searches victims for `pods` of the gang, with one generator of victim sets after the other.
    pub(crate) fn solve(&mut self, search: &mut Search<'_>, pods: &[PodId], budget: &mut SimulationBudget) -> Solution {
        if self.is_infeasible(search, pods) {
            return Solution::None(SearchResult::Exhausted);
        }
        self.ledger.settle_cores();
        search.before = share::allocated_of_queues(self.ledger);
        let mut progress = SearchProgress {
            failed: FailedSets::default(),
            unit_cache: None,
            budget,
            last_set_len: 0,
        };
        self.ledger.note_work(WORK_PER_SEARCH);
        let mut solution = Solution::None(SearchResult::Exhausted);
        for generator in Generator::ALL {
            (self.observe)(CycleProgress::SearchStarts);
            solution = self.solve_with(generator, search, pods, &mut progress);
            (self.observe)(CycleProgress::SearchEnds(search.action, generator, solution.end()));
            match solution.end() {
                SearchResult::Solved | SearchResult::Partial => break,
                SearchResult::Exhausted | SearchResult::Cut => {}
            }
        }
        solution
    }

    fn solve_with(
        &mut self,
        generator: Generator,
        search: &mut Search<'_>,
        pods: &[PodId],
        progress: &mut SearchProgress<'_>,
    ) -> Solution {
        let active_before = self.ledger.gang(search.gang).active_used();
        let checkpoint = self.ledger.checkpoint();
        let found = match self.most_pods(search, pods, generator, progress) {
            MostPods::All(victims) => Some(victims),
            MostPods::Some(recorded) => {
                let recorded = &recorded;
                let probe = Probe {
                    generator,
                    pods,
                    recorded,
                };
                self.run_probe(search, probe, progress)
            }
            MostPods::None => None,
        };
        let Some(victims) = found else {
            return Solution::None(match self.can_continue(progress.budget) {
                true => SearchResult::Exhausted,
                false => SearchResult::Cut,
            });
        };
        let gang = self.ledger.gang(search.gang);
        if gang.is_whole() && gang.active_used() > active_before {
            self.keep_unneeded_victims(search, pods, &victims);
            return Solution::Found(checkpoint);
        }
        self.ledger.rollback(checkpoint);
        Solution::None(SearchResult::Partial)
    }

    /// The largest number of pods with a solution: the number doubles until a probe fails, then a binary search follows.
    /// The victims of each successful probe are the recorded victims of the next one.
    fn most_pods(
        &mut self,
        search: &mut Search<'_>,
        pods: &[PodId],
        generator: Generator,
        progress: &mut SearchProgress<'_>,
    ) -> MostPods {
        let mut recorded = RecordedVictims::default();
        let start = self.ledger.checkpoint();
        let mut attempt = |cycle: &mut Self, count: usize, recorded: &mut RecordedVictims| {
            cycle.ledger.rollback(start);
            let probe = Probe {
                generator,
                pods: &pods[..count],
                recorded,
            };
            let victims = cycle.run_probe(search, probe, progress)?;
            *recorded = RecordedVictims::new(victims);
            Some(progress.last_set_len)
        };
        let (mut solved, mut count) = (0, 1);
        let mut unsolved = loop {
            let Some(last_set_len) = attempt(self, count, &mut recorded) else {
                break count;
            };
            solved = count;
            if count == pods.len() {
                // Another probe would simulate the same single victim for the same pods again.
                if last_set_len == 1 && recorded.pods.len() == 1 {
                    return MostPods::All(recorded.pods);
                }
                self.ledger.rollback(start);
                return MostPods::Some(recorded);
            }
            count = (2 * count).min(pods.len());
        };
        while unsolved - solved > 1 {
            let middle = solved.midpoint(unsolved);
            if attempt(self, middle, &mut recorded).is_some() {
                solved = middle;
            } else {
                unsolved = middle;
            }
        }
        self.ledger.rollback(start);
        if solved == 0 {
            MostPods::None
        } else {
            MostPods::Some(recorded)
        }
    }

    /// Searches victims for exactly the pods of the probe. On success the ledger contains the outcome and the needed
    /// victims are returned; otherwise the ledger is unchanged.
    fn run_probe(
        &mut self,
        search: &mut Search<'_>,
        probe: Probe<'_>,
        progress: &mut SearchProgress<'_>,
    ) -> Option<Vec<PodId>> {
        let Probe { pods, recorded, .. } = probe;
        search.state.base_capacity.catch_up(self.ledger, self.resources);
        let mut recorded_capacity = FreedCapacity::new(self, &mut search.state.base_capacity, pods);
        recorded_capacity.add(self, &search.state.base_capacity, &recorded.pods);
        let mut freed = recorded_capacity.clone();
        if !recorded.is_empty() && freed.may_suffice(&search.state.base_capacity) {
            let found = self.try_set(search, probe, &recorded.pods, progress);
            if found.is_some() {
                return found;
            }
        }
        // An iterator that ignores recorded victims serves all probes, unless a unit is only a part of its gang.
        let shared = progress.unit_cache.take_if(|cache| cache.is_valid_for(recorded));
        let (mut cache, skip) = match (shared, recorded.is_empty()) {
            (Some(cache), _) => (cache, RecordedVictims::default()),
            (None, true) => (UnitCache::new(self.victim_iterator(search)), RecordedVictims::default()),
            (None, false) => (UnitCache::new(self.victim_iterator(search)), recorded.clone()),
        };
        let mut found = None;
        let mut at = 0;
        while found.is_none() && self.can_continue(progress.budget) && cache.fill_to(self, search, &skip, at) {
            let unit = cache.units().get(at).expect("the cache was filled to this unit");
            self.ledger.note_work(3 * unit.pods.len());
            at += 1;
            if unit.pods.iter().any(|pod| recorded.contains(*pod)) {
                continue;
            }
            freed.add(self, &search.state.base_capacity, &unit.pods);
            if !freed.may_suffice(&search.state.base_capacity) {
                self.stats().ruled_out += 1;
                continue;
            }
            let taken = cache.units().taken(at, recorded);
            let sets = match probe.generator {
                Generator::NodeLocal => taken.sets_around_last(self),
                Generator::MultiNode => {
                    taken.sets_over_nodes(self, &search.state.base_capacity, &freed, &recorded_capacity)
                }
            };
            found = self.try_sets(search, probe, &mut recorded_capacity, sets, progress);
        }
        if skip.is_empty() {
            progress.unit_cache = Some(cache);
        }
        found
    }

    /// Simulates the first of these sets that succeeds together with the recorded victims; sets that can't free enough
    /// capacity are skipped. `recorded_capacity` is the same before and after the call.
    fn try_sets(
        &mut self,
        search: &mut Search<'_>,
        probe: Probe<'_>,
        recorded_capacity: &mut FreedCapacity,
        sets: Vec<Vec<PodId>>,
        progress: &mut SearchProgress<'_>,
    ) -> Option<Vec<PodId>> {
        for set in sets {
            self.ledger.note_work(4 * set.len());
            recorded_capacity.add(self, &search.state.base_capacity, &set);
            let may_suffice = recorded_capacity.may_suffice(&search.state.base_capacity);
            recorded_capacity.remove(self, &search.state.base_capacity, &set);
            if !may_suffice {
                continue;
            }
            let victims: Vec<PodId> = probe.recorded.pods.iter().copied().chain(set).collect();
            let found = self.try_set(search, probe, &victims, progress);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Whether the budgets of simulations and of work have something left.
    pub(crate) fn can_continue(&self, budget: &SimulationBudget) -> bool {
        budget.is_left() && !self.is_out_of_work()
    }

    fn victim_iterator(&self, search: &Search<'_>) -> VictimIterator {
        let gangs_max = match search.action {
            Action::Consolidation => self.config.consolidation_preemptees_max,
            Action::Allocate
            | Action::Reclaim
            | Action::Preempt
            | Action::StaleGangEviction
            | Action::BackgroundPods => None,
        };
        VictimIterator::new(self, search, gangs_max)
    }

    /// Simulates one set of victims, unless the same set has failed before. On success the ledger contains the outcome and
    /// the needed victims are returned; otherwise the ledger is unchanged.
    fn try_set(
        &mut self,
        search: &mut Search<'_>,
        probe: Probe<'_>,
        victims: &[PodId],
        progress: &mut SearchProgress<'_>,
    ) -> Option<Vec<PodId>> {
        let Probe { pods, generator, .. } = probe;
        if victims.is_empty() || !self.can_continue(progress.budget) {
            return None;
        }
        self.ledger.note_work(victims.len());
        progress.last_set_len = victims.len();
        let counts = &mut self.stats().sets[generator as usize];
        counts.chosen += 1;
        if progress.failed.contains(pods, victims) {
            counts.repeated += 1;
            return None;
        }
        counts.simulated += 1;
        let checkpoint = self.ledger.checkpoint();
        for order in [SimulationOrder::Fair, SimulationOrder::GangFirst] {
            // If work ran out, victims may be without a node only because the simulation stopped.
            let fits = self.simulate(search, pods, victims, order) && !self.is_out_of_work();
            if fits && self.is_allowed(search, pods, victims) {
                return Some(self.needed_victims(victims));
            }
            self.stats().sets[generator as usize].refused += u32::from(fits);
            let again = order == SimulationOrder::Fair && !fits && self.victims_may_block_gang(search, victims);
            self.ledger.rollback(checkpoint);
            if !again || self.is_out_of_work() {
                break;
            }
        }
        progress.budget.spend();
        progress.failed.insert(pods, victims);
        None
    }
}

impl Cycle<'_> {
    /// Whether consolidation may have moved a victim to a node that the gang needs, so that placing the gang first could
    /// help. Fairness decides the order between queues, so all victims have to be of the gang's queue.
    fn victims_may_block_gang(&self, search: &Search<'_>, victims: &[PodId]) -> bool {
        let queue = |pod: &PodId| self.ledger.pod(*pod).gang.and_then(|gang| self.ledger.gang(gang).queue);
        search.action == Action::Consolidation
            && victims
                .iter()
                .any(|pod| victim_outcome(self, *pod) == VictimOutcome::Moved)
            && victims.iter().all(|pod| queue(pod) == Some(search.queue))
    }

    /// The victims that the simulation in the ledger needs: all victims of each gang that has at least one evicted or moved
    /// pod. Evicted pods come first, then moved ones, then kept ones.
    fn needed_victims(&self, victims: &[PodId]) -> Vec<PodId> {
        let gang = |pod: &PodId| self.ledger.pod(*pod).gang;
        let touched: FxHashSet<_> = victims
            .iter()
            .filter(|pod| victim_outcome(self, **pod) != VictimOutcome::Kept)
            .map(gang)
            .collect();
        let with = |wanted: VictimOutcome| {
            let chosen = move |pod: &&PodId| victim_outcome(self, **pod) == wanted;
            victims
                .iter()
                .filter(chosen)
                .filter(|pod| touched.contains(&gang(pod)))
                .copied()
        };
        with(VictimOutcome::Evicted)
            .chain(with(VictimOutcome::Moved))
            .chain(with(VictimOutcome::Kept))
            .collect()
    }
}

/// Sets of victims whose simulation failed, with the number of pods to place.
#[derive(Debug, Default)]
struct FailedSets {
    seen: FxHashSet<(usize, usize, u64, u64)>,
}

impl FailedSets {
    /// Two sums over hashed ids: independent of the order of victims, and together 128 bits wide, so that two sets do not
    /// collide by accident.
    fn key(pods: &[PodId], victims: &[PodId]) -> (usize, usize, u64, u64) {
        let (mut sum, mut mixed) = (0u64, 0u64);
        for pod in victims {
            let mut hasher = FxHasher::default();
            pod.hash(&mut hasher);
            let hash = hasher.finish();
            sum = sum.wrapping_add(hash);
            mixed = mixed.wrapping_add((hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9));
        }
        (pods.len(), victims.len(), sum, mixed)
    }

    fn contains(&self, pods: &[PodId], victims: &[PodId]) -> bool {
        self.seen.contains(&FailedSets::key(pods, victims))
    }

    fn insert(&mut self, pods: &[PodId], victims: &[PodId]) {
        self.seen.insert(FailedSets::key(pods, victims));
    }
}
