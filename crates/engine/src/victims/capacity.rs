//! Upper bounds on the capacity that a set of victims frees. A simulation is expensive; a set whose bound is below the
//! request of the pending pods is never simulated.

use rustc_hash::FxHashMap;

use crate::cluster::ResourceNames;
use crate::cycle::Cycle;
use crate::fit::{FreedResources, max_pods};
use crate::ids::{NodeId, PodId, ShapeId};
use crate::ledger::Ledger;
use crate::model::Gpus;
use crate::tables::Shape;

/// The capacity for the pending pods once a set of victims is gone. It is an upper bound: it can rule a set out, but only
/// a simulation can accept one.
#[derive(Clone, Debug)]
pub(crate) struct FreedCapacity {
    /// GPUs that each pending pod requests, largest first.
    requested_gpus: Vec<Gpus>,
    /// The shape of the pending pods if all have the same.
    shape: Option<ShapeId>,
    /// Resources that the victims free, by node.
    freed: FxHashMap<NodeId, FreedOnNode>,
    /// See [`rounding_slack`].
    slack: Gpus,
    /// If `shape` is set: how many pending pods fit at most, summed over all nodes.
    pods_max: i64,
}

/// Resources that the victims on one node free.
#[derive(Clone, Debug, Default)]
struct FreedOnNode {
    /// GPUs as queues are charged for them.
    gpus: Gpus,
    resources: FreedResources,
    /// How many pending pods fit on the node at most.
    pods_max: i64,
}

impl FreedCapacity {
    pub(crate) fn new(cycle: &Cycle<'_>, base: &mut BaseCapacity, pods: &[PodId]) -> FreedCapacity {
        let mut requested_gpus: Vec<Gpus> = pods
            .iter()
            .map(|pod| cycle.ledger.shape_of(*pod).gpus_by_count())
            .collect();
        requested_gpus.sort_unstable_by(|a, b| b.cmp(a));
        let first = pods.first().map(|pod| cycle.ledger.pod(*pod).shape);
        let shape = first.filter(|shape| pods.iter().all(|pod| cycle.ledger.pod(*pod).shape == *shape));
        let pods_max = shape.map_or(0, |shape| base.max_pods_for(cycle.ledger, shape));
        FreedCapacity {
            requested_gpus,
            shape,
            freed: FxHashMap::default(),
            slack: rounding_slack(cycle.ledger, pods),
            pods_max,
        }
    }

    /// Adds the resources of these victims.
    pub(crate) fn add(&mut self, cycle: &Cycle<'_>, base: &BaseCapacity, victims: &[PodId]) {
        self.change(cycle, base, victims, 1);
    }

    /// Removes the resources of victims that were added before.
    pub(crate) fn remove(&mut self, cycle: &Cycle<'_>, base: &BaseCapacity, victims: &[PodId]) {
        self.change(cycle, base, victims, -1);
    }

    fn change(&mut self, cycle: &Cycle<'_>, base: &BaseCapacity, victims: &[PodId], sign: i64) {
        let ledger = &*cycle.ledger;
        let node_of = |pod: &PodId| ledger.pod(*pod).placement.node;
        let wanted = self.shape.map(|shape| ledger.shape(shape));
        // Victims often follow each other by node. The bound of a node is computed once for all of them.
        for pods in victims.chunk_by(|one, next| node_of(one) == node_of(next)) {
            let Some(id) = node_of(&pods[0]) else { continue };
            let node = ledger.node(id);
            let freed = self.freed.entry(id).or_insert_with(|| FreedOnNode {
                pods_max: base.max_pods_on(id),
                ..FreedOnNode::default()
            });
            for pod in pods {
                let row = ledger.pod(*pod);
                let shape = ledger.shape(row.shape);
                freed.gpus += shape.accepted(node.memory_mib).gpus * sign;
                let gpu_groups = &row.placement.gpu_groups;
                freed.resources.change(node, shape, row.kind, gpu_groups, sign);
            }
            if let Some(wanted) = wanted {
                let pods_max = max_pods(node, wanted, &freed.resources);
                self.pods_max += pods_max - freed.pods_max;
                freed.pods_max = pods_max;
            }
        }
    }

