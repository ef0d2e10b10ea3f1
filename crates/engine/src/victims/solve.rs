//! The search for one gang: growing numbers of its pods, growing sets of victims, until one is allowed.

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashSet, FxHasher};

use crate::cycle::Cycle;
use crate::gangs::Candidates;
use crate::ids::{GangId, PodId, QueueId};
use crate::ledger::Checkpoint;
use crate::model::Action;
use crate::report::{CycleProgress, Generator, SearchResult};
use crate::share::{self, AllocatedBefore, Reclaimer};
use crate::victims::Lists;
use crate::victims::scenario::Room;
use crate::victims::simulate::{Order, Outcome, outcome};
use crate::victims::walk::{Memo, Recorded, VictimWalk};

/// What one search is about.
pub(crate) struct Search<'l> {
    pub(crate) action: Action,
    /// The gang that needs room.
    pub(crate) gang: GangId,
    /// Its queue.
    pub(crate) queue: QueueId,
    pub(crate) lists: &'l mut Lists,
}

/// Steps of work that a search counts as beside what it looks at.
const WORK_PER_SEARCH: usize = 16;

/// How many simulations may still fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) action: u32,
    pub(crate) gang: u32,
}

impl Budget {
    pub(crate) fn is_left(&self) -> bool {
        self.action > 0 && self.gang > 0
    }

    fn spend(&mut self) {
        self.action = self.action.saturating_sub(1);
        self.gang = self.gang.saturating_sub(1);
    }
}

/// What the probes of one search share.
struct Effort<'b> {
    /// What queues held before it.
    before: AllocatedBefore,
    failed: Failed,
    memo: Option<Memo>,
    budget: &'b mut Budget,
    /// Victims of the last set that was simulated.
    simulated: usize,
}

/// What came of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Solution {
    /// The ledger holds it, since the checkpoint; it is not final yet.
    Found(Checkpoint),
    /// There is none, or none was found.
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

/// For how many of a gang's pods victims were found.
enum Most {
    /// All; the ledger holds the outcome.
    All(Vec<PodId>),
    /// As many as could be, with these victims.
    Some(Recorded),
    None,
}

impl Search<'_> {
    /// The gang as one that reclaims all its pods.
    pub(crate) fn reclaimer(&self, cycle: &Cycle<'_>) -> Reclaimer {
        let mut pods = Vec::new();
        let request = cycle.request_of(self.gang, Candidates::Simulated, &mut pods);
        let saturation_multiplier = cycle.config.saturation_multiplier_millionths;
        Reclaimer {
            gang: self.gang,
            queue: self.queue,
            request,
            saturation_multiplier,
        }
    }

    /// Queues whose gangs can be victims, in a fixed order.
    pub(crate) fn victim_queues(&self, cycle: &Cycle<'_>) -> Vec<QueueId> {
        let mut queues = self.lists.victims.leaves();
        match self.action {
            Action::Reclaim => {
                let reclaimer = self.reclaimer(cycle);
                queues
                    .retain(|queue| *queue != self.queue && share::may_reclaim_from(cycle.ledger, &reclaimer, *queue));
            }
            Action::Preempt => queues.retain(|queue| *queue == self.queue),
            Action::Allocate | Action::Consolidation | Action::StaleGangEviction => {}
        }
        queues
    }

    /// Whether a gang of such a queue can be a victim.
    pub(crate) fn accepts(&self, cycle: &Cycle<'_>, victim: GangId) -> bool {
        let row = cycle.ledger.gang(victim);
        let outranked = self.action != Action::Preempt || row.priority < cycle.ledger.gang(self.gang).priority;
        victim != self.gang && outranked && (row.is_elastic() || !cycle.is_protected(self.action, self.queue, victim))
    }
}

