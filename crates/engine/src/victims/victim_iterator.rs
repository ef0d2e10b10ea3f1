//! Candidate victims in the order of eviction: the leaf queue that loses next, its gang that loses next, and of that gang
//! the smallest unit of pods that can be evicted.

use rustc_hash::FxHashMap;

use crate::cycle::Cycle;
use crate::gangs::{Evictable, GangRank};
use crate::ids::{GangId, PodId, QueueId};
use crate::model::QueueResources;
use crate::order::{Direction, QueueHeap, RankKey};
use crate::share::QueueChange;
use crate::victims::recorded::RecordedVictims;
use crate::victims::solve::Search;
use crate::victims::victim_sets::{EvictionUnit, EvictionUnits};

/// Yields eviction units. The ledger must be in the same state at every call of [`VictimIterator::next`].
pub(crate) struct VictimIterator {
    /// Whether every unit so far contained all pods of its gang.
    whole_gangs: bool,
    heap: QueueHeap,
    leaves: FxHashMap<QueueId, LeafVictims>,
    /// The most gangs that may lose pods; `None` = no limit.
    gangs_max: Option<u32>,
    /// The gangs of the units so far; filled only if there is a limit.
    gangs: Vec<GangId>,
}

/// The gangs of one leaf queue that can still lose pods.
#[derive(Debug, Default)]
struct LeafVictims {
    /// How many gangs of [`SearchState::victims`](super::SearchState) the iterator has not visited yet.
    unvisited: usize,
    /// Gangs that have lost some of their pods, sorted; the next one is last.
    partly_taken: Vec<RankedGang>,
    /// Sum of the resources that gangs held when a unit was taken from them.
    freed: QueueResources,
    next: Option<RankedGang>,
}

/// A gang without the pods that were already taken from it.
#[derive(Clone, Debug)]
struct VictimGang {
    gang: GangId,
    taken: Vec<PodId>,
    allocated: QueueResources,
}

/// A gang with its position among the victims of its queue.
type RankedGang = (RankKey, VictimGang);

impl VictimGang {
    /// Takes the next unit from the gang. The unit is `None` if it is empty or contains a recorded victim. What remains of
    /// the gang is `None` if no pod is left.
    fn split_unit(self, cycle: &Cycle<'_>, recorded: &RecordedVictims) -> (Option<EvictionUnit>, Option<RankedGang>) {
        let VictimGang { gang, mut taken, .. } = self;
        let evictable = Evictable::new(cycle.ledger, gang, &taken);
        let unit = evictable.unit();
        let is_skipped = unit.iter().any(|pod| recorded.contains(*pod));
        if is_skipped {
            let pods = cycle.ledger.gang(gang).pod_sets.iter().flat_map(|set| &set.pods);
            taken.extend(pods.copied().filter(|pod| recorded.contains(*pod)));
            taken.sort_unstable();
            taken.dedup();
        } else {
            taken.extend(&unit);
        }
        let may_have_rest = is_skipped || (!unit.is_empty() && (unit.len() as u32) < evictable.total());
        let rest = may_have_rest.then(|| VictimGang::rest(cycle, gang, taken)).flatten();
        let unit = (!is_skipped && !unit.is_empty()).then(|| EvictionUnit {
            gang,
            pods: unit.into(),
        });
        (unit, rest)
    }

    /// The gang without the pods that were taken.
    fn rest(cycle: &Cycle<'_>, gang: GangId, taken: Vec<PodId>) -> Option<RankedGang> {
        let rest = Evictable::new(cycle.ledger, gang, &taken);
        if !rest.has_unit() {
            return None;
        }
        let rank = GangRank::new(cycle.ledger.gang(gang), rest.elastic_state());
        let allocated = rest.allocated();
        let rest = VictimGang { gang, taken, allocated };
        Some((RankKey::new(Direction::Evict, rank), rest))
    }
}

impl VictimIterator {
    pub(crate) fn new(cycle: &Cycle<'_>, search: &Search<'_>, gangs_max: Option<u32>) -> VictimIterator {
        let mut iterator = VictimIterator {
            whole_gangs: true,
            heap: QueueHeap::new(cycle.ledger, Direction::Evict, cycle.total),
            leaves: FxHashMap::default(),
            gangs_max,
            gangs: Vec::new(),
        };
        for queue in search.victim_queues(cycle) {
            let unvisited = search.state.victims.leaf(queue).len();
            iterator.leaves.insert(
                queue,
                LeafVictims {
                    unvisited,
                    ..LeafVictims::default()
                },
            );
            iterator.advance(cycle, search, queue);
        }
        iterator
    }