    /// Whether the bound allows that all pending pods fit.
    pub(crate) fn may_suffice(&self, base: &BaseCapacity) -> bool {
        if self.shape.is_some() {
            return self.pods_max >= self.requested_gpus.len() as i64;
        }
        base.total + self.freed_gpus() + self.slack >= self.requested_gpus.iter().copied().sum()
    }

    /// GPUs that each pending pod requests, largest first.
    pub(super) fn requested_gpus(&self) -> &[Gpus] {
        &self.requested_gpus
    }

    /// GPUs that all victims free, as queues are charged for them.
    pub(super) fn freed_gpus(&self) -> Gpus {
        self.freed.values().map(|freed| freed.gpus).sum()
    }

    /// Idle and releasing GPUs of the node and those of its victims, as queues are charged for them.
    pub(super) fn gpus_on(&self, base: &BaseCapacity, node: NodeId) -> Gpus {
        base.gpus[node.index()] + self.freed.get(&node).map_or(Gpus::ZERO, |freed| freed.gpus)
    }
}

/// How much sums of charged GPUs can be wrong for a request of `pods`. A share is charged in hundredths of a GPU, rounded to the
/// nearest, and the rest of each shared GPU is rounded down. A node also rounds the share that a pod requests down to MiB.
pub(crate) fn rounding_slack(ledger: &Ledger, pods: &[PodId]) -> Gpus {
    let shapes = pods.iter().map(|pod| ledger.shape_of(*pod));
    let requested: i64 = shapes.filter(|shape| shape.is_shared()).map(Shape::devices).sum();
    let held = (ledger.gpu_shares_in_use + 1) / 2;
    Gpus::hundredths(ledger.gpu_groups_in_use as i64 + held + 2 * requested)
}

/// Idle and releasing capacity before any victim is evicted. [`SearchState`](super::SearchState) holds it for all searches
/// of an action; it follows the ledger by its log of changed nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct BaseCapacity {
    /// GPUs per node, as queues are charged for them.
    pub(crate) gpus: Vec<Gpus>,
    pub(crate) total: Gpus,
    cursor: Option<u64>,
    /// For the shape of the last request: how many pods fit at most, per node and in sum.
    pods_max: Option<(ShapeId, Vec<i64>, i64)>,
}

impl BaseCapacity {
    /// Updates the capacity of the nodes that have changed in the ledger.
    pub(crate) fn catch_up(&mut self, ledger: &Ledger, resources: &ResourceNames) {
        let mig = |resource| resources.mig_gpus(resource);
        let available_gpus = |node: NodeId| {
            let node = ledger.node(node);
            node.idle_gpus(mig) + node.releasing_gpus(mig)
        };
        match self.cursor.and_then(|cursor| ledger.changed_nodes.since(cursor)) {
            Some(changed) => {
                for node in changed {
                    let now = available_gpus(*node);
                    let before = std::mem::replace(&mut self.gpus[node.index()], now);
                    self.total += now - before;
                    if let Some((shape, per_node, sum)) = &mut self.pods_max {
                        let now = max_pods(ledger.node(*node), ledger.shape(*shape), &FreedResources::default());
                        let before = std::mem::replace(&mut per_node[node.index()], now);
                        *sum += now - before;
                    }
                }
            }
            None => {
                self.gpus = (0..ledger.nodes.len()).map(NodeId::new).map(available_gpus).collect();
                self.total = self.gpus.iter().copied().sum();
                self.pods_max = None;
            }
        }
        self.cursor = Some(ledger.changed_nodes.end());
    }

    /// How many pods of the shape fit at most, summed over all nodes.
    fn max_pods_for(&mut self, ledger: &Ledger, shape: ShapeId) -> i64 {
        match &self.pods_max {
            Some((known, _, sum)) if *known == shape => *sum,
            Some(_) | None => {
                let row = ledger.shape(shape);
                ledger.note_work(ledger.present_nodes / 4);
                let per_node: Vec<i64> = ledger
                    .nodes
                    .iter()
                    .map(|node| max_pods(node, row, &FreedResources::default()))
                    .collect();
                let sum = per_node.iter().sum();
                self.pods_max = Some((shape, per_node, sum));
                sum
            }
        }
    }

    fn max_pods_on(&self, node: NodeId) -> i64 {
        self.pods_max
            .as_ref()
            .map_or(0, |(_, per_node, _)| per_node[node.index()])
    }
}
