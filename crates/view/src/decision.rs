//! Decisions of the scheduler: which pod it bound, promised a place or evicted, for whom and why.

use serde::{Deserialize, Serialize};

use crate::{Fairness, PodGpus, Time};

/// A decision of the scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// Number of the decision. Numbers grow by one from decision to decision; a scheduler that starts begins anew.
    pub number: u64,
    /// The time of the cycle.
    pub time: Time,
    /// What was decided.
    pub kind: DecisionKind,
    /// The action that decided: `allocate`, `consolidation`, `reclaim`, `preempt`, `backgroundpods` or `stalegangeviction`; `None` = unknown.
    pub action: Option<String>,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Name of its pod group.
    pub pod_group: Option<String>,
    /// The workload as people name it: `Deployment llm`.
    pub workload: String,
    /// Its queue.
    pub queue: Option<String>,
    /// The node that the pod gets, or that it leaves.
    pub node: Option<String>,
    /// GPUs that the pod requests or holds; `None` = unknown.
    pub gpus: Option<PodGpus>,
    /// For whom the pod is evicted; `None` for a pod that gets a place, for a gang below its minimum and where it is unknown.
    pub beneficiary: Option<Beneficiary>,
    /// Why, in the words of the conditions; `None` for a pod that gets a free place.
    pub reason: Option<String>,
    /// The rule of a reclaim or a preemption, with the numbers that it compared; `None` for other decisions, for a pod that is moved and
    /// where it is unknown.
    #[serde(default)]
    pub fairness: Option<Fairness>,
    /// Since when a pod that gets a place waited: its creation. `None` for an eviction and where it is unknown.
    #[serde(default)]
    pub waiting_since: Option<Time>,
    /// Why it waited: the last reason in its condition, which may be shortened. `None` if the condition had none yet.
    #[serde(default)]
    pub waiting_reason: Option<String>,
}

/// Kinds of decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DecisionKind {
    /// The pod gets its place now.
    Bind,
    /// The pod is promised a place that other pods are leaving.
    Promise,
    /// The pod is evicted.
    Evict,
}

impl DecisionKind {
    /// The kind as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            DecisionKind::Bind => "bind",
            DecisionKind::Promise => "promise",
            DecisionKind::Evict => "evict",
        }
    }
}

/// The gang that another pod makes room for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Beneficiary {
    /// Namespace.
    pub namespace: String,
    /// Name of the pod group.
    pub pod_group: String,
    /// The workload as people name it: `Deployment llm`.
    pub workload: String,
    /// Its queue.
    pub queue: Option<String>,
}
