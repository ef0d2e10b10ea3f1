//! One simulation: evict a set of victims, then place the victims and the gang again in fair order. All changes go into
//! the ledger; the caller keeps them or rolls them back.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::cycle::{Cycle, rank_of};
use crate::gangs::Candidates;
use crate::ids::{GangId, NodeId, PodId, QueueId};
use crate::model::{Gpus, QueueResources};
use crate::order::{Direction, RankKey};
use crate::place::{NodeSet, PlacementMode};
use crate::report::Status;
use crate::share::QueueChange;
use crate::victims::search_state::PendingQueueOrder;
use crate::victims::solve::Search;

/// The order in which a simulation places its participants: the gang and the gangs of its victims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SimulationOrder {
    /// All participants in fair order.
    Fair,
    /// The gang first, then the gangs of its victims in fair order.
    GangFirst,
}

/// A leaf queue during a simulation. Other pending gangs of the queue are not placed, but they delay its participants:
/// their requests count when the next queue is chosen.
struct SimulatedLeaf {
    /// Participants that are not placed yet; the next one is last.
    participants: Vec<(RankKey, GangId)>,
    /// How many gangs of [`SearchState::pending`](super::SearchState) were not passed yet.
    pending_left: usize,
}

impl Cycle<'_> {
    /// Evicts `victims` and places the participants; whether `pods` of the gang were placed.
    pub(crate) fn simulate(
        &mut self,
        search: &mut Search<'_>,
        pods: &[PodId],
        victims: &[PodId],
        order: SimulationOrder,
    ) -> bool {
        self.ledger.note_work(victims.len());
        for pod in victims {
            if self.ledger.pod(*pod).placement.status.is_active_allocated() {
                self.ledger.evict(*pod);
            }
        }
        let nodes = self.allowed_nodes(search, pods, victims);
        let mut leaves = self.participating_leaves(search.gang, victims, order);
        if order == SimulationOrder::GangFirst && !self.place_participant(search, search.gang, pods, &nodes) {
            return false;
        }
        let fits = count_contending(&leaves) <= 1 || self.place_in_fair_order(search, pods, &nodes, &mut leaves);
        // Within one leaf the order is fixed; other pending gangs do not change it.
        fits && sorted_keys(&leaves).into_iter().all(|queue| {
            let leaf = leaves.get_mut(&queue).expect("the leaf is known");
            let participants = std::mem::take(&mut leaf.participants);
            let mut gangs = participants.into_iter().rev();
            gangs.all(|(_, gang)| self.place_participant(search, gang, pods, &nodes))
        })
    }

    /// Places the participants of several leaves in fair order until only one leaf has participants left; false if the
    /// gang of the search could not be placed.
    fn place_in_fair_order(
        &mut self,
        search: &mut Search<'_>,
        pods: &[PodId],
        nodes: &NodeSet,
        leaves: &mut FxHashMap<QueueId, SimulatedLeaf>,
    ) -> bool {
        let participants = leaves.values().flat_map(|leaf| &leaf.participants);
        let all_participants: FxHashSet<GangId> = participants.map(|(_, gang)| *gang).chain([search.gang]).collect();
        let branches = self.competing_branches(leaves);
        let mut pending_order = match search.state.pending_order.take() {
            Some(pending_order) => pending_order,
            None => PendingQueueOrder::new(self.ledger, &search.state.pending, self.total, self.gpu_memory_min_mib),
        };
        for queue in sorted_keys(leaves) {
            let leaf = leaves.get_mut(&queue).expect("the leaf is known");
            leaf.pending_left = search.state.pending.leaf(queue).len();
            skip_participants(search, leaf, queue, &all_participants);
            self.refresh_leaf(search, pods, leaf, &mut pending_order, queue);
        }
        let mut contending = count_contending(leaves);
        let mut fits = true;
        while contending > 1 && !self.is_out_of_work() {
            self.ledger.note_work(4);
            let Some(queue) = pending_order.heap.best_leaf_below(self.ledger, &branches) else {
                break;
            };
            let leaf = leaves.entry(queue).or_insert_with(|| SimulatedLeaf {
                participants: Vec::new(),
                pending_left: search.state.pending.leaf(queue).len(),
            });
            if let Some(gang) = self.pop_participant(search, leaf, &mut pending_order, queue, &all_participants) {
                contending -= usize::from(leaf.participants.is_empty());
                if !self.place_participant(search, gang, pods, nodes) {
                    fits = false;
                    break;
                }
                pending_order.heap.invalidate(self.ledger, queue);
            }
            self.refresh_leaf(search, pods, leaf, &mut pending_order, queue);
        }
        for queue in leaves.keys() {
            pending_order.restore_leaf(self.ledger, *queue);
        }
        search.state.pending_order = Some(pending_order);
        fits && !self.is_out_of_work()
    }

    /// Places a participant; false if it is the gang of the search and could not be placed.
    fn place_participant(&mut self, search: &Search<'_>, gang: GangId, pods: &[PodId], nodes: &NodeSet) -> bool {
        if gang == search.gang {
            return self.place_gang(gang, pods, PlacementMode::Simulated, nodes).is_ok();
        }
        let mut own = Vec::new();
        self.ledger.pods_to_place(gang, Candidates::Simulated, &mut own);
        let _ = self.place_gang(gang, &own, PlacementMode::Simulated, nodes);
        true
    }

    /// The leaves of the gang and of its victims. With [`SimulationOrder::GangFirst`] the gang itself is not listed.
    fn participating_leaves(
        &self,
        preemptor: GangId,
        victims: &[PodId],
        order: SimulationOrder,
    ) -> FxHashMap<QueueId, SimulatedLeaf> {
        let mut gangs: Vec<GangId> = victims.iter().filter_map(|pod| self.ledger.pod(*pod).gang).collect();
        gangs.push(preemptor);
        gangs.sort_unstable();
        gangs.dedup();
        let mut leaves: FxHashMap<QueueId, SimulatedLeaf> = FxHashMap::default();
        for gang in gangs {
            let Some(queue) = self.ledger.gang(gang).queue else {
                continue;
            };
            let leaf = leaves.entry(queue).or_insert_with(|| SimulatedLeaf {
                participants: Vec::new(),
                pending_left: 0,
            });
            if gang == preemptor && order == SimulationOrder::GangFirst {
                continue;
            }
            leaf.participants
                .push((RankKey::new(Direction::Serve, rank_of(self.ledger, gang)), gang));
        }
        leaves.values_mut().for_each(|leaf| leaf.participants.sort_unstable());
        leaves
    }

    /// The sibling queues at which the paths from the root to the leaves diverge. Queues elsewhere can't change the order
    /// of the participants.
    fn competing_branches(&self, leaves: &FxHashMap<QueueId, SimulatedLeaf>) -> Vec<QueueId> {
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

    /// Tells the heap the request of the leaf's next gang.
    fn refresh_leaf(
        &self,
        search: &Search<'_>,
        pods: &[PodId],
        leaf: &SimulatedLeaf,
        pending_order: &mut PendingQueueOrder,
        queue: QueueId,
    ) {
        let change = next_in(search, leaf, queue).map(|(gang, is_participant)| {
            let request = if gang == search.gang {
                self.ledger.requested_by(pods, self.gpu_memory_min_mib)
            } else if is_participant {
                self.request_of(gang, Candidates::Simulated, &mut Vec::new())
            } else {
                pending_order.request(self.ledger, gang)
            };
            QueueChange {
                request,
                freed: QueueResources::ZERO,
            }
        });
        pending_order.heap.set(self.ledger, queue, change);
    }

    /// Removes the next gang of a leaf and returns it if it is a participant. Another pending gang is removed together with
    /// its successors of equal request: the leaf would stay the next one after each of them.
    fn pop_participant(
        &self,
        search: &Search<'_>,
        leaf: &mut SimulatedLeaf,
        pending_order: &mut PendingQueueOrder,
        queue: QueueId,
        participants: &FxHashSet<GangId>,
    ) -> Option<GangId> {
        let (gang, is_participant) = next_in(search, leaf, queue)?;
        if is_participant {
            leaf.participants.pop();
            return Some(gang);
        }
        let request = pending_order.request(self.ledger, gang);
        loop {
            self.ledger.note_work(1);
            leaf.pending_left -= 1;
            skip_participants(search, leaf, queue, participants);
            match next_in(search, leaf, queue) {
                Some((next, false)) if pending_order.request(self.ledger, next) == request => {}
                _ => return None,
            }
        }
    }

    /// The nodes that a simulation may use. If all pods of the gang request GPUs, the simulation is limited to nodes with
    /// available GPUs and nodes of victims, so that it does not move pods without GPUs to other nodes.
    fn allowed_nodes(&self, search: &Search<'_>, pods: &[PodId], victims: &[PodId]) -> NodeSet {
        let ledger = &*self.ledger;
        let cpu_only = |pod: &PodId| ledger.shape_of(*pod).is_cpu_only();
        let gang = ledger.gang(search.gang);
        let needs_cpu_nodes = gang.pod_sets.iter().flat_map(|set| &set.pods).any(&cpu_only);
        if needs_cpu_nodes || !victims.iter().chain(pods).any(cpu_only) {
            return NodeSet::All;
        }
        let mut allowed: Vec<bool> = search
            .state
            .base_capacity
            .gpus
            .iter()
            .map(|gpus| *gpus > Gpus::ZERO)
            .collect();
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

/// How many leaves still have participants.
fn count_contending(leaves: &FxHashMap<QueueId, SimulatedLeaf>) -> usize {
    leaves.values().filter(|leaf| !leaf.participants.is_empty()).count()
}

fn allow(allowed: &mut [bool], node: NodeId) {
    allowed[node.index()] = true;
}

fn sorted_keys(leaves: &FxHashMap<QueueId, SimulatedLeaf>) -> Vec<QueueId> {
    let mut keys: Vec<QueueId> = leaves.keys().copied().collect();
    keys.sort_unstable();
    keys
}

/// The next gang of a leaf, and whether it is a participant.
fn next_in(search: &Search<'_>, leaf: &SimulatedLeaf, queue: QueueId) -> Option<(GangId, bool)> {
    let pending = (leaf.pending_left > 0).then(|| search.state.pending.leaf(queue)[leaf.pending_left - 1]);
    match (leaf.participants.last(), pending) {
        (Some(participants), Some(pending)) if pending.0 > participants.0 => Some((pending.1, false)),
        (Some((_, gang)), _) => Some((*gang, true)),
        (None, pending) => pending.map(|(_, gang)| (gang, false)),
    }
}

/// Skips participants in the list of pending gangs: the leaf lists them as participants already.
fn skip_participants(search: &Search<'_>, leaf: &mut SimulatedLeaf, queue: QueueId, participants: &FxHashSet<GangId>) {
    let list = search.state.pending.leaf(queue);
    while leaf.pending_left > 0 && participants.contains(&list[leaf.pending_left - 1].1) {
        leaf.pending_left -= 1;
    }
}

/// What a simulation did with a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VictimOutcome {
    /// The pod is evicted and has no new node.
    Evicted,
    /// The pod is evicted and pipelined to a node.
    Moved,
    /// The pod stays on its node.
    Kept,
}

/// What the simulation in the ledger did with a victim.
pub(crate) fn victim_outcome(cycle: &Cycle<'_>, pod: PodId) -> VictimOutcome {
    let row = cycle.ledger.pod(pod);
    match (row.evicted_from, row.placement.status) {
        (Some(_), Status::Releasing) => VictimOutcome::Evicted,
        (Some(_), Status::Pipelined) => VictimOutcome::Moved,
        _ => VictimOutcome::Kept,
    }
}
