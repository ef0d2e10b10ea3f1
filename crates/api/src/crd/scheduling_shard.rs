//! The SchedulingShard kind: how one partition of the cluster is scheduled. Defaults are applied by whoever reads it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;
use crate::QuantityText;

/// How a partition is scheduled.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "kai.scheduler",
    version = "v1",
    kind = "SchedulingShard",
    plural = "schedulingshards",
    singular = "schedulingshard",
    status = "SchedulingShardStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "How one partition of the cluster is scheduled."
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
    /// Whether work is packed or spread; packed if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement_strategy: Option<PlacementStrategy>,
    /// The value of the node-pool label of this partition; empty: objects without the label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition_label_value: Option<String>,
    /// How many pod groups of each queue an action looks at, by action.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub queue_depth_per_action: BTreeMap<String, i64>,
    /// How long work runs before it may be evicted, where its queue says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_runtime: Option<MinRuntime>,
    /// How much past use counts in the division of what is over quota; 1 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k_value: Option<f64>,
    /// Where past use is looked up.
    #[serde(rename = "usageDBConfig", skip_serializing_if = "Option::is_none")]
    pub usage_db_config: Option<UsageDbConfig>,
    /// How long the search for evictions may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scenario_search_budgets: Option<ScenarioSearchBudgets>,
    /// Plugins that differ from the defaults, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub plugins: BTreeMap<String, PluginConfig>,
    /// Actions that differ from the defaults, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub actions: BTreeMap<String, ActionConfig>,
}

/// Whether work is packed onto few devices and nodes, or spread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct PlacementStrategy {
    /// For work with GPUs: binpack or spread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// For work without: binpack or spread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
}

/// How long work runs before it may be evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MinRuntime {
    /// By work of the same queue. A duration such as 5m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempt_min_runtime: Option<String>,
    /// By other queues. A duration such as 5m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim_min_runtime: Option<String>,
}

/// A plugin that differs from its defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct PluginConfig {
    /// Whether it takes part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Higher goes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// Its arguments; if given, they replace the defaults.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub arguments: BTreeMap<String, String>,
}

/// An action that differs from its defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct ActionConfig {
    /// Whether it takes part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Higher goes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
}

/// How long the search for evictions may take. Durations such as 30s; 0s is no bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScenarioSearchBudgets {
    /// Per action: default, reclaim, preempt or consolidation.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub max_action_search_duration: BTreeMap<String, String>,
    /// Per pod group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_job_search_duration: Option<String>,
    /// What each pod group gets at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_job_search_duration: Option<String>,
    /// Per way of searching.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub max_generator_search_duration: BTreeMap<String, String>,
}

/// Where past use is looked up.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageDbConfig {
    /// prometheus.
    pub client_type: String,
    /// Its address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_string: Option<String>,
    /// The environment variable with its address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_string_env_var: Option<String>,
    /// What is looked up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_params: Option<UsageParams>,
}

/// Which past use counts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageParams {
    /// After this long, use counts half; no decay if unset. A duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_life_period: Option<String>,
    /// How far back use counts, such as 1w.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = WINDOW_PATTERN))]
    pub window_size: Option<String>,
    /// sliding, tumbling or cron.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_type: Option<String>,
    /// When the first tumbling window starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub tumbling_window_start_time: Option<Time>,
    /// When cron windows start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron_string: Option<String>,
    /// How often use is looked up. A duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fetch_interval: Option<String>,
    /// After how long figures no longer count. A duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staleness_period: Option<String>,
    /// How long an answer may take. A duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_timeout: Option<String>,
    /// Names of metrics and other details of the client.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_params: BTreeMap<String, String>,
}

/// A duration as Prometheus writes it.
const WINDOW_PATTERN: &str =
    "^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$";

/// How a shard is doing.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct SchedulingShardStatus {
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
