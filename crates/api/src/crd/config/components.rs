//! The components of an installation, each with its part of the Config kind.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSecurityContext, ResourceRequirements, SecurityContext, Toleration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::{PluginConfig, schema};
use super::{ClientConfig, Image, Service, ServicePort, Vpa};

/// The pod grouper.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGrouperConfig {
    /// How its pods run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// How it groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<PodGrouperArgs>,
    /// How fast it may talk to the API server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k8s_client_config: Option<ClientConfig>,
    /// How many objects it works on at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent_reconciles: Option<i64>,
    /// How many pods; those of the whole system if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Vertical autoscaling of its pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpa: Option<Vpa>,
}

/// How pods are grouped.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGrouperArgs {
    /// Whether the pods of a Knative revision start together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang_schedule_knative: Option<bool>,
    /// Whether kinds that nobody knows are looked up among the Kartas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generic_karta_fallback: Option<bool>,
    /// ConfigMap with default priorities per kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_priorities_config_map_name: Option<String>,
    /// Its namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_priorities_config_map_namespace: Option<String>,
}

/// The binder.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BinderConfig {
    /// How its pods run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// The pods that hold shared GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_reservation: Option<ResourceReservationConfig>,
    /// How many pods; those of the whole system if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// How many objects it works on at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent_reconciles: Option<i64>,
    /// How long volumes may take; 120 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_binding_timeout_seconds: Option<i64>,
    /// Port of health checks; 8081 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe_port: Option<i64>,
    /// Port of metrics; 8080 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_port: Option<i64>,
    /// Whether devices are named as CDI does; found out if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cdi_enabled: Option<bool>,
    /// Plugins that differ from the defaults, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub plugins: BTreeMap<String, PluginConfig>,
    /// Vertical autoscaling of its pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpa: Option<Vpa>,
}

/// The pods that hold shared GPUs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceReservationConfig {
    /// Their image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Seconds until one must have its GPU; 40 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation_timeout: Option<i64>,
    /// Where they live.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Their service account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// Value of their app label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_label: Option<String>,
    /// Their runtime class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    /// What they ask for beside the GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::embedded::<ResourceRequirements>")]
    pub pod_resources: Option<ResourceRequirements>,
    /// Their security context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::embedded::<PodSecurityContext>")]
    pub reservation_pod_security_context: Option<PodSecurityContext>,
    /// The security context of their container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::embedded::<SecurityContext>")]
    pub reservation_container_security_context: Option<SecurityContext>,
}

/// Admission.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionConfig {
    /// How its pods run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// Its ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<AdmissionWebhook>,
    /// How many pods; those of the whole system if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Whether pods may share GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_sharing: Option<bool>,
    /// Whether pods without GPUs are kept from seeing any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_nvidia_visible_devices: Option<bool>,
    /// Whether only namespaces with a queue label are looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_label_selector: Option<bool>,
    /// Name of the validating configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validating_webhook_configuration_name: Option<String>,
    /// Name of the mutating configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutating_webhook_configuration_name: Option<String>,
    /// Old name of gpuFractionRuntimeClassName.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_pod_runtime_class_name: Option<String>,
    /// Runtime class of pods that share GPUs; nvidia if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_fraction_runtime_class_name: Option<String>,
    /// Vertical autoscaling of its pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpa: Option<Vpa>,
}

/// Ports of admission.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionWebhook {
    /// Of the service; 443 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i64>,
    /// Of its pods; 9443 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_port: Option<i64>,
    /// Of health checks; 8081 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe_port: Option<i64>,
    /// Of metrics; 8080 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_port: Option<i64>,
}

/// The schedulers of all shards.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerConfig {
    /// How its pods run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// Accepted for compatibility: the scheduler has no garbage collector to tune.
    #[serde(rename = "GOGC", skip_serializing_if = "Option::is_none")]
    pub gogc: Option<i64>,
    /// Its service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler_service: Option<SchedulerService>,
    /// How many pods; those of the whole system if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Vertical autoscaling of its pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpa: Option<Vpa>,
}

