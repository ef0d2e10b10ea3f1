//! Victims one unit at a time: from the queue that loses next, its gang that loses next, the pods that go first.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::cycle::Cycle;
use crate::gangs::{Evictable, GangRank};
use crate::ids::{GangId, PodId, QueueId};
use crate::order::{Direction, QueueHeap, RankKey};
use crate::share::{QueueChange, plus};
use crate::tables::QueueResources;
use crate::victims::scenario::{Unit, Units};
use crate::victims::solve::Search;

/// A walk over units of victims. The ledger must be the same whenever it goes on.
pub(crate) struct VictimWalk {
    /// Every unit so far was all that its gang has.
    whole_gangs: bool,
    tournament: QueueHeap,
    leaves: FxHashMap<QueueId, Leaf>,
    /// At most so many gangs are taken; `None` = any number.
    gangs_max: Option<u32>,
    gangs: Vec<GangId>,
}

#[derive(Debug, Default)]
struct Leaf {
    /// Gangs of the list not yet looked at.
    left: usize,
    /// Gangs of which a part was taken.
    partly: Vec<(RankKey, Item)>,
    /// What all taken so far held when they were taken.
    freed: QueueResources,
    next: Option<(RankKey, Item)>,
}

/// A gang less the pods already taken from it.
#[derive(Clone, Debug)]
struct Item {
    gang: GangId,
    taken: Vec<PodId>,
    allocated: QueueResources,
}

impl VictimWalk {
    pub(crate) fn new(cycle: &Cycle<'_>, search: &Search<'_>, gangs_max: Option<u32>) -> VictimWalk {
        let mut walk = VictimWalk {
            whole_gangs: true,
            tournament: QueueHeap::new(cycle.ledger, Direction::Evict, cycle.total),
            leaves: FxHashMap::default(),
            gangs_max,
            gangs: Vec::new(),
        };
        for queue in search.victim_queues(cycle) {
            let left = search.lists.victims.leaf(queue).len();
            walk.leaves.insert(
                queue,
                Leaf {
                    left,
                    ..Leaf::default()
                },
            );
            walk.advance(cycle, search, queue);
        }
        walk
    }

    /// The next unit. Pods in `recorded` are victims already: a unit that has one of them is passed over.
    pub(crate) fn next(&mut self, cycle: &Cycle<'_>, search: &Search<'_>, recorded: &Recorded) -> Option<Unit> {
        loop {
            let queue = self.tournament.best_leaf(cycle.ledger)?;
            let leaf = self
                .leaves
                .get_mut(&queue)
                .expect("every leaf of the tournament is known");
            let (_, item) = leaf.next.take().expect("a leaf in the tournament has a next gang");
            leaf.freed = plus(leaf.freed, item.allocated);
            cycle.ledger.note_work(4);
            let evictable = Evictable::new(cycle.ledger, item.gang, &item.taken);
            let unit = evictable.unit();
            let skipped = unit.iter().any(|pod| recorded.contains(*pod));
            let mut taken = item.taken.clone();
            let more = if skipped {
                let pods = cycle.ledger.gang(item.gang).pod_sets.iter().flat_map(|set| &set.pods);
                taken.extend(pods.copied().filter(|pod| recorded.contains(*pod)));
                taken.sort_unstable();
                taken.dedup();
                true
            } else {
                let more = (unit.len() as u32) < evictable.total();
                taken.extend(&unit);
                more
            };
            if more {
                let rest = Evictable::new(cycle.ledger, item.gang, &taken);
                if rest.total() > 0 {
                    let rank = GangRank::new(cycle.ledger.gang(item.gang), rest.elastic_state());
                    let turn = RankKey::new(Direction::Evict, rank);
                    let item = Item {
                        gang: item.gang,
                        allocated: rest.allocated(),
                        taken,
                    };
                    let leaf = self.leaves.get_mut(&queue).expect("the leaf is known");
                    let at = leaf.partly.partition_point(|(other, _)| *other < turn);
                    leaf.partly.insert(at, (turn, item));
                }
            }
            self.advance(cycle, search, queue);
            if skipped || unit.is_empty() {
                continue;
            }
            if !self.gangs.contains(&item.gang) && self.gangs_max.is_some() {
                if Some(self.gangs.len() as u32) == self.gangs_max {
                    return None;
                }
                self.gangs.push(item.gang);
            }
            let pods: SmallVec<[PodId; 2]> = unit.into();
            self.whole_gangs &= pods.len()
                == cycle
                    .ledger
                    .gang(item.gang)
                    .pod_sets
                    .iter()
                    .map(|set| set.pods.len())
                    .sum();
            return Some(Unit { gang: item.gang, pods });
        }
    }

