//! The Queue kind: who may use how much of the cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ResourceList, schema};

/// What a queue is promised.
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
    doc = "A share of the cluster.",
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
    /// The name that people are shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// The queue it is part of; none for a root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_queue: Option<String>,
    /// Higher is served first and reclaimed from last; 100 if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// How much of each resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<QueueResources>,
    /// How long its work runs before work of the same queue may evict it. A duration such as 5m; inherited if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempt_min_runtime: Option<String>,
    /// How long its work runs before other queues may evict it. A duration such as 5m; inherited if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_min_runtime: Option<String>,
}

/// How much of each resource a queue is promised.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct QueueResources {
    /// In GPUs; parts are fine.
    #[serde(default)]
    pub gpu: QueueResource,
    /// In thousandths of a CPU.
    #[serde(default)]
    pub cpu: QueueResource,
    /// In millions of bytes.
    #[serde(default)]
    pub memory: QueueResource,
}

/// How much of one resource a queue is promised. What is not written is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueResource {
    /// What is its own; -1 for no bound.
    #[serde(default)]
    pub quota: f64,
    /// Its part of what others leave, relative to its siblings.
    #[serde(default)]
    pub over_quota_weight: f64,
    /// The most it may have; -1 for no bound.
    #[serde(default)]
    pub limit: f64,
}

impl QueueResource {
    /// No bound, and an equal part of what others leave.
    pub const UNLIMITED: QueueResource = QueueResource {
        quota: -1.0,
        over_quota_weight: 1.0,
        limit: -1.0,
    };
}

/// What a queue uses.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// Conditions; nothing of ours writes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<QueueCondition>,
    /// Names of the queues that are part of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub child_queues: Vec<String>,
    /// What its work has, with that of its children.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub allocated: ResourceList,
    /// The part of it that can't be preempted.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub allocated_non_preemptible: ResourceList,
    /// What its work asks for, with that of its children.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub requested: ResourceList,
    /// What it may have at present beside all others that ask; the scheduler writes it now and then.
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
    /// When it was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub last_probe_time: Option<Time>,
    /// When it changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub last_transition_time: Option<Time>,
    /// One word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}
