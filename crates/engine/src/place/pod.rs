//! Placing one pod: the best node that takes it, and its devices there.

use std::collections::BinaryHeap;

use crate::cycle::Cycle;
use crate::ids::{NodeId, PodId};
use crate::place::fit::Worth;
use crate::place::gang::{Attempt, points_for};
use crate::place::{Devices, Mode, Neighbours, Scope, choose_devices};
use crate::share;
use crate::tables::{Gang, Placement, QUEUE_GPU, QueueResources, Shape, When, ceil_hundredths};

/// Weight of the node that a former decision promised.
const NOMINATED: i64 = 10_000_000;

impl Cycle<'_> {
    pub(super) fn place_pod(&mut self, attempt: &Attempt, pod: PodId, scope: Scope<'_>) -> bool {
        let ledger = &*self.ledger;
        ledger.note_work(1);
        let (row, shape) = (ledger.pod(pod), ledger.shape_of(pod));
        let mut ranking = self.indexes.fresh(ledger, row.shape, self.config.placement);
        if ranking.is_barren() {
            return false;
        }
        let neighbours = (!Neighbours::are_irrelevant(ledger, pod))
            .then(|| Neighbours::of(ledger, pod, self.config.score_pod_affinity));
        if neighbours.as_ref().is_some_and(Neighbours::rule_out_all) {
            return false;
        }
        let strategy = self.config.placement.gpu;
        let only_promise = attempt.mode == Mode::Simulated;
        // Memory requests and fractions are charged by the node's device, so bounds depend on the node.
        let bounded_by_node = attempt.mixed && is_bounded(ledger.gang(attempt.gang), ledger);
        let accept = |node: NodeId| -> Option<(NodeId, Option<Devices>)> {
            ledger.note_work(1);
            if !scope.set.contains(node) {
                return None;
            }
            if let Some(neighbours) = &neighbours {
                neighbours.check(node).ok()?;
            }
            if bounded_by_node {
                let charge = charge_on(shape, ledger.node(node).memory_mib);
                if share::exceeded(ledger, attempt.gang, charge).is_some() {
                    return None;
                }
            }
            if !shape.is_shared() {
                return Some((node, None));
            }
            Some((node, Some(choose_devices(ledger, pod, node, strategy, only_promise)?)))
        };
        let points = points_for(attempt, ledger.gang(attempt.gang), row.pod_set);
        let nominated = row.nominated.map(|name| ledger.symbols.text(name));
        let scored = points.is_some() || nominated.is_some() || neighbours.as_ref().is_some_and(Neighbours::has_points);
        let near = match (&neighbours, scope.domain) {
            (Some(neighbours), None) => neighbours.candidates(),
            (Some(_), Some(_)) | (None, _) => None,
        };
        let nodes = scope.domain.or(near.as_deref());
        let found = if let (Some(nodes), false) = (nodes, scored) {
            ledger.note_work(nodes.len() / 4);
            ranking.best_among(ledger, nodes, accept)
        } else if !scored {
            ranking.best(ledger, accept)
        } else {
            let worth = |node: NodeId| -> Worth {
                let mut worth = ranking.worth(ledger, node);
                if let Some(points) = points {
                    match points[node.index()] {
                        Some(points) => worth = worth.plus(points),
                        None => return Worth::UNFIT,
                    }
                }
                if nominated == Some(&*ledger.node(node).name) {
                    worth = worth.plus(NOMINATED);
                }
                match &neighbours {
                    Some(neighbours) => worth.plus(neighbours.weight(node)),
                    None => worth,
                }
            };
            ledger.note_work(nodes.map_or(ledger.present_nodes, <[NodeId]>::len) / 4);
            match nodes {
                Some(nodes) => best_of(nodes.iter().copied(), worth, accept),
                None => best_of((0..ledger.nodes.len()).map(NodeId::new), worth, accept),
            }
        };
        drop(neighbours);
        let Some((node, devices)) = found else { return false };
        self.settle(pod, node, devices, attempt.mode);
        true
    }

    /// Puts the pod on the chosen node: bound, promised, or just kept where it was.
    fn settle(&mut self, pod: PodId, node: NodeId, devices: Option<Devices>, mode: Mode) {
        let ledger = &*self.ledger;
        let row = ledger.pod(pod);
        let (groups, must_wait) = match devices {
            Some(devices) => (devices.groups, devices.must_wait),
            None => {
                let node = ledger.node(node);
                let fits_now = crate::place::fits(node, ledger.shape(row.shape), node.free.idle, When::Now).is_ok();
                (Default::default(), !fits_now)
            }
        };
        if mode == Mode::Real && !must_wait {
            return self.ledger.bind(pod, node, groups);
        }
        // Back where it is, or where it still was when it was moved before: then it just keeps what it has.
        let at_home = |home: &Placement| home.node == Some(node) && (groups.is_empty() || groups == home.gpu_groups);
        let moved_from = row.old_placement.as_deref();
        // What it was promised when it was moved may have been given away since: the room was found elsewhere.
        let keeps_promise = || moved_from.is_some_and(at_home) && ledger.still_fits(pod);
        if row.evicted_from.is_some() && (at_home(&row.placement) || keeps_promise()) {
            return self.ledger.undo_eviction(pod);
        }
        self.ledger.pipeline(pod, node, groups);
    }
}

/// The best of these nodes that `accept` agrees to.
pub(super) fn best_of<T>(
    nodes: impl Iterator<Item = NodeId> + Clone,
    worth: impl Fn(NodeId) -> Worth,
    mut accept: impl FnMut(NodeId) -> Option<T>,
) -> Option<T> {
    let ranked = nodes.map(|node| (worth(node), node));
    // The best one is nearly always accepted: only if not is it worth to order the others.
    let (worth, best) = ranked.clone().max()?;
    if worth == Worth::UNFIT {
        return None;
    }
    accept(best).or_else(|| {
        let others = ranked.filter(|(worth, node)| *worth != Worth::UNFIT && *node != best);
        best_ranked(others.collect(), accept)
    })
}

/// The best of these nodes that `accept` agrees to; all of them can take the pod.
pub(super) fn best_ranked<T>(ranked: Vec<(Worth, NodeId)>, mut accept: impl FnMut(NodeId) -> Option<T>) -> Option<T> {
    let mut rest = BinaryHeap::from(ranked);
    std::iter::from_fn(|| rest.pop()).find_map(|(_, node)| accept(node))
}

fn is_bounded(gang: &Gang, ledger: &crate::ledger::Ledger) -> bool {
    let Some(queue) = gang.queue else { return true };
    ledger.queue_path(queue).any(|queue| {
        let quota = &ledger.queue(queue).quota.gpu;
        quota.limit.is_some() || (!gang.preemptible && quota.deserved.is_some())
    })
}

/// What bounds see of a pod on a device of this size: for a shared one the memory it really takes, rounded up.
fn charge_on(shape: &Shape, memory_mib: i64) -> QueueResources {
    let mut charge = shape.accepted(memory_mib);
    if shape.is_shared() {
        let hundredths = ceil_hundredths(shape.need_mib(memory_mib), memory_mib);
        let accepted = shape.accepted_hundredths(memory_mib);
        charge[QUEUE_GPU] = (crate::model::Gpus::hundredths(hundredths.max(accepted)) * shape.devices()).0;
    }
    charge
}
