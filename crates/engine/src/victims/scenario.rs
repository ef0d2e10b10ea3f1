//! Which sets of victims are worth a simulation, given the victims taken so far.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::cluster::ResourceNames;
use crate::cycle::Cycle;
use crate::ids::{GangId, GpuGroupId, NodeId, PodId, ShapeId};
use crate::ledger::Ledger;
use crate::model::Gpus;
use crate::tables::{CPU, GPU, GpuKind, MEMORY, Node, NodeResources, PODS, QUEUE_GPU, Shape};
use crate::victims::walk::Recorded;

/// What could be had if a set of victims were gone: enough to rule the set out, never enough to rule it in.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    /// GPUs of each pending pod, largest first.
    needs: Vec<Gpus>,
    /// The shape of all pending pods, if they are alike.
    shape: Option<ShapeId>,
    /// What victims free, by node.
    freed: FxHashMap<NodeId, Freed>,
    /// For pods that are alike: how many find room, each node counted on its own.
    slots: i64,
}

/// What victims on one node free.
#[derive(Clone, Debug, Default)]
struct Freed {
    /// As queues count it.
    gpus: Gpus,
    base: NodeResources,
    /// MiB on shared devices.
    devices: SmallVec<[(GpuGroupId, i64); 2]>,
    /// How many of the pending pods find room on the node.
    slots: i64,
}

impl Room {
    pub(crate) fn new(cycle: &Cycle<'_>, base: &mut BaseRoom, pods: &[PodId]) -> Room {
        let mut needs: Vec<Gpus> = pods
            .iter()
            .map(|pod| cycle.ledger.shape_of(*pod).gpus_by_count())
            .collect();
        needs.sort_unstable_by(|a, b| b.cmp(a));
        let first = pods.first().map(|pod| cycle.ledger.pod(*pod).shape);
        let shape = first.filter(|shape| pods.iter().all(|pod| cycle.ledger.pod(*pod).shape == *shape));
        let slots = shape.map_or(0, |shape| base.slots_for(cycle.ledger, shape));
        Room {
            needs,
            shape,
            freed: FxHashMap::default(),
            slots,
        }
    }

    /// Adds what victims hold.
    pub(crate) fn add(&mut self, cycle: &Cycle<'_>, base: &BaseRoom, victims: &[PodId]) {
        victims.iter().for_each(|pod| self.change(cycle, base, *pod, 1));
    }

    /// Takes away again what victims hold.
    pub(crate) fn remove(&mut self, cycle: &Cycle<'_>, base: &BaseRoom, victims: &[PodId]) {
        victims.iter().for_each(|pod| self.change(cycle, base, *pod, -1));
    }

    fn change(&mut self, cycle: &Cycle<'_>, base: &BaseRoom, pod: PodId, sign: i64) {
        let ledger = &*cycle.ledger;
        let row = ledger.pod(pod);
        let Some(id) = row.placement.node else { return };
        let (node, shape) = (ledger.node(id), ledger.shape(row.shape));
        let freed = self.freed.entry(id).or_insert_with(|| Freed {
            slots: base.slots_on(id),
            ..Freed::default()
        });
        freed.gpus += Gpus(shape.accepted(node.memory_mib)[QUEUE_GPU]) * sign;
        for (freed, charge) in freed.base.iter_mut().zip(node.charge(shape, row.kind)) {
            *freed += sign * charge;
        }
        if shape.is_shared() {
            for group in &row.placement.gpu_groups {
                let need = sign * shape.need_mib(node.memory_mib);
                match freed.devices.iter_mut().find(|(id, _)| id == group) {
                    Some((_, mib)) => *mib += need,
                    None => freed.devices.push((*group, need)),
                }
            }
        }
        if let Some(wanted) = self.shape {
            let slots = slots_on(node, ledger.shape(wanted), freed);
            self.slots += slots - freed.slots;
            freed.slots = slots;
        }
    }

    /// Whether the pods could find room.
    pub(crate) fn suffices(&self, base: &BaseRoom) -> bool {
        if self.shape.is_some() {
            return self.slots >= self.needs.len() as i64;
        }
        let freed: Gpus = self.freed.values().map(|freed| freed.gpus).sum();
        base.total + freed >= self.needs.iter().copied().sum()
    }

