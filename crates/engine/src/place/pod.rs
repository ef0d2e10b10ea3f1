//! Placing one pod: the node with the highest score that accepts it, and its devices there.

use std::collections::BinaryHeap;

use crate::cycle::Cycle;
use crate::fit::fits;
use crate::ids::{GangId, NodeId, PodId};
use crate::ledger::Ledger;
use crate::model::{Gpus, Preemptibility, QueueResources};
use crate::place::gang::{Attempt, topology_scores_for};
use crate::place::score::NodeScore;
use crate::place::topology::TopologyScores;
use crate::place::{
    DeviceChoice, InterPodRules, NodeScoring, PlacementMode, Scope, VolumeRules, choose_devices, weights,
};
use crate::share;
use crate::tables::{ChosenVolumes, Placement, Shape, When, ceil_hundredths};

/// The checks of a node for one pod that the shape index does not know.
struct NodeFilter<'f> {
    ledger: &'f Ledger,
    pod: PodId,
    shape: &'f Shape,
    scope: Scope<'f>,
    inter_pod: Option<&'f InterPodRules<'f>>,
    volumes: Option<&'f VolumeRules<'f>>,
    /// The bounds of the gang's queues, if the charge of the pod depends on the node.
    bounds: Option<QueueBounds>,
    scoring: NodeScoring<'f>,
    mode: PlacementMode,
}

/// The bounds that the charge of a pod on a node must keep.
#[derive(Clone, Copy)]
struct QueueBounds {
    gang: GangId,
    /// What quotas bound in addition to the charge: what the attempt has added to the core of a semi-preemptible gang so far. `None` =
    /// quotas do not bound the pod.
    quota: Option<QueueResources>,
}

impl QueueBounds {
    /// The bounds for a pod of the attempt; `None` if there are none.
    fn of(ledger: &Ledger, attempt: &Attempt, pod: PodId) -> Option<QueueBounds> {
        let gang = ledger.gang(attempt.gang);
        let quota = match gang.preemptibility {
            Preemptibility::Preemptible => None,
            Preemptibility::SemiPreemptible => attempt.core_with(pod),
            Preemptibility::NonPreemptible => Some(QueueResources::ZERO),
        };
        let is_bounded = attempt.has_shared_gpu_pods
            && gang.queue.is_none_or(|leaf| {
                ledger.queue_path(leaf).any(|queue| {
                    let bounds = &ledger.queue(queue).quota.gpu;
                    bounds.limit.is_some() || (quota.is_some() && bounds.deserved.is_some())
                })
            });
        is_bounded.then_some(QueueBounds {
            gang: attempt.gang,
            quota,
        })
    }

    fn are_exceeded(self, ledger: &Ledger, charge: QueueResources) -> bool {
        let over_quota = |added| share::over_quota(ledger, self.gang, added + charge).is_some();
        share::over_limit(ledger, self.gang, charge).is_some() || self.quota.is_some_and(over_quota)
    }
}

impl NodeFilter<'_> {
    /// The node, and what the pod gets there; `None` = the node rejects the pod.
    fn accept(&self, node: NodeId) -> Option<Accepted> {
        let NodeFilter { ledger, pod, shape, .. } = *self;
        ledger.note_work(1);
        if !self.scope.allowed.contains(node) {
            return None;
        }
        if let Some(rules) = self.inter_pod {
            rules.check(node).ok()?;
        }
        if let Some(bounds) = self.bounds {
            let charge = charge_on(shape, ledger.node(node).memory_mib);
            if bounds.are_exceeded(ledger, charge) {
                return None;
            }
        }
        let volumes = match self.volumes {
            Some(rules) => rules.choose(node).ok()?,
            None => None,
        };
        if !ledger.can_attach(pod, node, When::AfterRelease) {
            return None;
        }
        let devices = if shape.is_shared() {
            let only_pipeline = self.mode == PlacementMode::Simulated;
            Some(choose_devices(ledger, pod, node, &self.scoring, only_pipeline)?)
        } else {
            None
        };
        Some(Accepted { node, devices, volumes })
    }
}

/// A node that accepts a pod, and what the pod gets there.
struct Accepted {
    node: NodeId,
    /// For a pod that shares GPUs.
    devices: Option<DeviceChoice>,
    volumes: ChosenVolumes,
}

/// Scores of nodes that depend on the pod and not only on its shape.
struct PodScores<'f> {
    topology: Option<&'f TopologyScores>,
    nominated: Option<&'f str>,
    inter_pod: Option<&'f InterPodRules<'f>>,
}

impl PodScores<'_> {
    /// Whether the score of the shape is all that counts.
    fn is_empty(&self) -> bool {
        self.topology.is_none() && self.nominated.is_none() && !self.inter_pod.is_some_and(InterPodRules::has_scores)
    }

    #[inline]
    fn add_to(&self, score: NodeScore, ledger: &Ledger, node: NodeId) -> NodeScore {
        let mut score = score;
        if let Some(topology) = self.topology {
            match topology[node.index()] {
                Some(weight) => score = score.plus(weight),
                None => return NodeScore::UNFIT,
            }
        }
        if self.nominated == Some(&*ledger.node(node).name) {
            score = score.plus(weights::NOMINATED);
        }
        match self.inter_pod {
            Some(rules) => score.plus(rules.score(node)),
            None => score,
        }
    }
}

