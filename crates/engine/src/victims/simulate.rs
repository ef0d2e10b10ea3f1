//! One what-if: evict the victims, then let them and the gang compete for the room in fair order.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::cycle::{Cycle, rank_of};
use crate::gangs::Candidates;
use crate::ids::{GangId, NodeId, PodId, QueueId};
use crate::model::Gpus;
use crate::order::{Direction, Tournament, Turn};
use crate::place::{Mode, NodeSet};
use crate::report::Status;
use crate::share::Load;
use crate::victims::solve::Search;

/// A leaf queue during a simulation: the gangs that take part, and the pending ones that merely hold a turn.
struct Leaf {
    /// Gangs that take part, the next one last.
    involved: Vec<(Turn, GangId)>,
    /// Pending gangs of the list not yet passed.
    left: usize,
}

impl Cycle<'_> {
    /// Whether `pods` of the gang find places once `victims` are evicted. Leaves everything in the ledger; the caller
    /// rolls back.
    pub(crate) fn simulate(&mut self, search: &Search<'_>, pods: &[PodId], victims: &[PodId]) -> bool {
        for pod in victims {
            if self.ledger.pod(*pod).place.status.is_active_allocated() {
                self.ledger.evict(*pod);
            }
        }
        let nodes = self.nodes_for(search, pods, victims);
        let mut leaves = self.involved_leaves(search.gang, victims);
        let mut left: usize = leaves.values().map(|leaf| leaf.involved.len()).sum();
        if leaves.len() > 1 {
            let mut tournament = Tournament::new(self.ledger, Direction::Serve, self.total);
            let part: FxHashSet<GangId> = leaves
                .values()
                .flat_map(|leaf| leaf.involved.iter().map(|(_, gang)| *gang))
                .collect();
            self.add_bystanders(search, &mut leaves, &part);
            let queues: Vec<QueueId> = sorted_keys(&leaves);
            for queue in queues {
                self.refresh_leaf(search, pods, &mut leaves, &mut tournament, queue);
            }
            while left > 0 && leaves.values().filter(|leaf| !leaf.involved.is_empty()).count() > 1 {
                let Some(queue) = tournament.best_leaf(self.ledger) else {
                    break;
                };
                let leaf = leaves.get_mut(&queue).expect("every leaf of the tournament is known");
                if let Some(gang) = pop_next(search, leaf, queue, &part) {
                    left -= 1;
                    if !self.try_gang(search, gang, pods, &nodes) {
                        return false;
                    }
                    tournament.touch(self.ledger, queue);
                }
                self.refresh_leaf(search, pods, &mut leaves, &mut tournament, queue);
            }
        }
        // Within one leaf the order is fixed, whoever else waits there.
        let queues = sorted_keys(&leaves);
        for queue in queues {
            let leaf = leaves.get_mut(&queue).expect("the leaf is known");
            let mut involved = std::mem::take(&mut leaf.involved);
            while let Some((_, gang)) = involved.pop() {
                if !self.try_gang(search, gang, pods, &nodes) {
                    return false;
                }
            }
        }
        true
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

    fn involved_leaves(&self, preemptor: GangId, victims: &[PodId]) -> FxHashMap<QueueId, Leaf> {
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
            leaf.involved
                .push((Turn::new(Direction::Serve, rank_of(self.ledger, gang)), gang));
        }
        leaves.values_mut().for_each(|leaf| leaf.involved.sort_unstable());
        leaves
    }

    /// Adds what influences whose turn it is: pending gangs of the leaves that take part, and of other leaves in
    /// branches that compete with each other. Queues apart from all of these only pass the time.
    fn add_bystanders(&self, search: &Search<'_>, leaves: &mut FxHashMap<QueueId, Leaf>, part: &FxHashSet<GangId>) {
        let ledger = &*self.ledger;
        let paths: Vec<Vec<QueueId>> = sorted_keys(leaves)
            .into_iter()
            .map(|leaf| {
                let mut path: Vec<QueueId> = ledger.queue_path(leaf).collect();
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
        let branches: Vec<QueueId> = paths.iter().filter_map(|path| path.get(common).copied()).collect();
        for queue in search.lists.pending.leaves() {
            let in_branch = ledger.queue_path(queue).any(|ancestor| branches.contains(&ancestor));
            if in_branch {
                let left = search.lists.pending.leaf(queue).len();
                leaves
                    .entry(queue)
                    .or_insert_with(|| Leaf {
                        involved: Vec::new(),
                        left: 0,
                    })
                    .left = left;
            }
        }
        for (queue, leaf) in leaves.iter_mut() {
            skip_involved(search, leaf, *queue, part);
        }
    }

    fn refresh_leaf(
        &self,
        search: &Search<'_>,
        pods: &[PodId],
        leaves: &mut FxHashMap<QueueId, Leaf>,
        tournament: &mut Tournament,
        queue: QueueId,
    ) {
        let leaf = leaves.get_mut(&queue).expect("the leaf is known");
        let mut own = Vec::new();
        let load = next_in(search, leaf, queue).map(|(gang, _)| {
            let request = if gang == search.gang {
                self.ledger.requested_by(pods, self.memory_min)
            } else {
                self.request_of(gang, Candidates::Simulated, &mut own)
            };
            Load { request, freed: [0; 3] }
        });
        tournament.set(self.ledger, queue, load);
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
                .place
                .node
                .into_iter()
                .chain(row.leaving.as_ref().and_then(|place| place.node))
            {
                allow(&mut allowed, node);
            }
        }
        NodeSet::Only(allowed)
    }
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

/// Passes the next gang of a leaf; returns it if it takes part.
fn pop_next(search: &Search<'_>, leaf: &mut Leaf, queue: QueueId, part: &FxHashSet<GangId>) -> Option<GangId> {
    let (gang, involved) = next_in(search, leaf, queue)?;
    if involved {
        leaf.involved.pop();
        return Some(gang);
    }
    leaf.left -= 1;
    skip_involved(search, leaf, queue, part);
    None
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
    match (row.evicted_from, row.place.status) {
        (Some(_), Status::Releasing) => Outcome::Evicted,
        (Some(_), Status::Pipelined) => Outcome::Moved,
        _ => Outcome::Kept,
    }
}
