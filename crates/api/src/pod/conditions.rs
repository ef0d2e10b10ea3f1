//! Conditions of a pod. The slim type keeps only conditions that kai reads, and only while they are not true: every pod has several, and
//! those of a running pod are not needed. The condition of a pending resize becomes part of `Resize`.

use serde::{Deserialize, Deserializer};

use super::chosen::chosen;
use crate::text::Text;

/// A condition of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodCondition {
    /// Type.
    #[serde(rename = "type")]
    pub type_: Text,
    /// Status.
    pub status: ConditionStatus,
    /// Machine-readable reason.
    pub reason: Option<Text>,
    /// Message for users.
    pub message: Option<Text>,
}

impl PodCondition {
    /// `PodScheduled`: the pod has a node.
    pub const SCHEDULED: &str = "PodScheduled";
    /// The binder has bound the pod.
    pub const BOUND: &str = "PodBound";
    /// `DisruptionTarget`: the pod is about to be evicted.
    pub const DISRUPTION_TARGET: &str = "DisruptionTarget";

    /// `PodResizePending`: the kubelet has not allocated what the spec asks for.
    const RESIZE_PENDING: &str = "PodResizePending";

    const OF_INTEREST: [&str; 2] = [Self::SCHEDULED, Self::BOUND];

    fn is_of_interest(&self) -> bool {
        let is_unmet = self.status != ConditionStatus::True && Self::OF_INTEREST.contains(&&*self.type_);
        is_unmet || self.is_resize_pending()
    }

    pub(super) fn is_resize_pending(&self) -> bool {
        &*self.type_ == Self::RESIZE_PENDING
    }

    /// Whether the kubelet has refused a pending resize for good. Like kube-scheduler, only the reason counts.
    pub(super) fn is_infeasible(&self) -> bool {
        self.reason.as_deref() == Some("Infeasible")
    }
}

/// The status of a condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// The status is not known.
    #[default]
    #[serde(other)]
    Unknown,
}

/// For `#[serde(deserialize_with)]`.
pub(super) fn of_interest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PodCondition>, D::Error> {
    chosen(deserializer, |condition: PodCondition| {
        condition.is_of_interest().then_some(condition)
    })
}

#[cfg(test)]
mod tests {
    use super::super::Pod;
    use super::*;

    #[test]
    fn only_what_is_read_is_kept() {
        let pod: Pod = serde_json::from_str(
            r#"{"status":{"conditions":[{"type":"Ready","status":"True"},
                {"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"no"},
                {"type":"PodBound","status":"Maybe"}]}}"#,
        )
        .unwrap();
        assert_eq!(pod.status.conditions.len(), 2);
        let scheduled = pod.condition(PodCondition::SCHEDULED).unwrap();
        assert_eq!(scheduled.status, ConditionStatus::False);
        assert_eq!(scheduled.reason.as_deref(), Some("Unschedulable"));
        assert_eq!(
            pod.condition(PodCondition::BOUND).unwrap().status,
            ConditionStatus::Unknown
        );
        assert_eq!(pod.condition("Ready"), None);
        let runs: Pod =
            serde_json::from_str(r#"{"status":{"conditions":[{"type":"PodScheduled","status":"True"}]}}"#).unwrap();
        assert!(runs.status.conditions.is_empty());
        let none: Pod = serde_json::from_str(r#"{"status":{"conditions":null}}"#).unwrap();
        assert!(none.status.conditions.is_empty());
    }
}
