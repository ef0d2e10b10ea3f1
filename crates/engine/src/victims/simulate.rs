//! One what-if: evict the victims, then let them and the gang compete for the room in fair order.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::cycle::{Cycle, rank_of};
use crate::gangs::Candidates;
use crate::ids::{GangId, NodeId, PodId, QueueId};
use crate::model::Gpus;
use crate::order::{Direction, RankKey};
use crate::place::{Mode, NodeSet};
use crate::report::Status;
use crate::share::QueueChange;
use crate::victims::lists::PendingTurns;
use crate::victims::solve::Search;

/// Who looks for a place first once the victims are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The gang and its victims as fairness says.
    Fair,
    /// The gang, then its victims as fairness says.
    GangFirst,
}

/// A leaf queue during a simulation: the gangs that take part, and the pending ones that merely hold a turn.
struct Leaf {
    /// Gangs that take part, the next one last.
    involved: Vec<(RankKey, GangId)>,
    /// Pending gangs of the list not yet passed.
    left: usize,
}

impl Cycle<'_> {
    /// Whether `pods` of the gang find places once `victims` are evicted. Leaves everything in the ledger; the caller
    /// rolls back.
    pub(crate) fn simulate(
        &mut self,
        search: &mut Search<'_>,
        pods: &[PodId],
        victims: &[PodId],
        order: Order,
    ) -> bool {
        self.ledger.note_work(victims.len());
        for pod in victims {
            if self.ledger.pod(*pod).placement.status.is_active_allocated() {
                self.ledger.evict(*pod);
            }
        }
        let nodes = self.nodes_for(search, pods, victims);
        let mut leaves = self.involved_leaves(search.gang, victims, order);
        if order == Order::GangFirst && !self.try_gang(search, search.gang, pods, &nodes) {
            return false;
        }
        let fits = contending(&leaves) <= 1 || self.compete(search, pods, &nodes, &mut leaves);
        // Within one leaf the order is fixed, whoever else waits there.
        fits && sorted_keys(&leaves).into_iter().all(|queue| {
            let leaf = leaves.get_mut(&queue).expect("the leaf is known");
            let involved = std::mem::take(&mut leaf.involved);
            let mut gangs = involved.into_iter().rev();
            gangs.all(|(_, gang)| self.try_gang(search, gang, pods, &nodes))
        })
    }

    /// Tries the gangs of several leaves in fair order, until those of one leaf are left; false = the gang that all this is
    /// for failed.
    fn compete(
        &mut self,
        search: &mut Search<'_>,
        pods: &[PodId],
        nodes: &NodeSet,
        leaves: &mut FxHashMap<QueueId, Leaf>,
    ) -> bool {
        let involved = leaves.values().flat_map(|leaf| &leaf.involved);
        let part: FxHashSet<GangId> = involved.map(|(_, gang)| *gang).chain([search.gang]).collect();
        let branches = self.competing_branches(leaves);
        let mut turns = match search.lists.turns.take() {
            Some(turns) => turns,
            None => PendingTurns::new(self.ledger, &search.lists.pending, self.total, self.gpu_memory_min_mib),
        };
        for queue in sorted_keys(leaves) {
            let leaf = leaves.get_mut(&queue).expect("the leaf is known");
            leaf.left = search.lists.pending.leaf(queue).len();
            skip_involved(search, leaf, queue, &part);
            self.refresh_leaf(search, pods, leaf, &mut turns, queue);
        }
        let mut contending = contending(leaves);
        let mut fits = true;
        while contending > 1 && !self.is_out_of_work() {
            self.ledger.note_work(4);
            let Some(queue) = turns.tournament.best_leaf_below(self.ledger, &branches) else {
                break;
            };
            let leaf = leaves.entry(queue).or_insert_with(|| Leaf {
                involved: Vec::new(),
                left: search.lists.pending.leaf(queue).len(),
            });
            if let Some(gang) = self.pop_next(search, leaf, &mut turns, queue, &part) {
                contending -= usize::from(leaf.involved.is_empty());
                if !self.try_gang(search, gang, pods, nodes) {
                    fits = false;
                    break;
                }
                turns.tournament.invalidate(self.ledger, queue);
            }
            self.refresh_leaf(search, pods, leaf, &mut turns, queue);
        }
        for queue in leaves.keys() {
            turns.restore(self.ledger, *queue);
        }
        search.lists.turns = Some(turns);
        fits && !self.is_out_of_work()
    }

    /// Tries a gang that takes part; false = it was the one that all this is for, and it failed.
    fn try_gang(&mut self, search: &Search<'_>, gang: GangId, pods: &[PodId], nodes: &NodeSet) -> bool {
        if gang == search.gang {
            return self.place_gang(gang, pods, Mode::Simulated, nodes).is_ok();
        }
        let mut own = Vec::new();
        self.ledger.pods_to_place(gang, Candidates::Simulated, &mut own);
        let _ = self.place_gang(gang, &own, Mode::Simulated, nodes);
        true
    }

    /// The leaves of the gang and of its victims. A gang that goes first takes no part in what follows.
    fn involved_leaves(&self, preemptor: GangId, victims: &[PodId], order: Order) -> FxHashMap<QueueId, Leaf> {
        let mut gangs: Vec<GangId> = victims.iter().filter_map(|pod| self.ledger.pod(*pod).gang).collect();
        gangs.push(preemptor);
        gangs.sort_unstable();
        gangs.dedup();
        let mut leaves: FxHashMap<QueueId, Leaf> = FxHashMap::default();
        for gang in gangs {
            let Some(queue) = self.ledger.gang(gang).queue else {
                continue;
            };
            let leaf = leaves.entry(queue).or_insert_with(|| Leaf {
                involved: Vec::new(),
                left: 0,
            });
            if gang == preemptor && order == Order::GangFirst {
                continue;
            }
            leaf.involved
                .push((RankKey::new(Direction::Serve, rank_of(self.ledger, gang)), gang));
        }
        leaves.values_mut().for_each(|leaf| leaf.involved.sort_unstable());
        leaves
    }

    /// The queues below which gangs compete with each other: where the ways to the leaves part. Queues apart from all of
    /// these only pass the time.
    fn competing_branches(&self, leaves: &FxHashMap<QueueId, Leaf>) -> Vec<QueueId> {
        let paths: Vec<Vec<QueueId>> = sorted_keys(leaves)
            .into_iter()
            .map(|leaf| {
                let mut path: Vec<QueueId> = self.ledger.queue_path(leaf).collect();
                path.reverse();
                path
            })
            .collect();
        let common = (0..)
            .take_while(|depth| {
                paths
                    .iter()
                    .all(|path| path.get(*depth).is_some_and(|id| Some(id) == paths[0].get(*depth)))
            })
            .count();
        let mut branches: Vec<QueueId> = paths.iter().filter_map(|path| path.get(common).copied()).collect();
        branches.sort_unstable();
        branches.dedup();
        branches
    }

    fn refresh_leaf(&self, search: &Search<'_>, pods: &[PodId], leaf: &Leaf, turns: &mut PendingTurns, queue: QueueId) {
        let load = next_in(search, leaf, queue).map(|(gang, takes_part)| {
            let request = if gang == search.gang {
                self.ledger.requested_by(pods, self.gpu_memory_min_mib)
            } else if takes_part {
                self.request_of(gang, Candidates::Simulated, &mut Vec::new())
            } else {
                turns.request(self.ledger, gang)
            };
            QueueChange { request, freed: [0; 3] }
        });
        turns.tournament.set(self.ledger, queue, load);
    }

    /// Passes the next gang of a leaf; returns it if it takes part. One that does not is passed together with those after
    /// it that ask for the same: the leaf would have its turn again at once.
    fn pop_next(
        &self,
        search: &Search<'_>,
        leaf: &mut Leaf,
        turns: &mut PendingTurns,
        queue: QueueId,
        part: &FxHashSet<GangId>,
    ) -> Option<GangId> {
        let (gang, takes_part) = next_in(search, leaf, queue)?;
        if takes_part {
            leaf.involved.pop();
            return Some(gang);
        }
        let request = turns.request(self.ledger, gang);
        loop {
            self.ledger.note_work(1);
            leaf.left -= 1;
            skip_involved(search, leaf, queue, part);
            match next_in(search, leaf, queue) {
                Some((next, false)) if turns.request(self.ledger, next) == request => {}
                _ => return None,
            }
        }
    }

    /// The nodes that a simulation may use. A gang whose pods all need GPUs looks only at nodes that have some, so pods
    /// without GPUs must not be moved elsewhere for its sake.
    fn nodes_for(&self, search: &Search<'_>, pods: &[PodId], victims: &[PodId]) -> NodeSet {
        let ledger = &*self.ledger;
        let cpu_only = |pod: &PodId| ledger.shape_of(*pod).is_cpu_only();
        let gang = ledger.gang(search.gang);
        let needs_cpu_nodes = gang.pod_sets.iter().flat_map(|set| &set.pods).any(&cpu_only);
        if needs_cpu_nodes || !victims.iter().chain(pods).any(cpu_only) {
            return NodeSet::All;
        }
        let mut allowed: Vec<bool> = search.lists.room.gpus.iter().map(|room| *room > Gpus::ZERO).collect();
        for pod in victims {
            let row = ledger.pod(*pod);
            for node in row
                .placement
                .node
                .into_iter()
                .chain(row.old_placement.as_ref().and_then(|place| place.node))
            {
                allow(&mut allowed, node);
            }
        }
        NodeSet::Only(allowed)
    }
}

