//! Parts of the Config kind that all components share: image, resources, replicas, autoscaling, ports.

use k8s_openapi::api::core::v1::{Affinity, ResourceRequirements};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::{ResourceList, schema};

/// Common settings of a component's pods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Whether the component is installed; true if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Its image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Resources of its pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::embedded::<ResourceRequirements>")]
    pub resources: Option<ResourceRequirements>,
    /// Rate limits of its Kubernetes client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k8s_client_config: Option<ClientConfig>,
    /// Affinity of its pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::embedded::<Affinity>")]
    pub affinity: Option<Affinity>,
    /// Pod disruption budget.
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
    /// Name: the last part of the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Pull policy; IfNotPresent if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<String>,
}

/// Rate limits of a component's Kubernetes client.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct ClientConfig {
    /// Requests per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qps: Option<i64>,
    /// Burst of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<i64>,
}

/// The pod disruption budget of a component.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodDisruptionBudget {
    /// Whether the budget is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Maximum of unavailable pods; 1 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<i32>,
}

/// Vertical autoscaling of a component.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Vpa {
    /// Whether it is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Update policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_policy: Option<VpaUpdatePolicy>,
    /// Resource policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_policy: Option<VpaResourcePolicy>,
}

/// The update policy of vertical autoscaling.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VpaUpdatePolicy {
    /// Update mode; InPlaceOrRecreate if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Off", "Initial", "Recreate", "InPlaceOrRecreate", "Auto"]))]
    pub update_mode: Option<String>,
    /// Minimum of replicas for evictions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<i32>,
    /// Requirements for the eviction of a pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub eviction_requirements: Vec<VpaEvictionRequirement>,
}

/// A requirement for the eviction of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VpaEvictionRequirement {
    /// The resources that the requirement is about.
    pub resources: Vec<String>,
    /// The direction of their change.
    #[schemars(extend("enum" = ["TargetHigherThanRequests", "TargetLowerThanRequests"]))]
    pub change_requirement: String,
}

/// The resource policy of vertical autoscaling.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VpaResourcePolicy {
    /// Per container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub container_policies: Vec<VpaContainerPolicy>,
}

/// The resource policy of a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VpaContainerPolicy {
    /// Its name, or * for all others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_name: Option<String>,
    /// Mode: Auto or Off.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Auto", "Off"]))]
    pub mode: Option<String>,
    /// Minimum of its resources.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub min_allowed: ResourceList,
    /// Maximum of its resources.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub max_allowed: ResourceList,
    /// The controlled resources.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub controlled_resources: Vec<String>,
    /// The controlled values: requests only, or requests and limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["RequestsAndLimits", "RequestsOnly"]))]
    pub controlled_values: Option<String>,
}

/// A port of a component.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// Port of the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i64>,
    /// Port of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_port: Option<i64>,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}