/// The service of a scheduler.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerService {
    /// ClusterIP if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Of the service; 8080 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i64>,
    /// Of its pods; 8080 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_port: Option<i64>,
}

/// The queue controller.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueControllerConfig {
    /// How its pods run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// Its service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_service: Option<QueueControllerService>,
    /// Validation of queues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhooks: Option<WebhookConfig>,
    /// How many pods; those of the whole system if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// How the names of its metrics begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_namespace: Option<String>,
    /// Queue labels that become metric labels, as a=b,c=d.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_label_to_metric_label: Option<String>,
    /// Their values where a queue has none, as a=b,c=d.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_label_to_default_metric_value: Option<String>,
    /// Vertical autoscaling of its pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpa: Option<Vpa>,
}

/// The service of the queue controller.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct QueueControllerService {
    /// Metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<ServicePort>,
    /// The webhook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<ServicePort>,
}

/// A validating webhook.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookConfig {
    /// Whether there is one; true if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_validation: Option<bool>,
    /// How the name of its configuration begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_configuration_name_prefix: Option<String>,
}

/// The pod group controller.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupControllerConfig {
    /// How its pods run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// Its service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_service: Option<PodGroupControllerService>,
    /// How many objects it works on at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent_reconciles: Option<i64>,
    /// Validation of pod groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhooks: Option<WebhookConfig>,
    /// How many pods; those of the whole system if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Vertical autoscaling of its pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpa: Option<Vpa>,
}

/// The service of the pod group controller.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct PodGroupControllerService {
    /// The webhook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<ServicePort>,
}

/// What makes cluster autoscalers see pods that share GPUs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct NodeScaleAdjusterConfig {
    /// How its pods run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// How it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<NodeScaleAdjusterArgs>,
    /// Vertical autoscaling of its pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpa: Option<Vpa>,
}

/// How cluster autoscalers are told.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeScaleAdjusterArgs {
    /// Image of scaling pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling_pod_image: Option<Image>,
    /// Their namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_scale_namespace: Option<String>,
    /// Their service account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_scale_service_account: Option<String>,
    /// Which part of a GPU a memory request counts as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_memory_to_fraction_ratio: Option<f64>,
}

/// What reports the NUMA zones of running pods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NumaPlacementExporterConfig {
    /// How its pods run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// The nodes it runs on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints it tolerates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::embedded::<Vec<Toleration>>")]
    pub tolerations: Vec<Toleration>,
    /// How often it looks. A duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll_interval: Option<String>,
    /// How often it writes all anew. A duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift_resync_interval: Option<String>,
    /// Directory of the kubelet's socket on the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_resources_host_path: Option<String>,
    /// The kubelet's socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_resources_socket: Option<String>,
    /// sysfs on the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sysfs_host_path: Option<String>,
}

/// The Prometheus that remembers past use.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrometheusConfig {
    /// Whether one is installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_name: Option<String>,
    /// How far back it remembers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_period: Option<String>,
    /// How often it samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_interval: Option<String>,
    /// Whether its memory survives restarts; true if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_persistent_storage: Option<bool>,
    /// How much storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_size: Option<String>,
    /// Which storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// How it scrapes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_monitor: Option<ServiceMonitorConfig>,
    /// Address of another one to use instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_prometheus_url: Option<String>,
    /// How that one is watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_prometheus_health_probe: Option<PrometheusHealthProbe>,
    /// Label of what it scrapes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accounting_label_key: Option<String>,
    /// That label's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accounting_label_value: Option<String>,
}

/// How metrics are scraped.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceMonitorConfig {
    /// Whether they are; true if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// How often.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,
    /// How long it may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scrape_timeout: Option<String>,
    /// The file with the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bearer_token_file: Option<String>,
}

/// How an external Prometheus is watched.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrometheusHealthProbe {
    /// Seconds between looks; 30 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<i64>,
    /// Seconds until a look failed; 10 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// How many looks may fail; 5 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<i64>,
}
