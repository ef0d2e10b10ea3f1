//! Groups the evictions of one cycle: one event covers all pods that a gang loses for the same reason.

use kai_api::{ObjectKey, ObjectReference};
use kai_cluster::{ObjectEvent, Severity};
use kai_engine::model::{Action, GangKey};
use kai_engine::reasons::EvictionReason;

use crate::explain::event;
use crate::metrics::Metrics;
use crate::writers::StatusQueue;
use kai_mirror::ClusterMirror;

/// The evictions of a cycle in the order of its decisions.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    /// Victim, reason, number of pods.
    by_gang: Vec<(ObjectKey, EvictionReason, u64)>,
}

impl Evictions {
    pub(super) fn add(&mut self, gang: &ObjectKey, reason: &EvictionReason) {
        // The decisions on the pods of one gang are adjacent.
        match self.by_gang.last_mut() {
            Some((victim, its_reason, pods)) if victim == gang && its_reason == reason => *pods += 1,
            Some(_) | None => self.by_gang.push((gang.clone(), reason.clone(), 1)),
        }
    }

    /// Emits an event and counts the pods for each entry.
    pub(super) fn emit(self, mirror: &ClusterMirror, status_queue: &StatusQueue, metrics: &Metrics, pool: &str) {
        for (gang, reason, pods) in self.by_gang {
            let Some(group) = mirror.pod_group(&gang) else { continue };
            let about = ObjectReference::of(&**group);
            metrics.evicted(&about, pool, action(&reason).name(), pods);
            status_queue.add_event(eviction_event(about, &reason, pods, mirror));
        }
    }
}

fn action(reason: &EvictionReason) -> Action {
    match reason {
        EvictionReason::For { action, .. } => *action,
        EvictionReason::StaleGang => Action::StaleGangEviction,
        EvictionReason::Background { .. } => Action::BackgroundPods,
    }
}

fn eviction_event(
    about: kai_api::ObjectReference,
    reason: &EvictionReason,
    pods: u64,
    mirror: &ClusterMirror,
) -> ObjectEvent {
    let (evictor, all_pods) = match reason {
        EvictionReason::For { gang, pods, .. } => (Some(gang), u64::from(*pods)),
        EvictionReason::StaleGang | EvictionReason::Background { .. } => (None, pods),
    };
    let evictor = |part: fn(&GangKey) -> &String| evictor.map(|gang| part(gang)).cloned().unwrap_or_default();
    let annotations = vec![
        (kai_api::keys::EVENT_EVICTED_PODS, all_pods.to_string()),
        (kai_api::keys::EVENT_ACTION, action(reason).name().to_owned()),
        (kai_api::keys::EVENT_EVICTOR, evictor(|gang| &gang.name)),
        (kai_api::keys::EVENT_EVICTOR_NAMESPACE, evictor(|gang| &gang.namespace)),
    ];
    let plural = if pods == 1 { "" } else { "s" };
    let name = |gang: &GangKey| mirror.workload(gang);
    let reason = reason.with_names(&name);
    ObjectEvent {
        annotations,
        ..event(
            about,
            Severity::Normal,
            "Evict",
            format!("{pods} pod{plural} evicted: {reason}"),
        )
    }
}
