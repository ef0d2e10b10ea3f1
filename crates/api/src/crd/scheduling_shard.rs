//! The SchedulingShard kind: the scheduling settings of one partition of the cluster. Its readers apply the defaults.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;
use crate::QuantityText;

/// The scheduling settings of a partition.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "kai.scheduler",
    version = "v1",
    kind = "SchedulingShard",
    plural = "schedulingshards",
    singular = "schedulingshard",
    status = "SchedulingShardStatus",
    printcolumn = r#"{"name":"Partition","type":"string","jsonPath":".spec.partitionLabelValue"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Message","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type==\"Ready\")].message"}"#,
    derive = "Default",
    derive = "PartialEq",
    doc = "The scheduling settings of one partition of the cluster."
)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingShardSpec {
    /// Further command-line arguments of the scheduler, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, String>,
    /// Accepted for compatibility: the scheduler has no garbage collector to tune.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0, "exclusiveMinimum" = true, "maximum" = 1))]
    pub go_mem_limit_ratio: Option<f64>,
    /// Accepted for compatibility: the scheduler has no garbage collector to tune.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub go_mem_limit: Option<QuantityText>,
    /// The placement strategy; binpack if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement_strategy: Option<PlacementStrategy>,
    /// The value of the node-pool label of this partition's objects; empty: objects without the label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition_label_value: Option<String>,
    /// The number of pod groups of each queue that an action tries, by action.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub queue_depth_per_action: BTreeMap<String, i64>,
    /// The minimum runtime before eviction, for queues that do not set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_runtime: Option<MinRuntime>,
    /// The weight of past usage in the division of resources above quota; 1 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k_value: Option<f64>,
    /// The database of past usage.
    #[serde(rename = "usageDBConfig", skip_serializing_if = "Option::is_none")]
    pub usage_db_config: Option<UsageDbConfig>,
    /// The time limits of the victim search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scenario_search_budgets: Option<ScenarioSearchBudgets>,
    /// Plugins with settings other than the defaults, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub plugins: BTreeMap<String, PluginConfig>,
    /// Actions with settings other than the defaults, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub actions: BTreeMap<String, ActionConfig>,
}

/// The placement strategy: pack pods onto few devices and nodes, spread them, or keep nodes worth most for the pods to come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct PlacementStrategy {
    /// For pods with GPUs: binpack, spread or frag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// For pods without GPUs: binpack, spread or frag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
}

/// The minimum runtimes before eviction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MinRuntime {
    /// Before eviction by workloads of the same queue. A duration such as 5m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempt_min_runtime: Option<String>,
    /// Before eviction by workloads of other queues. A duration such as 5m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim_min_runtime: Option<String>,
}

/// The settings of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct PluginConfig {
    /// Whether it is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Higher priority runs first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// Its arguments. They replace the default arguments.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub arguments: BTreeMap<String, String>,
}

/// The settings of an action.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct ActionConfig {
    /// Whether it is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Higher priority runs first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
}

/// The time limits of the victim search. Durations such as 30s; 0s is unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScenarioSearchBudgets {
    /// Per action: default, reclaim, preempt or consolidation.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub max_action_search_duration: BTreeMap<String, String>,
    /// Per pod group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_job_search_duration: Option<String>,
    /// The minimum for each pod group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_job_search_duration: Option<String>,
    /// Per generator of victim sets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub max_generator_search_duration: BTreeMap<String, String>,
}

/// The database of past usage.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageDbConfig {
    /// The type of client: prometheus.
    pub client_type: String,
    /// Its address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_string: Option<String>,
    /// The environment variable with its address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_string_env_var: Option<String>,
    /// The query settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_params: Option<UsageParams>,
}

/// The query settings of past usage.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageParams {
    /// The half-life of past usage; no decay if unset. A duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_life_period: Option<String>,
    /// The size of the window, such as 1w.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = WINDOW_PATTERN))]
    pub window_size: Option<String>,
    /// The type of window: sliding, tumbling or cron.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_type: Option<String>,
    /// When the first tumbling window starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub tumbling_window_start_time: Option<Time>,
    /// When cron windows start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron_string: Option<String>,
    /// The time between two queries. A duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fetch_interval: Option<String>,
    /// The age at which data is stale. A duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staleness_period: Option<String>,
    /// The timeout of a query. A duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_timeout: Option<String>,
    /// Names of metrics and other details of the client.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_params: BTreeMap<String, String>,
}

/// A duration as Prometheus writes it.
const WINDOW_PATTERN: &str =
    "^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$";

/// The status of a shard.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct SchedulingShardStatus {
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
