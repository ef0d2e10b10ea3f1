//! BindRequests: decisions that the binder is carrying out.

use engine::model::{BindInFlight, PodSpec};
use serde::Deserialize;

use crate::metadata::Metadata;
use crate::text::{Text, null_as_default};

/// A BindRequest.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct BindRequest {
    /// What it says it is; `None` where its place says so.
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
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: Option<Text>,
    failed_attempts: Option<i32>,
}

impl BindRequest {
    /// The pod it is about; its own name where the spec has none.
    pub fn pod_name(&self) -> &str {
        self.spec
            .pod_name
            .as_deref()
            .unwrap_or_else(|| self.metadata.plain_name())
    }

    /// Tells the pod what is under way. A bind request that is done still knows the GPU groups best.
    pub fn attach(&self, pod: &mut PodSpec) {
        let Some(bind) = self.in_flight() else { return };
        if !bind.gpu_groups.is_empty() {
            pod.gpu_groups.clone_from(&bind.gpu_groups);
        }
        pod.bind_in_flight = pod.node.is_none().then_some(bind);
    }

    /// The decision, unless it failed for good.
    fn in_flight(&self) -> Option<BindInFlight> {
        let failed = self.status.phase.as_deref() == Some("Failed");
        let spent = self
            .spec
            .backoff_limit
            .is_none_or(|limit| self.status.failed_attempts.unwrap_or(0) >= limit);
        if failed && spent {
            return None;
        }
        let node = self
            .spec
            .selected_node
            .as_deref()
            .filter(|node| !node.is_empty())?
            .to_owned();
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
    fn a_bind_request_counts_until_it_failed_for_good() {
        check(r#"{"spec":{"podName":"p","selectedNode":"n"}}"#, Some("n"));
        check(r#"{"spec":{"selectedNode":"n"},"status":{"phase":"Failed"}}"#, None);
        let limited =
            r#"{"spec":{"selectedNode":"n","backoffLimit":3},"status":{"phase":"Failed","failedAttempts":2}}"#;
        check(limited, Some("n"));
        check(r#"{"spec":{}}"#, None);
    }
}
