//! Building blocks of the Config kind: how the pods of a component run.

use k8s_openapi::api::core::v1::{Affinity, ResourceRequirements};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::{ResourceList, schema};

/// How the pods of a component run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Whether the component is installed; true if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Its image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// What its pods ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::embedded::<ResourceRequirements>")]
    pub resources: Option<ResourceRequirements>,
    /// How fast it may talk to the API server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k8s_client_config: Option<ClientConfig>,
    /// Where its pods run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::embedded::<Affinity>")]
    pub affinity: Option<Affinity>,
    /// How many of its pods may be away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<PodDisruptionBudget>,
}

/// A container image.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// Registry and path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// Last part of the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// When it is pulled; IfNotPresent if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<String>,
}

/// How fast a component may talk to the API server.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct ClientConfig {
    /// Requests per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qps: Option<i64>,
    /// Requests at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<i64>,
}

/// How many pods of a component may be away.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodDisruptionBudget {
    /// Whether there is a budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// How many; 1 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<i32>,
}

/// Vertical autoscaling of a component.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Vpa {
    /// Whether there is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// When pods are changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_policy: Option<VpaUpdatePolicy>,
    /// By how much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_policy: Option<VpaResourcePolicy>,
}

/// When pods are changed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VpaUpdatePolicy {
    /// InPlaceOrRecreate if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Off", "Initial", "Recreate", "InPlaceOrRecreate", "Auto"]))]
    pub update_mode: Option<String>,
    /// Fewer pods than this are left alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<i32>,
    /// What must hold before a pod is evicted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub eviction_requirements: Vec<VpaEvictionRequirement>,
}

/// What must hold before a pod is evicted.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VpaEvictionRequirement {
    /// For which resources.
    pub resources: Vec<String>,
    /// In which direction they change.
    #[schemars(extend("enum" = ["TargetHigherThanRequests", "TargetLowerThanRequests"]))]
    pub change_requirement: String,
}

/// By how much pods are changed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VpaResourcePolicy {
    /// Per container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub container_policies: Vec<VpaContainerPolicy>,
}

/// By how much a container is changed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VpaContainerPolicy {
    /// Its name, or * for all others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_name: Option<String>,
    /// Whether it is changed at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Auto", "Off"]))]
    pub mode: Option<String>,
    /// The least it gets.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub min_allowed: ResourceList,
    /// The most it gets.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub max_allowed: ResourceList,
    /// Which resources.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub controlled_resources: Vec<String>,
    /// Requests alone, or limits too.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["RequestsAndLimits", "RequestsOnly"]))]
    pub controlled_values: Option<String>,
}

/// A port of a component.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// Of the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i64>,
    /// Of its pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_port: Option<i64>,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}
