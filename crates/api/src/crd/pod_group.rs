//! The PodGroup kind: pods that are scheduled together.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ResourceList, schema};
use crate::{SUB_GROUPS_MAX, keys};

/// The scheduling requirements of a pod group.
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
    /// The number of pods that must start together; 0 means no gang. Excludes minSubGroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_member: Option<i32>,
    /// The number of direct subgroups that must start together; all of them if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_sub_group: Option<i32>,
    /// Name of the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Name of the PriorityClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Which pods of the pod group other workloads may preempt; if unset, all of them with a priority below 100, else none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptibility: Option<Preemptibility>,
    /// The topology constraint of all pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_constraint: Option<TopologyConstraint>,
    /// Subgroups with their own minimums and topology constraints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = SUB_GROUPS_MAX))]
    pub sub_groups: Vec<SubGroup>,
    /// Whether unschedulable pods get a PodScheduled condition; true if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark_unschedulable: Option<bool>,
    /// The number of scheduling attempts in each node pool: -1 (the default) for no limit, or 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_backoff: Option<i32>,
    /// How long the pod group waits, from its creation or last eviction, before it may preempt other workloads. A duration such as 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption_delay: Option<String>,
    /// How long the pod group may run below its minimum before it is evicted. A duration such as 60s; negative means forever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staleness_grace_period: Option<String>,
}

/// Which pods of a workload other workloads may preempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Preemptibility {
    /// Other workloads may preempt it.
    Preemptible,
    /// Other workloads may preempt the pods and subgroups beyond its minimum; the minimum must be within the queue's quota.
    SemiPreemptible,
    /// No workload may preempt it.
    NonPreemptible,
}

impl Preemptibility {
    /// The value of this name.
    pub fn parse(name: &str) -> Option<Preemptibility> {
        match name {
            keys::PREEMPTIBLE => Some(Preemptibility::Preemptible),
            keys::SEMI_PREEMPTIBLE => Some(Preemptibility::SemiPreemptible),
            keys::NON_PREEMPTIBLE => Some(Preemptibility::NonPreemptible),
            _ => None,
        }
    }

    /// The name in labels and specs.
    pub fn name(self) -> &'static str {
        match self {
            Preemptibility::Preemptible => keys::PREEMPTIBLE,
            Preemptibility::SemiPreemptible => keys::SEMI_PREEMPTIBLE,
            Preemptibility::NonPreemptible => keys::NON_PREEMPTIBLE,
        }
    }
}

impl From<Preemptibility> for kai_engine::model::Preemptibility {
    fn from(preemptibility: Preemptibility) -> kai_engine::model::Preemptibility {
        match preemptibility {
            Preemptibility::Preemptible => kai_engine::model::Preemptibility::Preemptible,
            Preemptibility::SemiPreemptible => kai_engine::model::Preemptibility::SemiPreemptible,
            Preemptibility::NonPreemptible => kai_engine::model::Preemptibility::NonPreemptible,
        }
    }
}

impl From<kai_engine::model::Preemptibility> for Preemptibility {
    fn from(preemptibility: kai_engine::model::Preemptibility) -> Preemptibility {
        match preemptibility {
            kai_engine::model::Preemptibility::Preemptible => Preemptibility::Preemptible,
            kai_engine::model::Preemptibility::SemiPreemptible => Preemptibility::SemiPreemptible,
            kai_engine::model::Preemptibility::NonPreemptible => Preemptibility::NonPreemptible,
        }
    }
}

/// A topology constraint: pods must or should be in one domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyConstraint {
    /// Name of the Topology; without it the constraint has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// All pods must be in one domain of this level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_topology_level: Option<String>,
    /// All pods should be in one domain of this level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_topology_level: Option<String>,
}

/// A subgroup of a pod group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubGroup {
    /// Name, unique within the pod group.
    #[schemars(length(min = 1), regex(pattern = schema::LABEL_PATTERN))]
    pub name: String,
    /// The number of pods that must start together, for a subgroup without children.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_member: Option<i32>,
    /// The number of children that must start together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_sub_group: Option<i32>,
    /// Name of the parent subgroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::LABEL_PATTERN))]
    pub parent: Option<String>,
    /// The topology constraint of the subgroup's pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_constraint: Option<TopologyConstraint>,
}

