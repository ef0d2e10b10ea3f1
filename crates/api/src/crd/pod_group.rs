//! The PodGroup kind: pods that are scheduled together, and what became of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ResourceList, schema};
use crate::SUB_GROUPS_MAX;

/// What a pod group asks for.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "scheduling.run.ai",
    version = "v2alpha2",
    kind = "PodGroup",
    plural = "podgroups",
    singular = "podgroup",
    shortname = "pg",
    namespaced,
    status = "PodGroupStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Pods that are scheduled together.",
    printcolumn = r#"{"name":"Queue","type":"string","jsonPath":".spec.queue"}"#,
    printcolumn = r#"{"name":"Minimum","type":"integer","jsonPath":".spec.minMember"}"#,
    printcolumn = r#"{"name":"Running","type":"integer","jsonPath":".status.running"}"#,
    printcolumn = r#"{"name":"Pending","type":"integer","jsonPath":".status.pending"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Priority","type":"string","jsonPath":".spec.priorityClassName","priority":1}"#,
    printcolumn = r#"{"name":"GPUs","type":"string","jsonPath":".status.resourcesStatus.allocated.nvidia\\.com/gpu","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupSpec {
    /// How many pods must start together; 0 means no gang. Not together with minSubGroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_member: Option<i32>,
    /// How many direct subgroups must start together; all of them if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_sub_group: Option<i32>,
    /// Name of the queue that pays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Name of the PriorityClass that gives the priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Whether others may take its place; if unset, whether its priority is below 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptibility: Option<Preemptibility>,
    /// How close together the pods must be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_constraint: Option<TopologyConstraint>,
    /// Parts of the group with minimums and places of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = SUB_GROUPS_MAX))]
    pub sub_groups: Vec<SubGroup>,
    /// Whether pods that don't fit get a PodScheduled condition that says so; true if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark_unschedulable: Option<bool>,
    /// How often it is tried in each node pool: -1 (the default) for ever, 1 once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_backoff: Option<i32>,
    /// How long it waits, from creation or its last eviction, before it may evict others. A duration such as 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption_delay: Option<String>,
    /// How long it may run below its minimum before it is evicted. A duration such as 60s; negative means for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staleness_grace_period: Option<String>,
}

/// Whether others may take a workload's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Preemptibility {
    /// They may.
    Preemptible,
    /// They may not.
    NonPreemptible,
}

/// How close together pods must be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyConstraint {
    /// Name of the Topology; without it the constraint means nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// The level within one domain of which all pods must be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_topology_level: Option<String>,
    /// The level within one domain of which all pods should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_topology_level: Option<String>,
}

/// Part of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubGroup {
    /// Name, unique within the group.
    #[schemars(length(min = 1), regex(pattern = schema::LABEL_PATTERN))]
    pub name: String,
    /// How many pods of a subgroup without children must start together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_member: Option<i32>,
    /// How many children of a subgroup must start together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_sub_group: Option<i32>,
    /// Name of the subgroup it is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::LABEL_PATTERN))]
    pub parent: Option<String>,
    /// How close together its pods must be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_constraint: Option<TopologyConstraint>,
}

/// What became of a pod group.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupStatus {
    /// Running once a pod of it has a node, Pending before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Its pods that have a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<i32>,
    /// Its pods that wait for a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<i32>,
    /// General conditions; nothing of ours writes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<PodGroupCondition>,
    /// Why it does not run, one entry per node pool, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scheduling_conditions: Vec<SchedulingCondition>,
    /// What its pods ask for and have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources_status: Option<ResourcesStatus>,
}

/// How many pods of a group have a node and how many wait for one, as its status has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PodCounts {
    /// In a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Those with a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<i32>,
    /// Those without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<i32>,
}

impl PodCounts {
    /// Phase: a pod has a node.
    pub const RUNNING: &str = "Running";
    /// Phase: none has.
    pub const PENDING: &str = "Pending";

    /// The counts of a group with so many pods of either kind. A group without pods has none.
    pub fn of(running: usize, pending: usize) -> PodCounts {
        if running + pending == 0 {
            return PodCounts::default();
        }
        let count = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
        let phase = if running > 0 { Self::RUNNING } else { Self::PENDING };
        PodCounts {
            phase: Some(phase.to_owned()),
            running: Some(count(running)),
            pending: Some(count(pending)),
        }
    }
}

/// A general condition.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupCondition {
    /// Type.
    #[serde(rename = "type", default, skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// True, False or Unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// Which change this was.
    #[serde(rename = "transitionID", default, skip_serializing_if = "String::is_empty")]
    pub transition_id: String,
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

/// Why a group does not run in a node pool.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingCondition {
    /// [`SchedulingCondition::UNSCHEDULABLE`].
    #[serde(rename = "type", default, skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// The node pool; `default` for the one without a label.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_pool: String,
    /// One word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// All reasons as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// All reasons for programs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<UnschedulableReason>,
    /// A number that grows with every change.
    #[serde(rename = "transitionID", default, skip_serializing_if = "String::is_empty")]
    pub transition_id: String,
    /// When it changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub last_transition_time: Option<Time>,
    /// True, False or Unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
}

impl SchedulingCondition {
    /// The only type there is.
    pub const UNSCHEDULABLE: &str = "UnschedulableOnNodePool";
    /// The reason of that type.
    pub const REASON: &str = "Unschedulable";

    /// Whether both say the same; when it was said and in which change does not count.
    pub fn same_content(&self, other: &SchedulingCondition) -> bool {
        self.type_ == other.type_
            && self.node_pool == other.node_pool
            && self.reason == other.reason
            && self.message == other.message
            && self.status == other.status
    }
}

/// One reason why a group does not run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnschedulableReason {
    /// One word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<ReasonDetails>,
}

impl UnschedulableReason {
    /// A queue's limit would be exceeded.
    pub const OVER_LIMIT: &str = "OverLimit";
    /// Work that can't be preempted would exceed a queue's quota.
    pub const NON_PREEMPTIBLE_OVER_QUOTA: &str = "NonPreemptibleOverQuota";
    /// There is no such queue, or it has no way to a root.
    pub const QUEUE_DOES_NOT_EXIST: &str = "QueueDoesNotExist";
    /// It may not evict others yet.
    pub const PREEMPTION_DELAY_NOT_ELAPSED: &str = "PreemptionDelayNotElapsed";
    /// Its pods fit nowhere.
    pub const POD_SCHEDULING_ERRORS: &str = "PodSchedulingErrors";
}

/// Numbers behind a reason.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReasonDetails {
    /// The queue that stands in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_details: Option<QueueDetails>,
}

/// The queue that stands in the way of a group.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueDetails {
    /// Name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// What all work in the queue asks for.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub queue_requested_resources: ResourceList,
    /// The queue's quota.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub queue_deserved_resources: ResourceList,
    /// What the queue has.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub queue_allocated_resources: ResourceList,
    /// The part of it that can't be preempted.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub queue_allocated_non_preemptible_resources: ResourceList,
    /// The queue's limits.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub queue_resource_limits: ResourceList,
    /// What the group asks for.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub pod_group_requested_resources: ResourceList,
    /// The part of it that can't be preempted.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub pod_group_requested_non_preemptible_resources: ResourceList,
}

/// What the pods of a group ask for and have.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourcesStatus {
    /// Of pods that run or are about to.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub allocated: ResourceList,
    /// The same, of a group that can't be preempted.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub allocated_non_preemptible: ResourceList,
    /// Of all pods that have not ended.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub requested: ResourceList,
}
