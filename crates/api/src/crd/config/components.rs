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
    /// Common settings of the component's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// Grouping settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<PodGrouperArgs>,
    /// Rate limits of the component's Kubernetes client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k8s_client_config: Option<ClientConfig>,
    /// The number of objects to reconcile concurrently.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent_reconciles: Option<i64>,
    /// Replicas; the global replicaCount if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Vertical autoscaling of the component's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpa: Option<Vpa>,
}

/// Grouping settings of the pod grouper.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGrouperArgs {
    /// Whether the pods of a Knative revision are a gang.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang_schedule_knative: Option<bool>,
    /// Whether the pods of a Deployment have one pod group; true if unset. Otherwise each pod has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang_schedule_deployment: Option<bool>,
    /// Whether to look up unknown kinds among the Kartas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generic_karta_fallback: Option<bool>,
    /// ConfigMap with default priorities per kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_priorities_config_map_name: Option<String>,
    /// The namespace of that ConfigMap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_priorities_config_map_namespace: Option<String>,
}

/// The binder.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BinderConfig {
    /// Common settings of the component's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// Reservation pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_reservation: Option<ResourceReservationConfig>,
    /// Replicas; the global replicaCount if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The number of objects to reconcile concurrently.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent_reconciles: Option<i64>,
    /// Timeout of volume binding in seconds, at least 1; 120 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_binding_timeout_seconds: Option<i64>,
    /// Port of health checks; 8081 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe_port: Option<i64>,
    /// Port of metrics; 8080 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_port: Option<i64>,
    /// Whether to use CDI device names; detected if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cdi_enabled: Option<bool>,
    /// Plugins with settings other than the defaults, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub plugins: BTreeMap<String, PluginConfig>,
    /// Vertical autoscaling of the component's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpa: Option<Vpa>,
}

impl BinderConfig {
    /// The timeout of volume binding in seconds; `None` = unset, or less than a second: no volume would ever be bound in time.
    pub fn volume_binding_timeout(&self) -> Option<u64> {
        let seconds = u64::try_from(self.volume_binding_timeout_seconds?).ok()?;
        (seconds > 0).then_some(seconds)
    }
}

/// Settings of reservation pods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceReservationConfig {
    /// Their image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Seconds until a reservation pod must have reported its GPU; 40 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation_timeout: Option<i64>,
    /// Their namespace.
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
    /// Their resources besides the GPU.
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
    /// Common settings of the component's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// Its ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<AdmissionWebhook>,
    /// Replicas; the global replicaCount if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Whether pods may share GPUs. Legacy: global.gpuSharingMode counts if it is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_sharing: Option<bool>,
    /// Whether to hide all GPUs from pods without GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_nvidia_visible_devices: Option<bool>,
    /// Whether to handle only namespaces with a queue label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_label_selector: Option<bool>,
    /// Checks of in-place resizes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_place_pod_resize: Option<InPlacePodResize>,
    /// Name of the validating webhook configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validating_webhook_configuration_name: Option<String>,
    /// Name of the mutating webhook configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutating_webhook_configuration_name: Option<String>,
    /// Legacy name of gpuFractionRuntimeClassName.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_pod_runtime_class_name: Option<String>,
    /// Runtime class of pods that share GPUs; nvidia if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_fraction_runtime_class_name: Option<String>,
    /// Vertical autoscaling of the component's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpa: Option<Vpa>,
}

/// Checks of in-place resizes of pods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InPlacePodResize {
    /// Whether a resize has to fit the limits and quotas of the pod's queue; true if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validate_quota: Option<bool>,
    /// Whether to refuse every resize to more CPU or memory in a queue with a limit, or for non-preemptible pods a quota; false if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_upsize_on_bounded_queues: Option<bool>,
}

/// Ports of admission.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionWebhook {
    /// Port of the service; 443 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i64>,
    /// Port of the pods; 9443 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_port: Option<i64>,
    /// Port of health checks; 8081 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe_port: Option<i64>,
    /// Port of metrics; 8080 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_port: Option<i64>,
}