/// How many leaves have gangs that take part.
fn contending(leaves: &FxHashMap<QueueId, Leaf>) -> usize {
    leaves.values().filter(|leaf| !leaf.involved.is_empty()).count()
}

fn allow(allowed: &mut [bool], node: NodeId) {
    allowed[node.index()] = true;
}

fn sorted_keys(leaves: &FxHashMap<QueueId, Leaf>) -> Vec<QueueId> {
    let mut keys: Vec<QueueId> = leaves.keys().copied().collect();
    keys.sort_unstable();
    keys
}

/// The next gang of a leaf, and whether it takes part.
fn next_in(search: &Search<'_>, leaf: &Leaf, queue: QueueId) -> Option<(GangId, bool)> {
    let bystander = (leaf.left > 0).then(|| search.lists.pending.leaf(queue)[leaf.left - 1]);
    match (leaf.involved.last(), bystander) {
        (Some(involved), Some(bystander)) if bystander.0 > involved.0 => Some((bystander.1, false)),
        (Some((_, gang)), _) => Some((*gang, true)),
        (None, bystander) => bystander.map(|(_, gang)| (gang, false)),
    }
}

/// A gang that takes part has its turn as such, not once more as a pending one.
fn skip_involved(search: &Search<'_>, leaf: &mut Leaf, queue: QueueId, part: &FxHashSet<GangId>) {
    let list = search.lists.pending.leaf(queue);
    while leaf.left > 0 && part.contains(&list[leaf.left - 1].1) {
        leaf.left -= 1;
    }
}

/// How a victim came out of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has to go.
    Evicted,
    /// It goes, and has a new place.
    Moved,
    /// It stays where it is.
    Kept,
}

/// How the victim came out of the simulation that is in the ledger.
pub(crate) fn outcome(cycle: &Cycle<'_>, pod: PodId) -> Outcome {
    let row = cycle.ledger.pod(pod);
    match (row.evicted_from, row.placement.status) {
        (Some(_), Status::Releasing) => Outcome::Evicted,
        (Some(_), Status::Pipelined) => Outcome::Moved,
        _ => Outcome::Kept,
    }
}