    /// Finds the next gang of a leaf and tells the tournament.
    fn advance(&mut self, cycle: &Cycle<'_>, search: &Search<'_>, queue: QueueId) {
        let leaf = self.leaves.get_mut(&queue).expect("the leaf is known");
        let list = search.lists.victims.leaf(queue);
        while leaf.left > 0 && !search.accepts(cycle, list[leaf.left - 1].1) {
            leaf.left -= 1;
        }
        let fresh = (leaf.left > 0).then(|| list[leaf.left - 1]);
        let partly = leaf.partly.last().map(|(turn, _)| *turn);
        leaf.next = match (fresh, partly) {
            (Some((turn, _)), Some(partly)) if partly > turn => leaf.partly.pop(),
            (Some((turn, gang)), _) => {
                leaf.left -= 1;
                let allocated = cycle.ledger.gang(gang).allocated;
                Some((
                    turn,
                    Item {
                        gang,
                        taken: Vec::new(),
                        allocated,
                    },
                ))
            }
            (None, _) => leaf.partly.pop(),
        };
        let load = leaf.next.as_ref().map(|(_, item)| QueueChange {
            request: [0; 3],
            freed: plus(leaf.freed, item.allocated),
        });
        self.tournament.set(cycle.ledger, queue, load);
    }
}

/// Units already walked over, for all probes of one search: as long as units are whole gangs, what is recorded only takes
/// some of them away and never changes the order of the others.
pub(crate) struct Memo {
    walk: VictimWalk,
    units: Units,
    ended: bool,
}

impl Memo {
    pub(crate) fn new(walk: VictimWalk) -> Memo {
        Memo {
            walk,
            units: Units::default(),
            ended: false,
        }
    }

    /// Makes sure that unit `at` is there, if there is one.
    pub(crate) fn reach(&mut self, cycle: &Cycle<'_>, search: &Search<'_>, recorded: &Recorded, at: usize) -> bool {
        while !self.ended && self.units.get(at).is_none() {
            match self.walk.next(cycle, search, recorded) {
                Some(unit) => self.units.push(cycle, unit),
                None => self.ended = true,
            }
        }
        self.units.get(at).is_some()
    }

    pub(crate) fn units(&self) -> &Units {
        &self.units
    }

    /// Whether the walk serves a probe with these recorded victims as well.
    pub(crate) fn serves(&self, recorded: &Recorded) -> bool {
        let split = |unit: &Unit| {
            let known = unit.pods.iter().filter(|pod| recorded.contains(**pod)).count();
            known != 0 && known != unit.pods.len()
        };
        recorded.is_empty() || (self.walk.whole_gangs && !self.units.iter().any(split))
    }
}

/// Victims that a solution for fewer pods already needed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) pods: Vec<PodId>,
    set: rustc_hash::FxHashSet<PodId>,
}

impl Recorded {
    pub(crate) fn new(pods: Vec<PodId>) -> Recorded {
        let set = pods.iter().copied().collect();
        Recorded { pods, set }
    }

    pub(crate) fn contains(&self, pod: PodId) -> bool {
        self.set.contains(&pod)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}