/// The schedulers of all shards.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerConfig {
    /// Common settings of the component's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// Accepted for compatibility: the scheduler has no garbage collector to tune.
    #[serde(rename = "GOGC", skip_serializing_if = "Option::is_none")]
    pub gogc: Option<i64>,
    /// Its service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler_service: Option<SchedulerService>,
    /// Replicas; the global replicaCount if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Vertical autoscaling of the component's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpa: Option<Vpa>,
}

/// The service of a scheduler.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerService {
    /// Type of the service; ClusterIP if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Port of the service; 8080 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i64>,
    /// Port of the pods; 8080 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_port: Option<i64>,
}

/// The queue controller.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueControllerConfig {
    /// Common settings of the component's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// Its service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_service: Option<QueueControllerService>,
    /// Validation of queues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhooks: Option<WebhookConfig>,
    /// Replicas; the global replicaCount if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Prefix of the names of its metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_namespace: Option<String>,
    /// Queue labels that become metric labels, as a=b,c=d.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_label_to_metric_label: Option<String>,
    /// Default values of these metric labels, as a=b,c=d.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_label_to_default_metric_value: Option<String>,
    /// What admission does about quotas of queues that exceed their parent's, alone or together: None, Warning or Block; Warning if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^(None|Warning|Block)?$"))]
    pub enforce_quota_violation: Option<String>,
    /// Vertical autoscaling of the component's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpa: Option<Vpa>,
}

/// The service of the queue controller.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct QueueControllerService {
    /// Port of metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<ServicePort>,
    /// Port of the webhook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<ServicePort>,
}

/// A validating webhook.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookConfig {
    /// Whether it is enabled; true if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_validation: Option<bool>,
    /// Prefix of the name of its configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_configuration_name_prefix: Option<String>,
}

/// The pod group controller.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupControllerConfig {
    /// Common settings of the component's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// Its service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_service: Option<PodGroupControllerService>,
    /// The number of objects to reconcile concurrently.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent_reconciles: Option<i64>,
    /// Validation of pod groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhooks: Option<WebhookConfig>,
    /// Replicas; the global replicaCount if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Vertical autoscaling of the component's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpa: Option<Vpa>,
}

/// The service of the pod group controller.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct PodGroupControllerService {
    /// Port of the webhook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<ServicePort>,
}

/// The node scale adjuster, which makes cluster autoscalers add nodes for pods that share GPUs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct NodeScaleAdjusterConfig {
    /// Common settings of the component's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// Settings of scaling pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<NodeScaleAdjusterArgs>,
    /// Vertical autoscaling of the component's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpa: Option<Vpa>,
}

/// Settings of scaling pods.
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
    /// The fraction of a GPU that a memory request counts as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_memory_to_fraction_ratio: Option<f64>,
}

/// The exporter of the NUMA zones of running pods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NumaPlacementExporterConfig {
    /// Common settings of the component's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// Node selector of its pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations of its pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::embedded::<Vec<Toleration>>")]
    pub tolerations: Vec<Toleration>,
    /// The time between two reads of the NUMA zones. A duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll_interval: Option<String>,
    /// The time between two full updates. A duration.
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

/// The Prometheus server with past usage.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrometheusConfig {
    /// Whether to install a Prometheus server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_name: Option<String>,
    /// Retention period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_period: Option<String>,
    /// Sample interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_interval: Option<String>,
    /// Whether to use persistent storage; true if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_persistent_storage: Option<bool>,
    /// Size of the storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_size: Option<String>,
    /// Storage class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// Scrape settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_monitor: Option<ServiceMonitorConfig>,
    /// Address of an external Prometheus server to use instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_prometheus_url: Option<String>,
    /// Health checks of the external Prometheus server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_prometheus_health_probe: Option<PrometheusHealthProbe>,
    /// Label key of the accounting metrics' service monitors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accounting_label_key: Option<String>,
    /// Value of that label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accounting_label_value: Option<String>,
}

/// Scrape settings.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceMonitorConfig {
    /// Whether service monitors are enabled; true if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Scrape interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,
    /// Scrape timeout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scrape_timeout: Option<String>,
    /// The file with the bearer token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bearer_token_file: Option<String>,
}

/// Health checks of an external Prometheus server.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrometheusHealthProbe {
    /// Seconds between two checks; 30 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<i64>,
    /// Timeout of a check in seconds; 10 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// The number of retries of a failed check; 5 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<i64>,
}
