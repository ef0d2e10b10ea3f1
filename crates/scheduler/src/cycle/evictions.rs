//! Groups the evictions of one cycle: one event covers all pods that a gang loses for the same reason.

use std::sync::Arc;

use kai_api::{ObjectKey, ObjectReference};
use kai_cluster::{ObjectEvent, Severity};
use kai_engine::model::{Action, GangKey};
use kai_engine::reasons::EvictionReason;

use crate::decision_log;
use crate::explain::event;
use crate::metrics::Metrics;
use crate::writers::StatusQueue;
use kai_mirror::ClusterMirror;

/// The names of evicted pods in an event take no more bytes: a gang may lose thousands of pods, and an object has a bound.
const POD_NAMES_BYTES_MAX: usize = 4_096;

/// The evictions of a cycle in the order of its decisions.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    /// Victim, reason, names of the pods.
    by_gang: Vec<(ObjectKey, EvictionReason, Vec<Arc<str>>)>,
}

impl Evictions {
    pub(super) fn add(&mut self, gang: &ObjectKey, pod: &Arc<str>, reason: &EvictionReason) {
        // The decisions on the pods of one gang are adjacent.
        match self.by_gang.last_mut() {
            Some((victim, its_reason, pods)) if victim == gang && its_reason == reason => pods.push(pod.clone()),
            Some(_) | None => self.by_gang.push((gang.clone(), reason.clone(), vec![pod.clone()])),
        }
    }

    /// Emits an event and counts the pods for each entry.
    pub(super) fn emit(self, mirror: &ClusterMirror, status_queue: &StatusQueue, metrics: &Metrics, pool: &str) {
        for (gang, reason, pods) in self.by_gang {
            let Some(group) = mirror.pod_group(&gang) else { continue };
            let (about, workload) = (ObjectReference::of(&**group), group.workload());
            metrics.evicted(&about, pool, action(&reason).name(), pods.len() as u64);
            status_queue.add_further_event(eviction_event(about, workload, &reason, &pods, mirror));
        }
    }
}

fn action(reason: &EvictionReason) -> Action {
    match reason {
        EvictionReason::For { action, .. } => *action,
        EvictionReason::StaleGang | EvictionReason::LeavingNode => Action::StaleGangEviction,
        EvictionReason::Background { .. } => Action::BackgroundPods,
    }
}

fn eviction_event(
    about: kai_api::ObjectReference,
    workload: String,
    reason: &EvictionReason,
    names: &[Arc<str>],
    mirror: &ClusterMirror,
) -> ObjectEvent {
    let pods = names.len() as u64;
    let (evictor, all_pods) = match reason {
        EvictionReason::For { gang, pods, .. } => (Some(gang), u64::from(*pods)),
        EvictionReason::StaleGang | EvictionReason::LeavingNode | EvictionReason::Background { .. } => (None, pods),
    };
    let evictor_workload = evictor.map(|gang| mirror.workload(gang)).unwrap_or_default();
    let evictor = |part: fn(&GangKey) -> &String| evictor.map(|gang| part(gang)).cloned().unwrap_or_default();
    let mut annotations = vec![
        (kai_api::keys::EVENT_EVICTED_PODS, all_pods.to_string()),
        (kai_api::keys::EVENT_EVICTED_POD_NAMES, pod_names(names)),
        (kai_api::keys::EVENT_ACTION, action(reason).name().to_owned()),
        (kai_api::keys::EVENT_EVICTOR, evictor(|gang| &gang.name)),
        (kai_api::keys::EVENT_EVICTOR_NAMESPACE, evictor(|gang| &gang.namespace)),
        (kai_api::keys::EVENT_WORKLOAD, workload),
        (kai_api::keys::EVENT_EVICTOR_WORKLOAD, evictor_workload),
    ];
    let fairness = decision_log::fairness(reason).and_then(|fairness| serde_json::to_string(&fairness).ok());
    annotations.extend(fairness.map(|fairness| (kai_api::keys::EVENT_FAIRNESS, fairness)));
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

/// The names with commas. Where they are too long, the last entry is `+` and the number of the others.
fn pod_names(names: &[Arc<str>]) -> String {
    let mut text = String::new();
    for (at, name) in names.iter().enumerate() {
        if text.len() + 1 + name.len() > POD_NAMES_BYTES_MAX {
            return format!("{text},+{}", names.len() - at);
        }
        text.push_str(if at == 0 { "" } else { "," });
        text.push_str(name);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_many_pods_end_in_a_number() {
        let names = |count: usize| -> Vec<Arc<str>> { (0..count).map(|at| format!("pod-{at:06}").into()).collect() };
        assert_eq!(pod_names(&names(2)), "pod-000000,pod-000001");
        let many = pod_names(&names(1_000));
        assert!(
            many.starts_with("pod-000000,pod-000001,") && many.ends_with(",pod-000371,+628"),
            "{many}"
        );
        assert_eq!(many.split(',').count(), 372 + 1);
    }
}
