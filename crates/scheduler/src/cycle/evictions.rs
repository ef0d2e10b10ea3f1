//! The evictions of one cycle, summed up by victim: one event tells of all pods that a gang loses for the same cause.

use kai_api::{ObjectKey, ObjectReference};
use kai_cluster::{ObjectEvent, Severity};
use kai_engine::model::{Action, GangKey};
use kai_engine::reasons::EvictionReason;

use crate::explain::note;
use crate::metrics::Metrics;
use crate::writers::Board;
use kai_mirror::ClusterMirror;

/// Pods that gangs lose in a cycle, in the order in which it was decided.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    losses: Vec<(ObjectKey, EvictionReason, u64)>,
}

impl Evictions {
    pub(super) fn add(&mut self, gang: &ObjectKey, reason: &EvictionReason) {
        // The pods of a gang are decided in a row.
        match self.losses.last_mut() {
            Some((of, cause, pods)) if of == gang && cause == reason => *pods += 1,
            Some(_) | None => self.losses.push((gang.clone(), reason.clone(), 1)),
        }
    }

    /// Tells of them.
    pub(super) fn tell(self, index: &ClusterMirror, board: &Board, metrics: &Metrics, pool: &str) {
        for (gang, reason, pods) in self.losses {
            let Some(group) = index.group(&gang) else { continue };
            let about = ObjectReference::of(&**group);
            metrics.evicted(&about, pool, action(&reason).name(), pods);
            board.note(event(about, &reason, pods, index));
        }
    }
}

fn action(reason: &EvictionReason) -> Action {
    match reason {
        EvictionReason::For { action, .. } => *action,
        EvictionReason::StaleGang => Action::StaleGangEviction,
    }
}

fn event(about: kai_api::ObjectReference, reason: &EvictionReason, pods: u64, index: &ClusterMirror) -> ObjectEvent {
    let (evictor, together) = match reason {
        EvictionReason::For { gang, pods, .. } => (Some(gang), u64::from(*pods)),
        EvictionReason::StaleGang => (None, pods),
    };
    let evictor = |part: fn(&GangKey) -> &String| evictor.map(|gang| part(gang)).cloned().unwrap_or_default();
    let annotations = vec![
        (kai_api::keys::EVENT_EVICTED_PODS, together.to_string()),
        (kai_api::keys::EVENT_ACTION, action(reason).name().to_owned()),
        (kai_api::keys::EVENT_EVICTOR, evictor(|gang| &gang.name)),
        (kai_api::keys::EVENT_EVICTOR_NAMESPACE, evictor(|gang| &gang.namespace)),
    ];
    let plural = if pods == 1 { "" } else { "s" };
    let name = |gang: &GangKey| index.workload(gang);
    let reason = reason.told(&name);
    ObjectEvent {
        annotations,
        ..note(
            about,
            Severity::Normal,
            "Evict",
            format!("{pods} pod{plural} evicted: {reason}"),
        )
    }
}
