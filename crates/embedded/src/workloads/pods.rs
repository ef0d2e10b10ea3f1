//! The pods of a workload as controllers read them. Pure.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::objects::Workload;

/// A pod that a workload owns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnedPod {
    pub(super) name: String,
    pub(super) phase: Phase,
    /// Since when the pod is ready.
    pub(super) ready_since: Option<Timestamp>,
    /// Whether the pod has a deletionTimestamp.
    pub(super) terminating: bool,
    pub(super) node: Option<String>,
    /// The label `controller-revision-hash`.
    pub(super) revision: String,
    pub(super) created: String,
    pub(super) deletion_cost: i64,
    /// The completion index in an indexed Job.
    pub(super) index: Option<i64>,
}

/// Label and annotation of the completion index.
pub(super) const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// The phase of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    #[default]
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl OwnedPod {
    /// Reads a pod from a list.
    pub(super) fn of(pod: &Value) -> OwnedPod {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (metadata, status) = (&pod["metadata"], &pod["status"]);
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        let ready = conditions.find(|condition| condition["type"] == "Ready" && condition["status"] == "True");
        let since = ready.map(|condition| condition["lastTransitionTime"].as_str().unwrap_or_default());
        let number = |value: &Value| value.as_str().and_then(|text| text.parse::<i64>().ok());
        let cost = &metadata["annotations"]["controller.kubernetes.io/pod-deletion-cost"];
        OwnedPod {
            name: text(&metadata["name"]),
            phase: match status["phase"].as_str() {
                Some("Running") => Phase::Running,
                Some("Succeeded") => Phase::Succeeded,
                Some("Failed") => Phase::Failed,
                _ => Phase::Pending,
            },
            ready_since: since.map(|text| text.parse().unwrap_or(Timestamp::MIN)),
            terminating: !metadata["deletionTimestamp"].is_null(),
            node: target_node(pod).map(str::to_owned),
            revision: text(&metadata["labels"]["controller-revision-hash"]),
            created: text(&metadata["creationTimestamp"]),
            deletion_cost: number(cost).unwrap_or(0),
            index: number(&metadata["annotations"][COMPLETION_INDEX]),
        }
    }

    /// Whether the pod is neither terminal nor terminating.
    pub(super) fn is_active(&self) -> bool {
        !self.terminating && !self.has_ended()
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready_since.is_some()
    }

    /// The time until the pod is available: zero if it is, `None` if it is not ready.
    pub(super) fn available_in(&self, min_ready_seconds: i64, now: Timestamp) -> Option<Duration> {
        let since = self.ready_since?;
        let passed = now.as_second().saturating_sub(since.as_second());
        let rest = u64::try_from(min_ready_seconds.saturating_sub(passed)).unwrap_or(0);
        Some(Duration::from_secs(rest))
    }
}

/// The node of a pod, or the node that the affinity of a DaemonSet's pod names.
fn target_node(pod: &Value) -> Option<&str> {
    let affinity = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let wanted = &affinity["nodeSelectorTerms"][0]["matchFields"][0];
    let by_affinity = (wanted["key"] == "metadata.name").then(|| wanted["values"][0].as_str());
    pod["spec"]["nodeName"].as_str().or(by_affinity.flatten())
}

/// The pod counts of a workload's status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) active: i64,
    pub(super) ready: i64,
    pub(super) available: i64,
    /// When the next ready pod becomes available.
    pub(super) next_available_in: Option<Duration>,
}

impl Counts {
    /// Counts the active pods.
    pub(super) fn of<'a>(workload: &Workload, pods: impl IntoIterator<Item = &'a OwnedPod>, now: Timestamp) -> Counts {
        let mut counts = Counts::default();
        for pod in pods.into_iter().filter(|pod| pod.is_active()) {
            counts.active += 1;
            let Some(rest) = pod.available_in(workload.min_ready_seconds(), now) else {
                continue;
            };
            counts.ready += 1;
            if rest.is_zero() {
                counts.available += 1;
            } else {
                counts.next_available_in = Some(counts.next_available_in.map_or(rest, |next| next.min(rest)));
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_ready_pod_is_available_after_min_ready_seconds() {
        let pod = OwnedPod::of(
            &json!({ "metadata": { "name": "a" }, "status": { "phase": "Running", "conditions": [
            { "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" },
        ] } }),
        );
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(
            pod.available_in(10, at("2026-01-01T00:00:04Z")),
            Some(Duration::from_secs(6))
        );
        assert_eq!(pod.available_in(10, at("2026-01-01T00:00:10Z")), Some(Duration::ZERO));
        assert_eq!(OwnedPod::default().available_in(0, at("2026-01-01T00:00:00Z")), None);
    }
}
