//! The Config kind: what an installation consists of. Only the object named `kai-config` counts; defaults are applied by
//! whoever reads it.

mod components;
mod service;

use std::collections::BTreeMap;

pub use components::*;
use k8s_openapi::api::core::v1::{Affinity, SecurityContext, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use service::*;

use super::schema;

/// What an installation consists of.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "kai.scheduler",
    version = "v1",
    kind = "Config",
    plural = "configs",
    singular = "config",
    status = "ConfigStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "What an installation consists of. Only the object named kai-config counts."
)]
#[serde(rename_all = "camelCase")]
pub struct ConfigSpec {
    /// Where it is installed; kai-scheduler if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// What all components share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global: Option<GlobalConfig>,
    /// The pod grouper.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_grouper: Option<PodGrouperConfig>,
    /// The binder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binder: Option<BinderConfig>,
    /// Admission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionConfig>,
    /// The schedulers of all shards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<SchedulerConfig>,
    /// The queue controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_controller: Option<QueueControllerConfig>,
    /// The pod group controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_group_controller: Option<PodGroupControllerConfig>,
    /// What makes cluster autoscalers see pods that share GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_scale_adjuster: Option<NodeScaleAdjusterConfig>,
    /// What reports the NUMA zones of running pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_placement_exporter: Option<NumaPlacementExporterConfig>,
    /// The Prometheus that remembers past use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<PrometheusConfig>,
}

/// What all components share.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GlobalConfig {
    /// Vertical autoscaling of its pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpa: Option<Vpa>,
    /// Whether the cluster is OpenShift.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub openshift: Option<bool>,
    /// Where pods of the system run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::embedded::<Affinity>")]
    pub affinity: Option<Affinity>,
    /// Whether pods of one component must be on different nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub require_default_pod_anti_affinity_term: Option<bool>,
    /// Security context of all containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::embedded::<SecurityContext>")]
    pub security_context: Option<SecurityContext>,
    /// Old form of additionalImagePullSecrets, for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images_pull_secret: Option<String>,
    /// Secrets that images are pulled with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub additional_image_pull_secrets: Vec<String>,
    /// Nodes for pods of the system.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that pods of the system tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::embedded::<Vec<Toleration>>")]
    pub tolerations: Vec<Toleration>,
    /// Taints that pods on every node tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::embedded::<Vec<Toleration>>")]
    pub daemonsets_tolerations: Vec<Toleration>,
    /// Priority class of pods of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// How many pods each component has; 1 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica_count: Option<i32>,
    /// Label that names the queue; kai.scheduler/queue if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_label_key: Option<String>,
    /// Scheduler name that pods ask for; kai-scheduler if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// Label that names the node pool; kai.scheduler/node-pool if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_pool_label_key: Option<String>,
    /// Only namespaces with these labels are looked at.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub namespace_label_selector: BTreeMap<String, String>,
    /// Only pods with these labels are looked at.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pod_label_selector: BTreeMap<String, String>,
    /// Whether logs are JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json_log: Option<bool>,
}

/// How an installation is doing.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct ConfigStatus {
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