    /// The next unit. A unit that contains a recorded victim is skipped: every set of the probe has that victim already.
    pub(crate) fn next(
        &mut self,
        cycle: &Cycle<'_>,
        search: &Search<'_>,
        recorded: &RecordedVictims,
    ) -> Option<EvictionUnit> {
        loop {
            let queue = self.heap.best_leaf(cycle.ledger)?;
            let leaf = self.leaves.get_mut(&queue).expect("every leaf of the heap is known");
            let (_, victim) = leaf.next.take().expect("a leaf in the heap has a next gang");
            leaf.freed += victim.allocated;
            cycle.ledger.note_work(4);
            let gang = victim.gang;
            let (unit, rest) = victim.split_unit(cycle, recorded);
            if let Some((key, rest)) = rest {
                let at = leaf.partly_taken.partition_point(|(other, _)| *other < key);
                leaf.partly_taken.insert(at, (key, rest));
            }
            self.advance(cycle, search, queue);
            let Some(unit) = unit else { continue };
            if !self.gangs.contains(&gang) && self.gangs_max.is_some() {
                if Some(self.gangs.len() as u32) == self.gangs_max {
                    return None;
                }
                self.gangs.push(gang);
            }
            let sets = cycle.ledger.gang(gang).pod_sets.iter();
            self.whole_gangs &= unit.pods.len() == sets.map(|set| set.pods.len()).sum();
            return Some(unit);
        }
    }

    /// Chooses the next gang of a leaf queue and updates the queue's position in the heap.
    fn advance(&mut self, cycle: &Cycle<'_>, search: &Search<'_>, queue: QueueId) {
        let leaf = self.leaves.get_mut(&queue).expect("the leaf is known");
        let list = search.state.victims.leaf(queue);
        while leaf.unvisited > 0 && !search.can_be_victim(cycle, list[leaf.unvisited - 1].1) {
            leaf.unvisited -= 1;
        }
        let unvisited = (leaf.unvisited > 0).then(|| list[leaf.unvisited - 1]);
        let partly_taken = leaf.partly_taken.last().map(|(key, _)| *key);
        leaf.next = match (unvisited, partly_taken) {
            (Some((key, _)), Some(partly_taken)) if partly_taken > key => leaf.partly_taken.pop(),
            (Some((key, gang)), _) => {
                leaf.unvisited -= 1;
                let allocated = cycle.ledger.gang(gang).allocated;
                Some((
                    key,
                    VictimGang {
                        gang,
                        taken: Vec::new(),
                        allocated,
                    },
                ))
            }
            (None, _) => leaf.partly_taken.pop(),
        };
        let change = leaf.next.as_ref().map(|(_, victim)| QueueChange {
            request: QueueResources::ZERO,
            freed: leaf.freed + victim.allocated,
        });
        self.heap.set(cycle.ledger, queue, change);
    }
}

/// The units that an iterator has yielded, kept for all probes of one search. As long as every unit is a whole gang,
/// recorded victims only remove units from the sequence and do not change the order of the others.
pub(crate) struct UnitCache {
    iterator: VictimIterator,
    units: EvictionUnits,
    is_exhausted: bool,
}

impl UnitCache {
    pub(crate) fn new(iterator: VictimIterator) -> UnitCache {
        UnitCache {
            iterator,
            units: EvictionUnits::default(),
            is_exhausted: false,
        }
    }

    /// Iterates until unit `at` is in the cache; false if there are fewer units.
    pub(crate) fn fill_to(
        &mut self,
        cycle: &Cycle<'_>,
        search: &Search<'_>,
        recorded: &RecordedVictims,
        at: usize,
    ) -> bool {
        while !self.is_exhausted && self.units.get(at).is_none() {
            match self.iterator.next(cycle, search, recorded) {
                Some(unit) => self.units.push(cycle, unit),
                None => self.is_exhausted = true,
            }
        }
        self.units.get(at).is_some()
    }

    pub(crate) fn units(&self) -> &EvictionUnits {
        &self.units
    }

    /// Whether a probe with these recorded victims can use the cache.
    pub(crate) fn is_valid_for(&self, recorded: &RecordedVictims) -> bool {
        let split = |unit: &EvictionUnit| {
            let known = unit.pods.iter().filter(|pod| recorded.contains(**pod)).count();
            known != 0 && known != unit.pods.len()
        };
        recorded.is_empty() || (self.iterator.whole_gangs && !self.units.iter().any(split))
    }
}
