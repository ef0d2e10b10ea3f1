//! Which sets of victims are worth a simulation, given the victims taken so far.

use rustc_hash::FxHashMap;

use crate::cluster::ResourceNames;
use crate::cycle::Cycle;
use crate::ids::{GangId, NodeId, PodId};
use crate::ledger::Ledger;
use crate::model::Gpus;
use crate::victims::walk::Recorded;

/// How sets of victims are chosen from those taken so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generator {
    /// All victims that have to do with one node of the last one.
    NodeLocal,
    /// Victims of as few nodes as could be enough, then more and more of them.
    MultiNode,
}

impl Generator {
    pub(crate) const ALL: [Generator; 2] = [Generator::NodeLocal, Generator::MultiNode];
}

/// GPUs that could be had on each node: free, being freed, and held by victims. Only a sum by count, so it can rule a
/// set of victims out but never in.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    /// GPUs of each pending pod, largest first.
    needs: Vec<Gpus>,
    /// All pods need the same, and it is not nothing.
    uniform: Option<Gpus>,
    /// Room per node where it differs from the base.
    extra: FxHashMap<NodeId, Gpus>,
    /// For uniform needs: how many pods find room.
    slots: i64,
}

impl Room {
    pub(crate) fn new(needs: Vec<Gpus>, base: &mut BaseRoom) -> Room {
        let uniform = needs
            .first()
            .copied()
            .filter(|first| *first > Gpus::ZERO && needs.last() == Some(first));
        let slots = uniform.map_or(0, |need| base.slots(need));
        Room {
            needs,
            uniform,
            extra: FxHashMap::default(),
            slots,
        }
    }

    /// Adds what a victim holds.
    pub(crate) fn add(&mut self, cycle: &Cycle<'_>, base: &BaseRoom, pod: PodId) {
        let Some((node, gpus)) = held(cycle, pod) else { return };
        let extra = self.extra.entry(node).or_default();
        let before = base.gpus[node.index()] + *extra;
        *extra += gpus;
        if let Some(need) = self.uniform {
            self.slots += slots(before + gpus, need) - slots(before, need);
        }
    }

    /// Takes away again what a victim holds.
    pub(crate) fn remove(&mut self, cycle: &Cycle<'_>, base: &BaseRoom, pod: PodId) {
        let Some((node, gpus)) = held(cycle, pod) else { return };
        let extra = self.extra.entry(node).or_default();
        let before = base.gpus[node.index()] + *extra;
        *extra -= gpus;
        if let Some(need) = self.uniform {
            self.slots += slots(before - gpus, need) - slots(before, need);
        }
    }

    /// Whether the pods could find room, counting GPUs only.
    pub(crate) fn suffices(&self, base: &BaseRoom) -> bool {
        if self.uniform.is_some() {
            return self.slots >= self.needs.len() as i64;
        }
        let largest = self.needs.first().copied().unwrap_or_default();
        if largest == Gpus::ZERO {
            return true;
        }
        let room = |node: usize| base.gpus[node] + self.extra.get(&NodeId::new(node)).copied().unwrap_or_default();
        let mut nodes: Vec<Gpus> = (0..base.gpus.len())
            .map(room)
            .filter(|room| *room > Gpus::ZERO)
            .collect();
        nodes.sort_unstable_by(|a, b| b.cmp(a));
        nodes.truncate(self.needs.len());
        // Largest first into the first that has room left: if even that fails by count, no placement can succeed.
        // With equal sizes it is exact; otherwise it may only err towards trying.
        let total: Gpus = nodes.iter().copied().sum();
        let needed: Gpus = self.needs.iter().copied().sum();
        nodes.first().is_some_and(|most| *most >= largest) && total >= needed
    }

    fn at(&self, base: &BaseRoom, node: NodeId) -> Gpus {
        base.gpus[node.index()] + self.extra.get(&node).copied().unwrap_or_default()
    }
}

fn slots(room: Gpus, need: Gpus) -> i64 {
    (room.0 / need.0).max(0)
}

/// The node of a pod and the GPUs it is charged there.
fn held(cycle: &Cycle<'_>, pod: PodId) -> Option<(NodeId, Gpus)> {
    let row = cycle.ledger.pod(pod);
    let node = row.place.node?;
    let accepted = cycle
        .ledger
        .shape(row.shape)
        .accepted(cycle.ledger.node(node).memory_mib);
    Some((node, Gpus(accepted[crate::tables::SHARE_GPU])))
}

/// GPUs free or being freed per node before any victim is taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct BaseRoom {
    pub(crate) gpus: Vec<Gpus>,
    pub(crate) total: Gpus,
    cursor: Option<u64>,
    /// How many pods of the need asked for last find room.
    slots: Option<(Gpus, i64)>,
}

impl BaseRoom {
    /// Follows what changed in the ledger.
    pub(crate) fn catch_up(&mut self, ledger: &Ledger, resources: &ResourceNames) {
        let mig = |resource| resources.mig_gpus(resource);
        let room = |node: NodeId| {
            let node = ledger.node(node);
            node.idle_gpus(mig) + node.releasing_gpus(mig)
        };
        match self.cursor.and_then(|cursor| ledger.touched.since(cursor)) {
            Some(touched) => {
                for node in touched {
                    let now = room(*node);
                    let before = std::mem::replace(&mut self.gpus[node.index()], now);
                    self.total += now - before;
                    if let Some((need, count)) = &mut self.slots {
                        *count += slots(now, *need) - slots(before, *need);
                    }
                }
            }
            None => {
                self.gpus = (0..ledger.nodes.len()).map(NodeId::new).map(room).collect();
                self.total = self.gpus.iter().copied().sum();
                self.slots = None;
            }
        }
        self.cursor = Some(ledger.touched.end());
    }

