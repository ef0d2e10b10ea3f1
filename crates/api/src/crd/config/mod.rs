//! The Config kind: the components of an installation. Only the object named `kai-config` has an effect. Its readers apply the defaults.

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
use crate::GpuSharingMode;

/// The components of an installation.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "kai.scheduler",
    version = "v1",
    kind = "Config",
    plural = "configs",
    singular = "config",
    status = "ConfigStatus",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Available","type":"string","jsonPath":".status.conditions[?(@.type==\"Available\")].status"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Message","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type==\"Ready\")].message"}"#,
    derive = "Default",
    derive = "PartialEq",
    doc = "The components of an installation. Only the object named kai-config has an effect."
)]
#[serde(rename_all = "camelCase")]
pub struct ConfigSpec {
    /// The namespace of the installation; kai-scheduler if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Settings of all components.
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
    /// The node scale adjuster, which makes cluster autoscalers add nodes for pods that share GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_scale_adjuster: Option<NodeScaleAdjusterConfig>,
    /// The exporter of the NUMA zones of running pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_placement_exporter: Option<NumaPlacementExporterConfig>,
    /// The Prometheus server with past usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<PrometheusConfig>,
}

/// Settings of all components.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GlobalConfig {
    /// Vertical autoscaling of the components' pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpa: Option<Vpa>,
    /// Whether the cluster is OpenShift.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub openshift: Option<bool>,
    /// Affinity of the system's pods.
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
    /// Legacy form of additionalImagePullSecrets, for one secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images_pull_secret: Option<String>,
    /// Image pull secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub additional_image_pull_secrets: Vec<String>,
    /// Node selector of the system's pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations of the system's pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::embedded::<Vec<Toleration>>")]
    pub tolerations: Vec<Toleration>,
    /// Tolerations of the system's DaemonSets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::embedded::<Vec<Toleration>>")]
    pub daemonsets_tolerations: Vec<Toleration>,
    /// Priority class of the system's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Replicas of each component; 1 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica_count: Option<i32>,
    /// Label key of the queue; kai.scheduler/queue if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_label_key: Option<String>,
    /// The schedulerName of pods; kai-scheduler if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// Label key of the node pool; kai.scheduler/node-pool if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_pool_label_key: Option<String>,
    /// Restricts the system to namespaces with these labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub namespace_label_selector: BTreeMap<String, String>,
    /// Restricts the system to pods with these labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pod_label_selector: BTreeMap<String, String>,
    /// Whether logs are JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json_log: Option<bool>,
    /// How pods share GPUs: NonMemoryEnforced, HamiCore, NvFractions or Disabled. If unset, admission.gpuSharing decides, and without both
    /// it is NonMemoryEnforced.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^(NonMemoryEnforced|HamiCore|NvFractions|Disabled)?$"))]
    pub gpu_sharing_mode: Option<String>,
}

impl ConfigSpec {
    /// How pods share GPUs, where the Config says so: by the mode, by admission.gpuSharing if the mode is not set. A mode that the schema
    /// would refuse counts as not set.
    pub fn gpu_sharing_mode(&self) -> Option<GpuSharingMode> {
        let mode = self.global.as_ref().and_then(|global| global.gpu_sharing_mode.as_ref());
        let mode = mode.and_then(|mode| mode.parse().ok());
        let sharing = self.admission.as_ref().and_then(|admission| admission.gpu_sharing);
        (mode.is_some() || sharing.is_some()).then(|| GpuSharingMode::of(mode, sharing))
    }
}

/// The status of an installation.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct ConfigStatus {
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