    /// GPUs free, being freed, and held by victims, as queues count them.
    fn at(&self, base: &BaseRoom, node: NodeId) -> Gpus {
        base.gpus[node.index()] + self.freed.get(&node).map_or(Gpus::ZERO, |freed| freed.gpus)
    }
}

/// An upper bound on how many pods of a shape fit on a node once `freed` is gone.
fn slots_on(node: &Node, shape: &Shape, freed: &Freed) -> i64 {
    let mut free = node.free.total();
    for (free, freed) in free.iter_mut().zip(freed.base) {
        *free += freed;
    }
    let mib_freed = |id| {
        freed
            .devices
            .iter()
            .find(|(group, _)| *group == id)
            .map_or(0, |(_, mib)| *mib)
    };
    // A device that all its users leave is a whole one; if nobody was to stay anyway it counts as one already.
    let emptied = freed.devices.iter().filter(|(id, mib)| {
        node.gpu_group(*id)
            .is_some_and(|group| *mib > 0 && !group.is_emptying() && group.active_mib + group.pipelined_mib == *mib)
    });
    free[GPU] += emptied.count() as i64;
    let mut slots = free[PODS].max(0);
    for resource in [CPU, MEMORY] {
        if shape.base[resource] > 0 {
            slots = slots.min(free[resource] / shape.base[resource]);
        }
    }
    match shape.gpu {
        GpuKind::None | GpuKind::Mig { .. } => {}
        GpuKind::Whole { devices } => slots = slots.min(free[GPU] / devices.max(1)),
        GpuKind::Fraction { devices, .. } | GpuKind::Memory { devices, .. } => {
            let need = shape.need_mib(node.memory_mib).max(1);
            let per_device = node.memory_mib / need;
            let shared = node
                .gpu_groups
                .iter()
                .filter(|group| group.active_mib + group.pipelined_mib > mib_freed(group.id));
            let shared: i64 = shared
                .map(|group| (group.available_mib(node.memory_mib) + mib_freed(group.id)).max(0) / need)
                .sum();
            slots = slots.min((shared + free[GPU].max(0) * per_device) / devices.max(1));
        }
    }
    slots.max(0)
}

/// What is free or being freed before any victim is taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct BaseRoom {
    /// GPUs per node, as queues count them.
    pub(crate) gpus: Vec<Gpus>,
    pub(crate) total: Gpus,
    cursor: Option<u64>,
    /// How many pods of the shape asked for last find room, per node.
    slots: Option<(ShapeId, Vec<i64>, i64)>,
}

impl BaseRoom {
    /// Follows what changed in the ledger.
    pub(crate) fn catch_up(&mut self, ledger: &Ledger, resources: &ResourceNames) {
        let mig = |resource| resources.mig_gpus(resource);
        let room = |node: NodeId| {
            let node = ledger.node(node);
            node.idle_gpus(mig) + node.releasing_gpus(mig)
        };
        match self.cursor.and_then(|cursor| ledger.changed_nodes.since(cursor)) {
            Some(touched) => {
                for node in touched {
                    let now = room(*node);
                    let before = std::mem::replace(&mut self.gpus[node.index()], now);
                    self.total += now - before;
                    if let Some((shape, per_node, sum)) = &mut self.slots {
                        let now = slots_on(ledger.node(*node), ledger.shape(*shape), &Freed::default());
                        let before = std::mem::replace(&mut per_node[node.index()], now);
                        *sum += now - before;
                    }
                }
            }
            None => {
                self.gpus = (0..ledger.nodes.len()).map(NodeId::new).map(room).collect();
                self.total = self.gpus.iter().copied().sum();
                self.slots = None;
            }
        }
        self.cursor = Some(ledger.changed_nodes.end());
    }

    /// How many pods of the shape find room, each node counted on its own.
    fn slots_for(&mut self, ledger: &Ledger, shape: ShapeId) -> i64 {
        match &self.slots {
            Some((known, _, sum)) if *known == shape => *sum,
            Some(_) | None => {
                let row = ledger.shape(shape);
                ledger.note_work(ledger.present_nodes / 4);
                let per_node: Vec<i64> = ledger
                    .nodes
                    .iter()
                    .map(|node| slots_on(node, row, &Freed::default()))
                    .collect();
                let sum = per_node.iter().sum();
                self.slots = Some((shape, per_node, sum));
                sum
            }
        }
    }