impl Cycle<'_> {
    /// Searches victims for `pods` of the gang.
    pub(crate) fn solve(&mut self, search: &mut Search<'_>, pods: &[PodId], budget: &mut Budget) -> Solution {
        if self.is_hopeless(search, pods) {
            return Solution::None(SearchResult::Exhausted);
        }
        let held = self
            .ledger
            .queues
            .iter()
            .map(|queue| (queue.allocated, queue.allocated_non_preemptible));
        let mut effort = Effort {
            before: held.collect(),
            failed: Failed::default(),
            memo: None,
            budget,
            simulated: 0,
        };
        self.ledger.note_work(WORK_PER_SEARCH);
        let mut solution = Solution::None(SearchResult::Exhausted);
        for generator in Generator::ALL {
            (self.observe)(CycleProgress::SearchStarts);
            solution = self.solve_with(generator, search, pods, &mut effort);
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
        effort: &mut Effort<'_>,
    ) -> Solution {
        let active_before = self.ledger.gang(search.gang).active_used();
        let checkpoint = self.ledger.checkpoint();
        let found = match self.most_pods(search, pods, generator, effort) {
            Most::All(victims) => Some(victims),
            Most::Some(recorded) => self.probe(search, pods, generator, &recorded, effort),
            Most::None => None,
        };
        let Some(victims) = found else {
            return Solution::None(match self.may_go_on(effort.budget) {
                true => SearchResult::Exhausted,
                false => SearchResult::Cut,
            });
        };
        let gang = self.ledger.gang(search.gang);
        if gang.is_whole() && gang.active_used() > active_before {
            self.spare(search, pods, &victims, &effort.before);
            return Solution::Found(checkpoint);
        }
        self.ledger.rollback(checkpoint);
        Solution::None(SearchResult::Partial)
    }

    /// The most pods for which victims were found, by doubling and then halving. Victims of every success are recorded:
    /// the next one builds on them. If the ledger holds the outcome for all pods, that is it.
    fn most_pods(
        &mut self,
        search: &mut Search<'_>,
        pods: &[PodId],
        generator: Generator,
        effort: &mut Effort<'_>,
    ) -> Most {
        let mut recorded = Recorded::default();
        let start = self.ledger.checkpoint();
        let mut attempt = |cycle: &mut Self, count: usize, recorded: &mut Recorded| {
            cycle.ledger.rollback(start);
            let victims = cycle.probe(search, &pods[..count], generator, recorded, effort)?;
            *recorded = Recorded::new(victims);
            Some(effort.simulated)
        };
        let (mut solved, mut count) = (0, 1);
        let mut unsolved = loop {
            let Some(simulated) = attempt(self, count, &mut recorded) else {
                break count;
            };
            solved = count;
            if count == pods.len() {
                // The same victim would be tried for the same pods once more.
                if simulated == 1 && recorded.pods.len() == 1 {
                    return Most::All(recorded.pods);
                }
                self.ledger.rollback(start);
                return Most::Some(recorded);
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
        if solved == 0 { Most::None } else { Most::Some(recorded) }
    }

    /// Searches victims for exactly these pods. On success the ledger holds the outcome, and the victims that have to
    /// go or move are returned; otherwise the ledger is as before.
    fn probe(
        &mut self,
        search: &mut Search<'_>,
        pods: &[PodId],
        generator: Generator,
        recorded: &Recorded,
        effort: &mut Effort<'_>,
    ) -> Option<Vec<PodId>> {
        search.lists.room.catch_up(self.ledger, self.resources);
        let mut recorded_room = Room::new(self, &mut search.lists.room, pods);
        recorded_room.add(self, &search.lists.room, &recorded.pods);
        let mut room = recorded_room.clone();
        if !recorded.is_empty() && room.suffices(&search.lists.room) {
            let found = self.try_set(search, generator, pods, &recorded.pods, effort);
            if found.is_some() {
                return found;
            }
        }
        // A walk without regard to what is recorded serves all probes, except where gangs were taken in part.
        let shared = effort.memo.take_if(|memo| memo.serves(recorded));
        let (mut memo, skip) = match (shared, recorded.is_empty()) {
            (Some(memo), _) => (memo, Recorded::default()),
            (None, true) => (Memo::new(self.victim_walk(search)), Recorded::default()),
            (None, false) => (Memo::new(self.victim_walk(search)), recorded.clone()),
        };
        let mut found = None;
        let mut at = 0;
        'units: while self.may_go_on(effort.budget) && memo.reach(self, search, &skip, at) {
            let unit = memo.units().get(at).expect("the unit was just reached");
            self.ledger.note_work(3 * unit.pods.len());
            at += 1;
            if unit.pods.iter().any(|pod| recorded.contains(*pod)) {
                continue;
            }
            room.add(self, &search.lists.room, &unit.pods);
            if !room.suffices(&search.lists.room) {
                self.stats().ruled_out += 1;
                continue;
            }
            let taken = memo.units().taken(at, recorded);
            let sets = match generator {
                Generator::NodeLocal => taken.around_last(self),
                Generator::MultiNode => taken.by_nodes(self, &search.lists.room, &room, &recorded_room),
            };
            for set in sets {
                self.ledger.note_work(4 * set.len());
                recorded_room.add(self, &search.lists.room, &set);
                let suffices = recorded_room.suffices(&search.lists.room);
                recorded_room.remove(self, &search.lists.room, &set);
                if !suffices {
                    continue;
                }
                let victims: Vec<PodId> = recorded.pods.iter().copied().chain(set).collect();
                found = self.try_set(search, generator, pods, &victims, effort);
                if found.is_some() {
                    break 'units;
                }
            }
        }
        if skip.is_empty() {
            effort.memo = Some(memo);
        }
        found
    }

    /// Whether the search may go on: neither simulations nor work are used up.
    pub(crate) fn may_go_on(&self, budget: &Budget) -> bool {
        budget.is_left() && !self.is_out_of_work()
    }

    fn victim_walk(&self, search: &Search<'_>) -> VictimWalk {
        let gangs_max = match search.action {
            Action::Consolidation => self.config.consolidation_preemptees_max,
            Action::Allocate | Action::Reclaim | Action::Preempt | Action::StaleGangEviction => None,
        };
        VictimWalk::new(self, search, gangs_max)
    }

    /// Simulates one set of victims, unless the same has failed before.
    fn try_set(
        &mut self,
        search: &mut Search<'_>,
        generator: Generator,
        pods: &[PodId],
        victims: &[PodId],
        effort: &mut Effort<'_>,
    ) -> Option<Vec<PodId>> {
        if victims.is_empty() || !self.may_go_on(effort.budget) {
            return None;
        }
        self.ledger.note_work(victims.len());
        effort.simulated = victims.len();
        let counts = &mut self.stats().sets[generator as usize];
        counts.chosen += 1;
        if effort.failed.contains(pods, victims) {
            counts.repeated += 1;
            return None;
        }
        counts.simulated += 1;
        let checkpoint = self.ledger.checkpoint();
        for order in [Order::Fair, Order::GangFirst] {
            // Out of work, victims may have found no place only because nobody looked.
            let fits = self.simulate(search, pods, victims, order) && !self.is_out_of_work();
            if fits && self.is_allowed(search, pods, victims, &effort.before) {
                return Some(self.needed(victims));
            }
            self.stats().sets[generator as usize].refused += u32::from(fits);
            let again = order == Order::Fair && !fits && self.is_in_the_way(search, victims);
            self.ledger.rollback(checkpoint);
            if !again || self.is_out_of_work() {
                break;
            }
        }
        effort.budget.spend();
        effort.failed.insert(pods, victims);
        None
    }
}

impl Cycle<'_> {
    /// Whether a victim that consolidation only moves may have taken the place that the gang needs, and would go elsewhere
    /// after the gang. Between queues it is fairness that says who chooses first, so all have to be of one queue.
    fn is_in_the_way(&self, search: &Search<'_>, victims: &[PodId]) -> bool {
        let queue = |pod: &PodId| self.ledger.pod(*pod).gang.and_then(|gang| self.ledger.gang(gang).queue);
        search.action == Action::Consolidation
            && victims.iter().any(|pod| outcome(self, *pod) == Outcome::Moved)
            && victims.iter().all(|pod| queue(pod) == Some(search.queue))
    }

    /// The victims of the simulation in the ledger without which it would not be: all of every gang of which some have
    /// to go or move. Those that go come first, then those that move.
    fn needed(&self, victims: &[PodId]) -> Vec<PodId> {
        let gang = |pod: &PodId| self.ledger.pod(*pod).gang;
        let touched: FxHashSet<_> = victims
            .iter()
            .filter(|pod| outcome(self, **pod) != Outcome::Kept)
            .map(gang)
            .collect();
        let with = |wanted: Outcome| {
            let chosen = move |pod: &&PodId| outcome(self, **pod) == wanted;
            victims
                .iter()
                .filter(chosen)
                .filter(|pod| touched.contains(&gang(pod)))
                .copied()
        };
        with(Outcome::Evicted)
            .chain(with(Outcome::Moved))
            .chain(with(Outcome::Kept))
            .collect()
    }
}

/// Sets of victims that were tried in vain for a number of pods.
#[derive(Debug, Default)]
struct Failed {
    seen: FxHashSet<(usize, usize, u64, u64)>,
}

impl Failed {
    /// Two sums over mixed ids: independent of order, and together wide enough that sets don't collide by accident.
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
        self.seen.contains(&Failed::key(pods, victims))
    }

    fn insert(&mut self, pods: &[PodId], victims: &[PodId]) {
        self.seen.insert(Failed::key(pods, victims));
    }
}
