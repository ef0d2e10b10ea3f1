//! The checks of a node's spec for a shape: kind of GPU request, conditions, taints, selectors and node affinity.

use crate::model::{
    ComputeMode, Constraints, Enforcement, FractioningCondition, MigStrategy, NodeSelectorTerm, ShareTerms, TaintEffect,
};
use crate::place::weights::PREFERENCE_POINTS_MAX;
use crate::reasons::Check;
use crate::tables::{GpuKind, Node, Shape};

/// The checks of a node's spec, whose result changes only with that spec. Returns the points of preferred node affinity,
/// less one per `PreferNoSchedule` taint.
pub(crate) fn static_check(node: &Node, shape: &Shape) -> Result<i64, Check> {
    kind_check(node, shape)?;
    let Constraints {
        node_selector,
        required_nodes,
        volume_nodes,
        preferred_nodes,
        tolerations,
        ..
    } = &shape.constraints;
    let tolerated = |taint| tolerations.iter().any(|toleration| toleration.tolerates(taint));
    let hard = |effect| matches!(effect, TaintEffect::NoSchedule | TaintEffect::NoExecute);
    if node.taints.iter().any(|taint| hard(taint.effect) && !tolerated(taint)) {
        return Err(Check::Taints);
    }
    let matches = |term: &NodeSelectorTerm| term.matches(&node.name, &node.labels);
    let selected = node_selector
        .iter()
        .all(|(key, value)| node.labels.get(key) == Some(value));
    if !selected || required_nodes.as_ref().is_some_and(|terms| !terms.iter().any(matches)) {
        return Err(Check::NodeAffinity);
    }
    if !volume_nodes.iter().all(|terms| terms.iter().any(matches)) {
        return Err(Check::VolumeNodes);
    }
    let preferred: i64 = preferred_nodes
        .iter()
        .filter(|preference| matches(&preference.term))
        .map(|preference| i64::from(preference.weight))
        .sum();
    let disliked = node
        .taints
        .iter()
        .filter(|taint| taint.effect == TaintEffect::PreferNoSchedule && !tolerated(taint))
        .count() as i64;
    Ok((preferred - disliked).clamp(-PREFERENCE_POINTS_MAX, PREFERENCE_POINTS_MAX))
}

/// The part of [`static_check`] that depends on the kind of GPU request, the terms of its share, and on nothing else of the shape.
pub(crate) fn kind_check(node: &Node, shape: &Shape) -> Result<(), Check> {
    mig_check(node, shape)?;
    share_check(node, shape)?;
    if matches!(shape.gpu, GpuKind::Memory { .. }) && !node.memory_known {
        return Err(Check::GpuMemoryUnknown);
    }
    // No toleration helps: a pod that tolerates every taint would go with the node.
    if node.leaving {
        return Err(Check::Leaving);
    }
    if node.unschedulable {
        return Err(Check::Unschedulable);
    }
    if node.not_ready {
        return Err(Check::NotReady);
    }
    Ok(())
}

/// Whether the node offers what a pod with a GPU share requires besides its size, and whether its GPUs are not for such pods alone.
fn share_check(node: &Node, shape: &Shape) -> Result<(), Check> {
    if !shape.is_shared() {
        let exclusive = matches!(shape.gpu, GpuKind::Whole { .. }) && node.enforcement.is_for_sm_sharing_alone();
        return if exclusive { Err(Check::SmSharingOnly) } else { Ok(()) };
    }
    let ShareTerms {
        compute_mode,
        enforcement,
    } = shape.constraints.share;
    if node.fractioning != FractioningCondition::Met {
        return Err(Check::Fractioning(node.fractioning));
    }
    match enforcement {
        Enforcement::Required if !node.enforcement.limits_memory() => return Err(Check::Enforcement),
        Enforcement::Required | Enforcement::Preferred => {}
    }
    match (node.enforcement.offers(compute_mode), compute_mode) {
        (true, _) => Ok(()),
        (false, ComputeMode::TimeSlicing) => Err(Check::SmSharingOnly),
        (false, ComputeMode::SmSharing) => Err(Check::ComputeMode),
    }
}

/// Whether the node's MIG strategy accepts the kind of GPU request.
fn mig_check(node: &Node, shape: &Shape) -> Result<(), Check> {
    let is_mig = match shape.gpu {
        GpuKind::None => return Ok(()),
        GpuKind::Mig { legacy: true } => return Err(Check::MigMismatch),
        GpuKind::Mig { legacy: false } => true,
        GpuKind::Whole { .. } | GpuKind::Fraction { .. } | GpuKind::Memory { .. } => false,
    };
    if !node.mig_enabled {
        return if is_mig { Err(Check::MigMismatch) } else { Ok(()) };
    }
    let whole = matches!(shape.gpu, GpuKind::Whole { .. });
    let suits = match node.mig_strategy {
        MigStrategy::Single => whole,
        MigStrategy::Mixed => is_mig,
        MigStrategy::None => true,
    };
    if suits { Ok(()) } else { Err(Check::MigMismatch) }
}
