//! BindRequests: decisions of the scheduler that the binder executes.

use kai_engine::model::{BindInFlight, GpuFraction, PodSpec};
use serde::{Deserialize, Deserializer};

use crate::gpu_request::parse_portion;
use crate::metadata::Metadata;
use crate::text::{Text, null_as_default};

/// A BindRequest.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct BindRequest {
    /// The kind as written; `None` in items of a list, which leaves it out.
    pub kind: Option<Text>,
    /// Metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "null_as_default")]
    spec: Spec,
    #[serde(deserialize_with = "null_as_default")]
    status: Status,
}

crate::object::object!(
    BindRequest,
    "scheduling.run.ai",
    "v1alpha2",
    "BindRequest",
    "bindrequests",
    Namespaced
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    pod_name: Option<Text>,
    selected_node: Option<Text>,
    #[serde(rename = "selectedGPUGroups", deserialize_with = "null_as_default")]
    selected_gpu_groups: Vec<Text>,
    backoff_limit: Option<i32>,
    received_resource_type: Option<Text>,
    #[serde(rename = "receivedGPU")]
    received_gpu: Option<ReceivedGpu>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ReceivedGpu {
    #[serde(deserialize_with = "portion")]
    portion: Option<GpuFraction>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: Option<Text>,
    failed_attempts: Option<i32>,
    reason: Option<Text>,
}

/// A portion that can't be read counts as missing: the scheduler alone writes it, and the binder still has the pod's annotation.
fn portion<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<GpuFraction>, D::Error> {
    let text: Option<Text> = Option::deserialize(deserializer)?;
    Ok(text.and_then(|text| parse_portion(&text)))
}

/// The phase of a bind request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindPhase {
    /// The binder has not finished an attempt, or has set no known phase.
    Pending,
    /// The pod is bound.
    Succeeded,
    /// The last attempt failed.
    Failed,
}

impl BindRequest {
    /// The pod's name; the request's own name if the spec has none.
    pub fn pod_name(&self) -> &str {
        self.spec
            .pod_name
            .as_deref()
            .unwrap_or_else(|| self.metadata.plain_name())
    }

    /// The selected node; empty if missing.
    pub fn selected_node(&self) -> &str {
        self.spec.selected_node.as_deref().unwrap_or_default()
    }

    /// The selected GPU groups, one per device.
    pub fn gpu_groups(&self) -> &[Text] {
        &self.spec.selected_gpu_groups
    }

    /// The type of resources that the pod gets, one of the `RECEIVED_*` keys.
    pub fn received_resource_type(&self) -> &str {
        let given = self.spec.received_resource_type.as_deref();
        given.unwrap_or(crate::keys::RECEIVED_REGULAR)
    }

    /// The part of each GPU that the pod gets; `None` if it is missing or can't be read.
    pub fn portion(&self) -> Option<GpuFraction> {
        self.spec.received_gpu.as_ref()?.portion
    }

    /// The phase in the status.
    pub fn phase(&self) -> BindPhase {
        match self.status.phase.as_deref() {
            Some("Succeeded") => BindPhase::Succeeded,
            Some("Failed") => BindPhase::Failed,
            _ => BindPhase::Pending,
        }
    }

    /// Why the last attempt failed.
    pub fn reason(&self) -> &str {
        self.status.reason.as_deref().unwrap_or_default()
    }

    /// The number of failed attempts.
    pub fn failed_attempts(&self) -> i32 {
        self.status.failed_attempts.unwrap_or(0)
    }

    /// The number of failed attempts after which the binder gives up; `None`: one.
    pub fn backoff_limit(&self) -> Option<i32> {
        self.spec.backoff_limit
    }

    /// Whether the request failed and the binder makes no further attempt.
    pub fn failed_for_good(&self) -> bool {
        let is_exhausted = self.backoff_limit().is_none_or(|limit| self.failed_attempts() >= limit);
        self.phase() == BindPhase::Failed && is_exhausted
    }

    /// Whether the request is for the pod with this uid, among the pods of its namespace and pod name: an earlier pod may have had the name.
    ///
    /// A request names its pod as an owner. The garbage collector keeps it while any of its owners exists, so it is for each pod among them.
    /// A request without such an owner is for any pod of the name; KAI never looks at the uid.
    pub fn is_for_pod(&self, uid: &str) -> bool {
        let mut pods = self
            .metadata
            .owner_references
            .iter()
            .filter(|owner| &*owner.kind == "Pod")
            .peekable();
        pods.peek().is_none() || pods.any(|owner| &*owner.uid == uid)
    }

    /// Adds the binding in flight to the pod. The GPU groups of a finished request take precedence over the pod's labels.
    pub fn attach(&self, pod: &mut PodSpec) {
        let Some(bind) = self.in_flight() else { return };
        if !bind.gpu_groups.is_empty() {
            pod.gpu_groups.clone_from(&bind.gpu_groups);
        }
        pod.bind_in_flight = pod.node.is_none().then_some(bind);
    }

    /// The binding in flight; `None` if the request failed for good.
    fn in_flight(&self) -> Option<BindInFlight> {
        if self.failed_for_good() || self.selected_node().is_empty() {
            return None;
        }
        let node = self.selected_node().to_owned();
        let gpu_groups = self.spec.selected_gpu_groups.iter().map(Text::to_string).collect();
        Some(BindInFlight { node, gpu_groups })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Option<&str>) {
        let request: BindRequest = serde_json::from_str(text).unwrap();
        assert_eq!(request.in_flight().map(|bind| bind.node).as_deref(), expect, "{text}");
    }

    #[test]
    fn a_bind_request_is_for_each_pod_that_owns_it() {
        let check = |owners: &str, expect: bool| {
            let text = format!(r#"{{"metadata":{{"ownerReferences":[{owners}]}}}}"#);
            let request: BindRequest = serde_json::from_str(&text).unwrap();
            assert_eq!(request.is_for_pod("u"), expect, "{text}");
        };
        check("", true);
        check(r#"{"kind":"Pod","uid":"u"}"#, true);
        check(r#"{"kind":"Pod","uid":"v"}"#, false);
        check(r#"{"kind":"Job","uid":"v"}"#, true);
        check(r#"{"kind":"Pod","uid":"v"},{"kind":"Pod","uid":"u"}"#, true);
        check(r#"{"kind":"Pod","uid":"v"},{"kind":"Job","uid":"u"}"#, false);
    }

    #[test]
    fn a_bind_request_counts_until_it_failed_for_good() {
        check(r#"{"spec":{"podName":"p","selectedNode":"n"}}"#, Some("n"));
        check(r#"{"spec":{"selectedNode":"n"},"status":{"phase":"Failed"}}"#, None);
        let limited =
            r#"{"spec":{"selectedNode":"n","backoffLimit":3},"status":{"phase":"Failed","failedAttempts":2}}"#;
        check(limited, Some("n"));
        check(r#"{"spec":{}}"#, None);
    }
}
