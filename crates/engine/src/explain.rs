//! Explanations: which check each node failed, and which gangs hold the GPUs that a pod lacks.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::cycle::Cycle;
use crate::fit::fits;
use crate::ids::{GangId, NodeId, PodId, ShapeId};
use crate::ledger::Ledger;
use crate::model::{GangKey, Gpus};
use crate::place::{InterPodRules, Scope, VolumeRules, static_check};
use crate::reasons::{Check, Rejections};
use crate::tables::When;

/// How many times per cycle all nodes are checked for an explanation. Later gangs get the last answer for the same shape.
const NODE_SCANS_MAX: u32 = 32;
/// How many gangs that hold GPUs an explanation keeps. More than it names: gangs of one workload are summed under its name.
const HOLDERS_MAX: usize = 64;

impl Cycle<'_> {
    /// Why no node can take the pod at present.
    pub(crate) fn rejections(&mut self, pod: PodId, scope: Scope<'_>) -> Arc<Rejections> {
        let (row, version) = (self.ledger.pod(pod), self.ledger.changed_nodes.end());
        // Pods of one shape may differ in the volumes that they use.
        let (shape, uses_volumes) = (row.shape, row.volumes.is_some());
        if let Some((at, known)) = self.explanations.rejections.get(&(shape, uses_volumes)) {
            let outdated = *at != version
                || scope.domain.is_some()
                || self.ledger.shape(shape).depends_on_other_pods()
                || uses_volumes;
            if !outdated || self.explanations.node_scans >= NODE_SCANS_MAX {
                return known.clone();
            }
        }
        self.explanations.node_scans += 1;
        self.ledger.note_work(self.ledger.present_nodes / 4);
        self.volume_pools.update_for(self.ledger, pod);
        let volumes = VolumeRules::of(self.ledger, self.volume_pools, pod);
        let rejections = Arc::new(reject(self.ledger, pod, volumes.as_ref(), scope));
        self.explanations
            .rejections
            .insert((shape, uses_volumes), (version, rejections.clone()));
        rejections
    }
}

fn reject(ledger: &Ledger, pod: PodId, volumes: Option<&VolumeRules<'_>>, scope: Scope<'_>) -> Rejections {
    let shape = ledger.shape_of(pod);
    let in_domain: Option<FxHashSet<NodeId>> = scope.domain.map(|nodes| nodes.iter().copied().collect());
    let rules = (!InterPodRules::are_not_needed(ledger, pod)).then(|| InterPodRules::of(ledger, pod, false));
    let mut counts: FxHashMap<Check, u32> = FxHashMap::default();
    for (at, node) in ledger.nodes.iter().enumerate().filter(|(_, node)| node.present) {
        let id = NodeId::new(at);
        let by_node = || static_check(node, shape).and_then(|_| fits(node, shape, When::AfterRelease));
        let by_rules = || rules.as_ref().map_or(Ok(()), |rules| rules.check(id));
        let by_volumes = || match volumes {
            Some(rules) => rules.choose(id).map(drop),
            None => Ok(()),
        };
        let by_attachments = || ledger.check_attachments(pod, id, When::AfterRelease);
        let outside = in_domain.as_ref().is_some_and(|nodes| !nodes.contains(&id));
        let check = match by_node()
            .and_then(|()| by_rules())
            .and_then(|()| by_attachments())
            .and_then(|()| by_volumes())
        {
            Err(check) => check,
            Ok(()) if outside => Check::Domain,
            // The pod fits on the node, so a queue bound must have rejected what it would be charged there.
            Ok(()) => Check::QueueBound,
        };
        *counts.entry(check).or_default() += 1;
    }
    let mut checks: Vec<(Check, u32)> = counts.into_iter().collect();
    checks.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    Rejections {
        extended: Vec::new(),
        checks,
        holders: Arc::default(),
        search_cut: false,
    }
}

/// The gangs that hold the most GPUs on nodes which pods of the shape may use.
pub(crate) fn holders(ledger: &Ledger, shape: ShapeId) -> Arc<[(GangKey, Gpus)]> {
    let shape = ledger.shape(shape);
    if shape.is_cpu_only() {
        return Arc::default();
    }
    let mut held: FxHashMap<GangId, Gpus> = FxHashMap::default();
    for node in ledger
        .nodes
        .iter()
        .filter(|node| node.present && static_check(node, shape).is_ok())
    {
        for pod in &node.pods {
            let row = ledger.pod(*pod);
            let gpus = ledger.shape(row.shape).accepted(node.memory_mib).gpus;
            if let Some(gang) = row
                .gang
                .filter(|_| gpus > Gpus::ZERO && row.placement.status.is_active_used())
            {
                *held.entry(gang).or_default() += gpus;
            }
        }
    }
    let mut held: Vec<(GangKey, Gpus)> = held
        .into_iter()
        .map(|(gang, gpus)| ((*ledger.gang(gang).key).clone(), gpus))
        .collect();
    held.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    held.truncate(HOLDERS_MAX);
    held.into()
}