impl Cycle<'_> {
    /// Places the pod on the best node of the scope that accepts it; whether there is one.
    pub(super) fn place_pod(&mut self, attempt: &Attempt, pod: PodId, scope: Scope<'_>) -> bool {
        let ledger = &*self.ledger;
        ledger.note_work(1);
        let row = ledger.pod(pod);
        let scoring = NodeScoring {
            strategies: self.config.placement,
            prices: self.prices,
        };
        let mut ranking = self.indexes.ranking_for(ledger, row.shape, scoring);
        if ranking.has_no_candidates() {
            return false;
        }
        let rules = (!InterPodRules::are_not_needed(ledger, pod))
            .then(|| InterPodRules::of(ledger, pod, self.config.score_pod_affinity));
        if rules.as_ref().is_some_and(InterPodRules::rule_out_all_nodes) {
            return false;
        }
        let gang = ledger.gang(attempt.gang);
        if ledger.has_claim_in_use(pod, When::AfterRelease) {
            return false;
        }
        let volumes = match &row.claims {
            Some(_) => {
                self.volume_pools.update_for(ledger, pod);
                VolumeRules::of(ledger, self.volume_pools, pod)
            }
            None => None,
        };
        let filter = NodeFilter {
            ledger,
            pod,
            shape: ledger.shape(row.shape),
            scope,
            inter_pod: rules.as_ref(),
            volumes: volumes.as_ref(),
            bounds: QueueBounds::of(ledger, attempt, pod),
            scoring,
            mode: attempt.mode,
        };
        let scores = PodScores {
            topology: topology_scores_for(attempt, gang, row.pod_set),
            nominated: row.nominated.map(|name| ledger.symbols.text(name)),
            inter_pod: rules.as_ref(),
        };
        let near = match (&rules, scope.domain) {
            (Some(rules), None) => rules.candidates(),
            (Some(_), Some(_)) | (None, _) => None,
        };
        let nodes = scope.domain.or(near.as_deref());
        let accept = |node: NodeId| filter.accept(node);
        let found = if scores.is_empty() {
            match nodes {
                Some(nodes) => {
                    ledger.note_work(nodes.len() / 4);
                    ranking.best_among(ledger, nodes, accept)
                }
                None => ranking.best(ledger, accept),
            }
        } else {
            let score = |node: NodeId| scores.add_to(ranking.score(ledger, node), ledger, node);
            ledger.note_work(nodes.map_or(ledger.present_nodes, <[NodeId]>::len) / 4);
            match nodes {
                Some(nodes) => best_of(nodes.iter().copied(), score, accept),
                None => best_of((0..ledger.nodes.len()).map(NodeId::new), score, accept),
            }
        };
        drop(rules);
        let Some(accepted) = found else { return false };
        self.commit_placement(pod, accepted, attempt.mode);
        true
    }

    /// Writes the chosen node to the ledger: the pod is bound, pipelined, or kept where it was.
    fn commit_placement(&mut self, pod: PodId, accepted: Accepted, mode: PlacementMode) {
        let Accepted { node, devices, volumes } = accepted;
        let ledger = &*self.ledger;
        let row = ledger.pod(pod);
        let (gpu_groups, must_wait) = match devices {
            Some(devices) => (devices.gpu_groups, devices.must_wait),
            None => {
                let node = ledger.node(node);
                let fits_now = fits(node, ledger.shape(row.shape), When::Now).is_ok();
                (Default::default(), !fits_now)
            }
        };
        let must_wait = must_wait || ledger.check_attachments(pod, node, When::Now).is_err();
        if mode == PlacementMode::Real && !must_wait {
            return self.ledger.bind(pod, node, gpu_groups, volumes);
        }
        // An evicted pod is kept if it gets the place that it has, or the one that it left when it was moved before.
        let is_same =
            |old: &Placement| old.node == Some(node) && (gpu_groups.is_empty() || gpu_groups == old.gpu_groups);
        let moved_from = row.old_placement.as_deref();
        // In the second case the pod keeps the place to which it was moved; another pod may have got that since.
        let keeps_promise = || moved_from.is_some_and(is_same) && ledger.still_fits(pod);
        if row.evicted_from.is_some() && (is_same(&row.placement) || keeps_promise()) {
            return self.ledger.undo_eviction(pod);
        }
        self.ledger.pipeline(pod, node, gpu_groups, volumes);
    }
}

/// The node with the highest score that `accept` accepts.
pub(super) fn best_of<T>(
    nodes: impl Iterator<Item = NodeId> + Clone,
    score: impl Fn(NodeId) -> NodeScore,
    mut accept: impl FnMut(NodeId) -> Option<T>,
) -> Option<T> {
    let ranked = nodes.map(|node| (score(node), node));
    // The best node is nearly always accepted: the others are sorted only if it is not.
    let (score, best) = ranked.clone().max()?;
    if score == NodeScore::UNFIT {
        return None;
    }
    accept(best).or_else(|| {
        let others = ranked.filter(|(score, node)| *score != NodeScore::UNFIT && *node != best);
        best_of_fitting(others.collect(), accept)
    })
}

/// Like [`best_of`], for nodes none of which is unfit.
pub(super) fn best_of_fitting<T>(
    ranked: Vec<(NodeScore, NodeId)>,
    mut accept: impl FnMut(NodeId) -> Option<T>,
) -> Option<T> {
    let mut rest = BinaryHeap::from(ranked);
    std::iter::from_fn(|| rest.pop()).find_map(|(_, node)| accept(node))
}

/// The charge of a pod on a GPU with this much memory, as the bounds of queues count it: for a pod that shares GPUs the
/// memory that it really takes, rounded up.
fn charge_on(shape: &Shape, memory_mib: i64) -> QueueResources {
    let mut charge = shape.accepted(memory_mib);
    if shape.is_shared() {
        let hundredths = ceil_hundredths(shape.need_mib(memory_mib), memory_mib);
        let accepted = shape.accepted_hundredths(memory_mib);
        charge.gpus = Gpus::hundredths(hundredths.max(accepted)) * shape.devices();
    }
    charge
}
