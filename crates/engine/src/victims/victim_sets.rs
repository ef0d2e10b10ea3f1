//! Sets of victims that a probe simulates, built from the eviction units that the victim iterator has yielded so far.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::cycle::Cycle;
use crate::ids::{GangId, NodeId, PodId};
use crate::model::Gpus;
use crate::victims::capacity::{BaseCapacity, FreedCapacity};
use crate::victims::recorded::RecordedVictims;

/// Pods of one gang that are evicted together.
#[derive(Clone, Debug)]
pub(crate) struct EvictionUnit {
    pub(crate) gang: GangId,
    pub(crate) pods: SmallVec<[PodId; 2]>,
}

/// Eviction units in the order of the victim iterator, indexed by node and by gang.
#[derive(Clone, Debug, Default)]
pub(crate) struct EvictionUnits {
    units: Vec<EvictionUnit>,
    /// Positions of the units with a pod on the node, ascending.
    by_node: FxHashMap<NodeId, Vec<u32>>,
    by_gang: FxHashMap<GangId, Vec<u32>>,
}

impl EvictionUnits {
    pub(crate) fn push(&mut self, cycle: &Cycle<'_>, unit: EvictionUnit) {
        let at = self.units.len() as u32;
        for pod in &unit.pods {
            let Some(node) = cycle.ledger.pod(*pod).placement.node else {
                continue;
            };
            let units = self.by_node.entry(node).or_default();
            if units.last() != Some(&at) {
                units.push(at);
            }
        }
        self.by_gang.entry(unit.gang).or_default().push(at);
        self.units.push(unit);
    }

    pub(crate) fn get(&self, at: usize) -> Option<&EvictionUnit> {
        self.units.get(at)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &EvictionUnit> {
        self.units.iter()
    }

    /// The first `count` units without those that contain recorded victims.
    pub(crate) fn taken<'u>(&'u self, count: usize, recorded: &'u RecordedVictims) -> TakenUnits<'u> {
        TakenUnits {
            units: self,
            count: count as u32,
            recorded,
        }
    }
}

/// The units that one probe has taken so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenUnits<'u> {
    units: &'u EvictionUnits,
    count: u32,
    recorded: &'u RecordedVictims,
}

/// A node with victims, ordered by available GPUs; nodes with equal GPUs are ordered by their first victim.
type NodeWithVictims = (Gpus, u32, Option<usize>, NodeId);

impl TakenUnits<'_> {
    fn unit(&self, at: u32) -> &EvictionUnit {
        &self.units.units[at as usize]
    }

    /// The units of a list of positions that were taken.
    fn taken_of<'a>(&'a self, list: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        let new = |at: &u32| *at < self.count && !self.unit(*at).pods.iter().any(|pod| self.recorded.contains(*pod));
        list.iter().copied().take_while(|at| *at < self.count).filter(new)
    }

    /// One set per node on which the gang of the last unit has a pod, in the order of node names: all taken units of every
    /// gang that has a victim on that node.
    pub(crate) fn sets_around_last(&self, cycle: &Cycle<'_>) -> Vec<Vec<PodId>> {
        let Some(last) = self.count.checked_sub(1) else {
            return Vec::new();
        };
        let pods = cycle
            .ledger
            .gang(self.unit(last).gang)
            .pod_sets
            .iter()
            .flat_map(|set| &set.pods);
        let mut nodes: SmallVec<[NodeId; 4]> = pods.filter_map(|pod| cycle.ledger.pod(*pod).placement.node).collect();
        nodes.sort_unstable_by_key(|node| cycle.ledger.node(*node).rank);
        nodes.dedup();
        let mut sets: Vec<Vec<PodId>> = Vec::new();
        for node in nodes {
            let Some(units) = self.units.by_node.get(&node) else {
                continue;
            };
            let mut gangs: SmallVec<[GangId; 8]> = SmallVec::new();
            for unit in self.taken_of(units) {
                let gang = self.unit(unit).gang;
                if !gangs.contains(&gang) {
                    gangs.push(gang);
                }
            }
            let of_gang = |gang: &GangId| {
                self.taken_of(&self.units.by_gang[gang])
                    .flat_map(|unit| &self.unit(unit).pods)
            };
            let set: Vec<PodId> = gangs.iter().flat_map(of_gang).copied().collect();
            if !set.is_empty() && !sets.contains(&set) {
                sets.push(set);
            }
        }
        sets
    }

    /// Sets that clear a growing number of nodes, those with the fewest available GPUs first. The first set clears as few
    /// nodes as could be enough; the number of nodes that are added doubles with every set.
    pub(crate) fn sets_over_nodes(
        &self,
        cycle: &Cycle<'_>,
        base: &BaseCapacity,
        freed: &FreedCapacity,
        recorded: &FreedCapacity,
    ) -> Vec<Vec<PodId>> {
        let (nodes, on_nodes) = self.nodes_with_victims(cycle, base, freed, recorded);
        let demand: Gpus = freed.requested_gpus().iter().copied().sum();
        // GPUs of nodes without taken victims.
        let elsewhere = base.total + recorded.freed_gpus() - on_nodes;
        let missing = demand - elsewhere;
        let mut count = 0;
        if missing > Gpus::ZERO {
            let mut covered = Gpus::ZERO;
            let enough = nodes.iter().position(|(gpus, ..)| {
                covered += *gpus;
                covered >= missing
            });
            let Some(enough) = enough else { return Vec::new() };
            count = enough + 1;
        }
        let (mut sets, mut step) = (Vec::new(), 1);
        loop {
            let chosen = nodes[..count]
                .iter()
                .flat_map(|(.., node)| self.taken_of(&self.units.by_node[node]));
            let mut units: Vec<u32> = chosen.collect();
            cycle.ledger.note_work(units.len());
            units.sort_unstable();
            units.dedup();
            sets.push(units.iter().flat_map(|unit| &self.unit(*unit).pods).copied().collect());
            if count >= nodes.len() {
                return sets;
            }
            count = (count + step).min(nodes.len());
            step *= 2;
        }
    }

    /// The nodes with taken victims that could hold the smallest pending pod, in order; and the GPUs that are available on
    /// all nodes with taken victims once the recorded victims are gone.
    fn nodes_with_victims(
        &self,
        cycle: &Cycle<'_>,
        base: &BaseCapacity,
        freed: &FreedCapacity,
        recorded: &FreedCapacity,
    ) -> (Vec<NodeWithVictims>, Gpus) {
        let smallest = freed.requested_gpus().last().copied().unwrap_or_default();
        let (mut nodes, mut on_nodes) = (Vec::new(), Gpus::ZERO);
        for (node, units) in &self.units.by_node {
            let Some(first) = self.taken_of(units).next() else {
                continue;
            };
            on_nodes += recorded.gpus_on(base, *node);
            let gpus = freed.gpus_on(base, *node);
            if smallest == Gpus::ZERO || gpus >= smallest {
                let on_node = |pod: &PodId| cycle.ledger.pod(*pod).placement.node == Some(*node);
                let position = self.unit(first).pods.iter().position(on_node);
                nodes.push((gpus, first, position, *node));
            }
        }
        nodes.sort_unstable();
        cycle.ledger.note_work(self.units.by_node.len());
        (nodes, on_nodes)
    }
}