    /// How many pods that need so many GPUs find room, each node counted on its own.
    pub(crate) fn slots(&mut self, need: Gpus) -> i64 {
        match self.slots {
            Some((known, count)) if known == need => count,
            Some(_) | None => {
                let count = self.gpus.iter().map(|room| slots(*room, need)).sum();
                self.slots = Some((need, count));
                count
            }
        }
    }
}

/// Victims taken so far for one probe, unit by unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken {
    units: Vec<(GangId, Vec<PodId>)>,
    /// Units with a pod on the node, in the order in which they were taken.
    by_node: FxHashMap<NodeId, Vec<u32>>,
    /// Units of the gang.
    by_gang: FxHashMap<GangId, Vec<u32>>,
    /// When a node first lost a pod, to order nodes of equal room.
    first_seen: FxHashMap<NodeId, u32>,
}

impl Taken {
    pub(crate) fn push(&mut self, cycle: &Cycle<'_>, gang: GangId, pods: Vec<PodId>) {
        let unit = self.units.len() as u32;
        for pod in &pods {
            let Some(node) = cycle.ledger.pod(*pod).place.node else {
                continue;
            };
            let units = self.by_node.entry(node).or_default();
            if units.last() != Some(&unit) {
                units.push(unit);
            }
            let seen = self.first_seen.len() as u32;
            self.first_seen.entry(node).or_insert(seen);
        }
        self.by_gang.entry(gang).or_default().push(unit);
        self.units.push((gang, pods));
    }

    /// Sets around the last victim: per node of its gang, by name, everything taken of gangs with a victim there.
    pub(crate) fn around_last(&self, cycle: &Cycle<'_>, recorded: &Recorded) -> Vec<Vec<PodId>> {
        let Some((gang, _)) = self.units.last() else {
            return Vec::new();
        };
        let pods = cycle.ledger.gang(*gang).pod_sets.iter().flat_map(|set| &set.pods);
        let mut nodes: Vec<NodeId> = pods.filter_map(|pod| cycle.ledger.pod(*pod).place.node).collect();
        nodes.sort_unstable_by_key(|node| cycle.ledger.node(*node).rank);
        nodes.dedup();
        let mut sets: Vec<Vec<PodId>> = Vec::new();
        for node in nodes {
            let Some(units) = self.by_node.get(&node) else { continue };
            let mut gangs: Vec<GangId> = Vec::new();
            for unit in units {
                let gang = self.units[*unit as usize].0;
                if !gangs.contains(&gang) {
                    gangs.push(gang);
                }
            }
            let of_gang = |gang: &GangId| self.by_gang[gang].iter().flat_map(|unit| &self.units[*unit as usize].1);
            let set: Vec<PodId> = gangs
                .iter()
                .flat_map(of_gang)
                .copied()
                .filter(|pod| !recorded.contains(*pod))
                .collect();
            if !set.is_empty() && !sets.contains(&set) {
                sets.push(set);
            }
        }
        sets
    }

    /// Sets over growing numbers of nodes, the least room first: from the fewest nodes that could be enough, doubling
    /// the step each time.
    pub(crate) fn by_nodes(&self, base: &BaseRoom, room: &Room, recorded: &Room) -> Vec<Vec<PodId>> {
        let smallest = room.needs.last().copied().unwrap_or_default();
        let mut nodes: Vec<(Gpus, u32, NodeId)> = self
            .by_node
            .keys()
            .map(|node| (room.at(base, *node), self.first_seen[node], *node))
            .filter(|(gpus, _, _)| smallest == Gpus::ZERO || *gpus >= smallest)
            .collect();
        nodes.sort_unstable();
        let demand: Gpus = room.needs.iter().copied().sum();
        // What is there without touching the nodes of victims.
        let with_victims: Gpus = self.by_node.keys().map(|node| recorded.at(base, *node)).sum();
        let baseline = base.total + recorded.extra.values().copied().sum() - with_victims;
        let missing = demand - baseline;
        let mut count = 0;
        if missing > Gpus::ZERO {
            let mut covered = Gpus::ZERO;
            let enough = nodes.iter().position(|(gpus, _, _)| {
                covered += *gpus;
                covered >= missing
            });
            let Some(enough) = enough else { return Vec::new() };
            count = enough + 1;
        }
        let (mut sets, mut step) = (Vec::new(), 1);
        loop {
            let mut units: Vec<u32> = nodes[..count]
                .iter()
                .flat_map(|(_, _, node)| &self.by_node[node])
                .copied()
                .collect();
            units.sort_unstable();
            units.dedup();
            sets.push(
                units
                    .iter()
                    .flat_map(|unit| &self.units[*unit as usize].1)
                    .copied()
                    .collect(),
            );
            if count >= nodes.len() {
                return sets;
            }
            count = (count + step).min(nodes.len());
            step *= 2;
        }
    }
}