/// The status of a pod group.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupStatus {
    /// Running once a pod has a node, Pending before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The number of pods with a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<i32>,
    /// The number of pods without a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<i32>,
    /// General conditions; kai does not write them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<PodGroupCondition>,
    /// Why the pod group is not scheduled, one entry per node pool, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scheduling_conditions: Vec<SchedulingCondition>,
    /// Requested and allocated resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources_status: Option<ResourcesStatus>,
}

/// The counts of pods in the status of a pod group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PodCounts {
    /// The phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The number of pods with a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<i32>,
    /// The number of pods without a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<i32>,
}

impl PodCounts {
    /// Phase: a pod has a node.
    pub const RUNNING: &str = "Running";
    /// Phase: no pod has a node.
    pub const PENDING: &str = "Pending";

    /// The counts of a pod group with these numbers of pods. A pod group without pods has no counts.
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
    /// The id of the last transition.
    #[serde(rename = "transitionID", default, skip_serializing_if = "String::is_empty")]
    pub transition_id: String,
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

/// Why a pod group is not scheduled in a node pool.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingCondition {
    /// [`SchedulingCondition::UNSCHEDULABLE`].
    #[serde(rename = "type", default, skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// The node pool; `default` for the one without a label.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_pool: String,
    /// Machine-readable reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// All reasons as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// All reasons, structured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<UnschedulableReason>,
    /// A number that increases with every change of a condition.
    #[serde(rename = "transitionID", default, skip_serializing_if = "String::is_empty")]
    pub transition_id: String,
    /// Time of the last transition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub last_transition_time: Option<Time>,
    /// True, False or Unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
}

impl SchedulingCondition {
    /// The only type.
    pub const UNSCHEDULABLE: &str = "UnschedulableOnNodePool";
    /// The reason of that type.
    pub const REASON: &str = "Unschedulable";

    /// Whether both are equal apart from transition time and id.
    pub fn same_content(&self, other: &SchedulingCondition) -> bool {
        self.type_ == other.type_
            && self.node_pool == other.node_pool
            && self.reason == other.reason
            && self.message == other.message
            && self.status == other.status
    }
}

/// One reason why a pod group is not scheduled.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnschedulableReason {
    /// Machine-readable reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Message for users.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The numbers behind the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<ReasonDetails>,
}

impl UnschedulableReason {
    /// A queue's limit would be exceeded.
    pub const OVER_LIMIT: &str = "OverLimit";
    /// Non-preemptible work would exceed a queue's quota.
    pub const NON_PREEMPTIBLE_OVER_QUOTA: &str = "NonPreemptibleOverQuota";
    /// The queue does not exist, or an ancestor of it does not.
    pub const QUEUE_DOES_NOT_EXIST: &str = "QueueDoesNotExist";
    /// The preemption delay has not elapsed.
    pub const PREEMPTION_DELAY_NOT_ELAPSED: &str = "PreemptionDelayNotElapsed";
    /// No node fits the pods.
    pub const POD_SCHEDULING_ERRORS: &str = "PodSchedulingErrors";
}

/// The numbers behind a reason.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReasonDetails {
    /// The queue whose limit or quota is exceeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_details: Option<QueueDetails>,
}

/// The queue whose limit or quota a pod group would exceed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueDetails {
    /// Name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The requests of all work in the queue.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub queue_requested_resources: ResourceList,
    /// The queue's quota.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub queue_deserved_resources: ResourceList,
    /// The resources allocated to the queue.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub queue_allocated_resources: ResourceList,
    /// The non-preemptible part of the allocated resources.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub queue_allocated_non_preemptible_resources: ResourceList,
    /// The queue's limits.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub queue_resource_limits: ResourceList,
    /// The requests of the pod group.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub pod_group_requested_resources: ResourceList,
    /// The non-preemptible part of the requests.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub pod_group_requested_non_preemptible_resources: ResourceList,
}

/// Requested and allocated resources of a pod group.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourcesStatus {
    /// Resources of pods that run or are being bound.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub allocated: ResourceList,
    /// The allocated resources that are non-preemptible: all of a non-preemptible pod group, the minimum of a semi-preemptible one.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub allocated_non_preemptible: ResourceList,
    /// Requests of all pods that have not ended.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub requested: ResourceList,
}
