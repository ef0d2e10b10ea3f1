//! The Queue kind: quotas, limits and weights of a part of the users.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ResourceList, schema};

/// The settings of a queue.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "scheduling.run.ai",
    version = "v2",
    kind = "Queue",
    plural = "queues",
    singular = "queue",
    status = "QueueStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A queue of workloads with its quotas and limits.",
    printcolumn = r#"{"name":"Priority","type":"string","jsonPath":".spec.priority"}"#,
    printcolumn = r#"{"name":"Parent","type":"string","jsonPath":".spec.parentQueue"}"#,
    printcolumn = r#"{"name":"Children","type":"string","jsonPath":".status.childQueues"}"#,
    printcolumn = r#"{"name":"DisplayName","type":"string","jsonPath":".spec.displayName"}"#,
    printcolumn = r#"{"name":"GPU-Quota","type":"number","jsonPath":".spec.resources.gpu.quota"}"#,
    printcolumn = r#"{"name":"GPU-Fair-Share","type":"string","jsonPath":".status.fairShare.nvidia\\.com/gpu"}"#,
    printcolumn = r#"{"name":"GPU-Used","type":"string","jsonPath":".status.allocated.nvidia\\.com/gpu"}"#,
    printcolumn = r#"{"name":"GPU-Requested","type":"string","jsonPath":".status.requested.nvidia\\.com/gpu"}"#,
    printcolumn = r#"{"name":"GPU-Limit","type":"number","jsonPath":".spec.resources.gpu.limit","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct QueueSpec {
    /// The name in messages and metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// The parent queue; none for a root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_queue: Option<String>,
    /// Queues of higher priority are served first and reclaimed from last; 100 if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// Quotas, limits and weights by resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<QueueResources>,
    /// How long workloads run before workloads of the same queue may evict them. A duration such as 5m; inherited if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempt_min_runtime: Option<String>,
    /// How long workloads run before workloads of other queues may evict them. A duration such as 5m; inherited if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_min_runtime: Option<String>,
}

/// Quotas, limits and weights of a queue by resource.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct QueueResources {
    /// In GPUs; fractions are allowed.
    #[serde(default)]
    pub gpu: QueueResource,
    /// In milli-cores.
    #[serde(default)]
    pub cpu: QueueResource,
    /// In millions of bytes.
    #[serde(default)]
    pub memory: QueueResource,
}

/// Quota, limit and weight of one resource. Unset values are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueResource {
    /// The guaranteed amount; -1 for unlimited.
    #[serde(default)]
    pub quota: f64,
    /// The weight among siblings in the division of resources above quota.
    #[serde(default)]
    pub over_quota_weight: f64,
    /// The highest amount; -1 for unlimited.
    #[serde(default)]
    pub limit: f64,
}

impl QueueResource {
    /// Unlimited, with weight 1.
    pub const UNLIMITED: QueueResource = QueueResource {
        quota: -1.0,
        over_quota_weight: 1.0,
        limit: -1.0,
    };
}

/// The status of a queue.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// Conditions; kai does not write them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<QueueCondition>,
    /// Names of the child queues.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub child_queues: Vec<String>,
    /// Allocated resources, with those of child queues.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub allocated: ResourceList,
    /// The non-preemptible part of the allocated resources.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub allocated_non_preemptible: ResourceList,
    /// Requested resources, with those of child queues.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub requested: ResourceList,
    /// The present fair share. The scheduler updates it every 30 seconds at most.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub fair_share: ResourceList,
}

/// A condition of a queue.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueCondition {
    /// Orphan or OverQuota.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// Time of the last update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub last_probe_time: Option<Time>,
    /// Time of the last transition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub last_transition_time: Option<Time>,
    /// Machine-readable reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Message for users.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}