    fn slots_on(&self, node: NodeId) -> i64 {
        self.slots.as_ref().map_or(0, |(_, per_node, _)| per_node[node.index()])
    }
}

/// Victims in the order in which they are taken, unit by unit, with ways to find them by node and gang.
#[derive(Clone, Debug, Default)]
pub(crate) struct Units {
    units: Vec<Unit>,
    /// Units with a pod on the node.
    by_node: FxHashMap<NodeId, Vec<u32>>,
    by_gang: FxHashMap<GangId, Vec<u32>>,
}

/// Pods that are evicted together.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub(crate) gang: GangId,
    pub(crate) pods: SmallVec<[PodId; 2]>,
}

impl Units {
    pub(crate) fn push(&mut self, cycle: &Cycle<'_>, unit: Unit) {
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

    pub(crate) fn get(&self, at: usize) -> Option<&Unit> {
        self.units.get(at)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Unit> {
        self.units.iter()
    }

    /// The first `count` units, less those that are recorded already.
    pub(crate) fn taken<'u>(&'u self, count: usize, recorded: &'u Recorded) -> Taken<'u> {
        Taken {
            units: self,
            count: count as u32,
            recorded,
        }
    }
}

/// Victims taken so far for one probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken<'u> {
    units: &'u Units,
    count: u32,
    recorded: &'u Recorded,
}

impl Taken<'_> {
    fn unit(&self, at: u32) -> &Unit {
        &self.units.units[at as usize]
    }

    /// The units of a list that were taken.
    fn of<'a>(&'a self, list: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        let new = |at: &u32| *at < self.count && !self.unit(*at).pods.iter().any(|pod| self.recorded.contains(*pod));
        list.iter().copied().take_while(|at| *at < self.count).filter(new)
    }

    /// Sets around the last victim: per node of its gang, by name, everything taken of gangs with a victim there.
    pub(crate) fn around_last(&self, cycle: &Cycle<'_>) -> Vec<Vec<PodId>> {
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
            for unit in self.of(units) {
                let gang = self.unit(unit).gang;
                if !gangs.contains(&gang) {
                    gangs.push(gang);
                }
            }
            let of_gang = |gang: &GangId| {
                self.of(&self.units.by_gang[gang])
                    .flat_map(|unit| &self.unit(unit).pods)
            };
            let set: Vec<PodId> = gangs.iter().flat_map(of_gang).copied().collect();
            if !set.is_empty() && !sets.contains(&set) {
                sets.push(set);
            }
        }
        sets
    }

    /// Sets over growing numbers of nodes, the least room first: from the fewest nodes that could be enough, doubling
    /// the step each time.
    pub(crate) fn by_nodes(&self, cycle: &Cycle<'_>, base: &BaseRoom, room: &Room, recorded: &Room) -> Vec<Vec<PodId>> {
        let smallest = room.needs.last().copied().unwrap_or_default();
        let (mut nodes, mut with_victims) = (Vec::new(), Gpus::ZERO);
        for (node, units) in &self.units.by_node {
            // Nodes of equal room are taken in the order in which they first lost a pod.
            let Some(first) = self.of(units).next() else { continue };
            with_victims += recorded.at(base, *node);
            let gpus = room.at(base, *node);
            if smallest == Gpus::ZERO || gpus >= smallest {
                let on_node = |pod: &PodId| cycle.ledger.pod(*pod).placement.node == Some(*node);
                let position = self.unit(first).pods.iter().position(on_node);
                nodes.push((gpus, first, position, *node));
            }
        }
        nodes.sort_unstable();
        cycle.ledger.note_work(self.units.by_node.len());
        let demand: Gpus = room.needs.iter().copied().sum();
        // What is there without touching the nodes of victims.
        let baseline = base.total + recorded.freed.values().map(|freed| freed.gpus).sum() - with_victims;
        let missing = demand - baseline;
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
                .flat_map(|(.., node)| self.of(&self.units.by_node[node]));
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
}
