//! Finds gangs whose end would make room for the waiting gang: evictions and placements in the ledger, which the journal rolls back.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::cluster::Cluster;
use crate::cycle::Cycle;
use crate::gangs::Candidates;
use crate::ids::{GangId, NodeId, PodId, ShapeId};
use crate::ledger::Ledger;
use crate::model::QueueResources;
use crate::place::{NodeSet, PlacementFailure, PlacementMode, static_check};
use crate::remedies::Step;
use crate::remedies::carry_out::pods_of;
use crate::remedies::nodes::{large_enough, nearest_nodes};
use crate::remedies::trial::Trials;

/// How many gangs one remedy may end.
const ENDED_MAX: usize = 32;
/// How many nodes are looked at one by one.
const NODES_MAX: usize = 8;

/// The gangs that a remedy may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Gangs in the queue of the waiting gang: its owners can end them.
    SameQueue,
    /// All gangs.
    Any,
}

/// A gang that may be ended.
#[derive(Clone, Copy)]
struct Candidate {
    gang: GangId,
    held: QueueResources,
    /// The first of its nodes, by name.
    node_rank: u32,
}

/// Steps that end gangs of the cluster, after which the waiting gang would have a place there; `None` if none were found.
pub(super) fn ends(trials: &mut Trials<'_>, mut cluster: Cluster, whose: Whose) -> Option<Vec<Step>> {
    let gang = trials.gang;
    let start = cluster.ledger.work();
    let ends = {
        let mut pods = Vec::new();
        cluster.ledger.pods_to_place(gang, Candidates::Waiting, &mut pods);
        let shape = cluster.ledger.pod(*pods.first()?).shape;
        let nodes: Vec<NodeId> = match pods.len() {
            1 => nearest_nodes(&cluster, shape, NODES_MAX)
                .into_iter()
                .map(|(node, ..)| node)
                .collect(),
            _ => Vec::new(),
        };
        let large = large_enough(&cluster, shape);
        let candidates = candidates(&cluster.ledger, gang, shape, whose);
        cluster.ledger.start_journal();
        let mut ignore = |_| {};
        let mut cycle = cluster.begin(trials.config, start, &mut ignore);
        cycle.work_end = start.saturating_add(trials.steps_left());
        let mut search = EndSearch {
            cycle: &mut cycle,
            gang,
            pods,
        };
        let best = search.best(&candidates, &nodes, &large);
        best.map(|best| best.into_iter().map(|gang| end(cycle.ledger, gang)).collect())
    };
    let checkpoint = cluster.ledger.checkpoint();
    debug_assert_eq!(cluster.ledger.changed_since(checkpoint).len(), 0);
    trials.spend(cluster.ledger.work() - start);
    ends
}

/// The step that ends a gang.
fn end(ledger: &Ledger, gang: GangId) -> Step {
    let row = ledger.gang(gang);
    let alive = |pod: &PodId| ledger.pod(*pod).observed.status.is_alive();
    let allocated = |pod: &PodId| ledger.pod(*pod).observed.status.is_allocated();
    let pods = pods_of(row);
    Step::End {
        gang: row.key.clone(),
        pods: pods.iter().filter(|pod| alive(pod)).count() as u32,
        waits: !pods.iter().any(allocated),
    }
}

/// Gangs with pods that have a place: those that hold the most on nodes of the shape first, and gangs of one node next to each other.
fn candidates(ledger: &Ledger, gang: GangId, shape: ShapeId, whose: Whose) -> Vec<Candidate> {
    let (queue, shape) = (ledger.gang(gang).queue, ledger.shape(shape));
    let mut found: FxHashMap<GangId, Candidate> = FxHashMap::default();
    ledger.note_work(ledger.present_nodes);
    for node in ledger.nodes.iter().filter(|node| node.present) {
        let usable = static_check(node, shape).is_ok();
        ledger.note_work(node.pods.len());
        for pod in &node.pods {
            let row = ledger.pod(*pod);
            let Some(holder) = row
                .gang
                .filter(|holder| *holder != gang && row.placement.status.is_active_allocated())
            else {
                continue;
            };
            if whose == Whose::SameQueue && ledger.gang(holder).queue != queue {
                continue;
            }
            let candidate = found.entry(holder).or_insert(Candidate {
                gang: holder,
                held: QueueResources::ZERO,
                node_rank: node.rank,
            });
            if usable {
                candidate.held += ledger.shape(row.shape).accepted(node.memory_mib);
                candidate.node_rank = candidate.node_rank.min(node.rank);
            }
        }
    }
    let mut candidates: Vec<Candidate> = found.into_values().collect();
    let held = |candidate: &Candidate| {
        let held = candidate.held;
        (held.gpus, held.cpu_milli, held.memory_bytes)
    };
    candidates.sort_by(|a, b| {
        held(b)
            .cmp(&held(a))
            .then_with(|| a.node_rank.cmp(&b.node_rank))
            .then_with(|| ledger.gang(a.gang).key.cmp(&ledger.gang(b.gang).key))
    });
    candidates
}

struct EndSearch<'s, 'a> {
    cycle: &'s mut Cycle<'a>,
    gang: GangId,
    pods: Vec<PodId>,
}

impl EndSearch<'_, '_> {
    /// The smallest set of gangs that was found: on one of `nodes`, or anywhere.
    fn best(&mut self, candidates: &[Candidate], nodes: &[NodeId], large: &[NodeId]) -> Option<Vec<GangId>> {
        let mut best: Option<Vec<GangId>> = None;
        for node in nodes.iter().filter(|node| large.contains(node)) {
            let holders: FxHashSet<GangId> = {
                let ledger = &*self.cycle.ledger;
                let pods = ledger.node(*node).pods.iter();
                pods.filter_map(|pod| ledger.pod(*pod).gang).collect()
            };
            let there = candidates.iter().filter(|candidate| holders.contains(&candidate.gang));
            let there: Vec<Candidate> = there.copied().collect();
            let mut only = vec![false; self.cycle.ledger.nodes.len()];
            only[node.index()] = true;
            let found = self.search(&there, &NodeSet::Only(only));
            best = self.smaller(best, found);
        }
        let found = self.search(candidates, &NodeSet::All);
        self.smaller(best, found)
    }

    /// The set with fewer gangs, then with fewer pods.
    fn smaller(&self, best: Option<Vec<GangId>>, found: Option<Vec<GangId>>) -> Option<Vec<GangId>> {
        let (Some(known), Some(new)) = (&best, &found) else {
            return best.or(found);
        };
        let pods = |gangs: &[GangId]| -> u32 {
            let gangs = gangs.iter().map(|gang| self.cycle.ledger.gang(*gang));
            gangs.map(crate::tables::Gang::active_allocated).sum()
        };
        let size = |gangs: &[GangId]| (gangs.len(), pods(gangs));
        if size(new) < size(known) { found } else { best }
    }

    /// Ends one candidate after the other until the waiting gang fits, then leaves out those that are not needed.
    fn search(&mut self, candidates: &[Candidate], nodes: &NodeSet) -> Option<Vec<GangId>> {
        let mut ended: Vec<GangId> = Vec::new();
        loop {
            let below = match self.place_without(&ended, nodes) {
                Ok(()) => break,
                Err(PlacementFailure::Bound(bound)) => Some(bound.queue),
                Err(PlacementFailure::Pod { .. } | PlacementFailure::NoDomain { .. }) => None,
                Err(
                    PlacementFailure::NoPods | PlacementFailure::OutOfWork | PlacementFailure::TopologyUnknown { .. },
                ) => return None,
            };
            if ended.len() >= ENDED_MAX {
                return None;
            }
            let ledger = &*self.cycle.ledger;
            let charged = |candidate: &&Candidate| {
                let leaf = ledger.gang(candidate.gang).queue;
                below.is_none_or(|below| leaf.is_some_and(|leaf| ledger.queue_path(leaf).any(|queue| queue == below)))
            };
            let next = candidates
                .iter()
                .find(|candidate| !ended.contains(&candidate.gang) && charged(candidate));
            ended.push(next?.gang);
        }
        let mut at = 0;
        while at < ended.len() {
            let mut fewer = ended.clone();
            fewer.remove(at);
            if self.place_without(&fewer, nodes).is_ok() {
                ended = fewer;
            } else {
                at += 1;
            }
        }
        (!ended.is_empty()).then_some(ended)
    }

    /// Whether the waiting gang would have a place without these gangs. Changes nothing.
    fn place_without(&mut self, ended: &[GangId], nodes: &NodeSet) -> Result<(), PlacementFailure> {
        let checkpoint = self.cycle.ledger.checkpoint();
        for gang in ended {
            for pod in pods_of(self.cycle.ledger.gang(*gang)) {
                self.cycle.ledger.note_work(1);
                if self.cycle.ledger.pod(pod).placement.status.is_active_allocated() {
                    self.cycle.ledger.evict(pod);
                }
            }
        }
        let result = self
            .cycle
            .place_gang(self.gang, &self.pods, PlacementMode::Simulated, nodes);
        self.cycle.ledger.rollback(checkpoint);
        result
    }
}
