//! The flags of each role, from a Config. A setting that the Config does not have is no flag: the role has the default.

use kai_api::crd::ConfigSpec;
use kai_api::crd::config::{
    AdmissionConfig, BinderConfig, GlobalConfig, NodeScaleAdjusterConfig, QueueControllerConfig,
    ResourceReservationConfig,
};
use kai_api::{GpuSharingMode, keys};
use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::Flags;
use super::component::{image_url, to_json};
use super::inputs::{ClusterFacts, Installation, Runner};

/// Flags that say which controller of `kai controllers` runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Controller {
    PodGrouper,
    PodGroups,
    Queues,
    NodeScaleAdjuster,
}

impl Controller {
    const ALL: [(Controller, &str); 4] = [
        (Controller::PodGrouper, "pod-grouper"),
        (Controller::PodGroups, "pod-group-controller"),
        (Controller::Queues, "queue-controller"),
        (Controller::NodeScaleAdjuster, "node-scale-adjuster"),
    ];

    /// Runs this controller and no other. The installation creates the default queues and priority classes.
    pub(super) fn alone(self) -> Flags {
        let mut flags = Flags::default();
        for (controller, flag) in Controller::ALL {
            flags.set(flag, controller == self);
        }
        flags.set("create-defaults", false);
        flags
    }
}

/// Names, labels and the mode of GPU sharing, which several roles must agree on.
pub(super) struct Names<'a> {
    global: &'a GlobalConfig,
    reservation: &'a ResourceReservationConfig,
    gpu_sharing: Option<GpuSharingMode>,
}

impl<'a> Names<'a> {
    pub(super) fn new(
        spec: &ConfigSpec,
        global: &'a GlobalConfig,
        reservation: &'a ResourceReservationConfig,
    ) -> Names<'a> {
        Names {
            global,
            reservation,
            gpu_sharing: spec.gpu_sharing_mode(),
        }
    }

    pub(super) fn scheduler(&self) -> &str {
        self.global.scheduler_name.as_deref().unwrap_or(keys::SCHEDULER_NAME)
    }

    pub(super) fn scheduler_name(&self, flags: &mut Flags) {
        flags.set_some("scheduler-name", self.global.scheduler_name.as_ref());
    }

    pub(super) fn queue_label(&self, flags: &mut Flags) {
        flags.set_some("queue-label-key", self.global.queue_label_key.as_ref());
    }

    pub(super) fn node_pool_label(&self, flags: &mut Flags) {
        flags.set_some("nodepool-label-key", self.global.node_pool_label_key.as_ref());
    }

    /// The mode, where the Config sets it or the switch before it.
    pub(super) fn gpu_sharing(&self, flags: &mut Flags) {
        flags.set_some("gpu-sharing-mode", self.gpu_sharing);
    }

    fn selectors(&self, flags: &mut Flags) {
        flags.set_some("namespace-label-selector", pairs(&self.global.namespace_label_selector));
        flags.set_some("pod-label-selector", pairs(&self.global.pod_label_selector));
    }

    pub(super) fn reservation_pods(&self, flags: &mut Flags) {
        flags.set_some("resource-reservation-namespace", self.reservation.namespace.as_ref());
        flags.set_some("resource-reservation-app-label", self.reservation.app_label.as_ref());
    }
}

fn pairs(labels: &BTreeMap<String, String>) -> Option<String> {
    let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    (!pairs.is_empty()).then(|| pairs.join(","))
}

/// The flags of the pod grouper.
pub(super) fn pod_grouper(spec: &ConfigSpec, namespace: &str, names: &Names<'_>, flags: &mut Flags) {
    flags.set("grouping-rules-configmap-namespace", namespace);
    names.scheduler_name(flags);
    names.node_pool_label(flags);
    names.queue_label(flags);
    names.selectors(flags);
    let Some(grouper) = &spec.pod_grouper else { return };
    flags.set_some("max-concurrent-reconciles", grouper.max_concurrent_reconciles);
    let Some(args) = &grouper.args else { return };
    flags.set_some("knative-gang-schedule", args.gang_schedule_knative);
    flags.set_some("deployment-gang-schedule", args.gang_schedule_deployment);
    flags.set_some(
        "default-priorities-configmap-name",
        args.default_priorities_config_map_name.as_ref(),
    );
    flags.set_some(
        "default-priorities-configmap-namespace",
        args.default_priorities_config_map_namespace.as_ref(),
    );
}

/// The flags of the pod-group controller.
pub(super) fn pod_group_controller(spec: &ConfigSpec, names: &Names<'_>, flags: &mut Flags) {
    names.scheduler_name(flags);
    let controller = spec.pod_group_controller.as_ref();
    let workers = controller.and_then(|controller| controller.max_concurrent_reconciles);
    flags.set_some("max-concurrent-reconciles", workers);
}

/// The flags of the queue controller.
pub(super) fn queue_controller(config: &QueueControllerConfig, flags: &mut Flags) {
    flags.set_some("metrics-namespace", config.metrics_namespace.as_ref());
    flags.set_some(
        "queue-label-to-metric-label",
        config.queue_label_to_metric_label.as_ref(),
    );
    flags.set_some(
        "queue-label-to-default-metric-value",
        config.queue_label_to_default_metric_value.as_ref(),
    );
}

/// The flags of the node-scale adjuster.
pub(super) fn node_scale_adjuster(
    config: &NodeScaleAdjusterConfig,
    names: &Names<'_>,
    installation: &Installation,
    flags: &mut Flags,
) {
    names.scheduler_name(flags);
    let absent = Default::default();
    let args = config.args.as_ref().unwrap_or(&absent);
    let image = args.scaling_pod_image.as_ref();
    // As for reservation pods: a process that runs all roles need not know its image.
    if installation.runner == Runner::Deployments || image.is_some() {
        flags.set("scaling-pod-image", image_url(image, &installation.image));
    }
    let policy = image.and_then(|image| image.pull_policy.as_ref());
    flags.set_some("scaling-pod-image-pull-policy", policy);
    flags.set_some("scale-adjust-namespace", args.node_scale_namespace.as_ref());
    flags.set_some("scaling-pod-service-account", args.node_scale_service_account.as_ref());
    flags.set_some("gpu-memory-to-fraction-ratio", args.gpu_memory_to_fraction_ratio);
}

/// The flags of the binder.
pub(super) fn binder(
    config: &BinderConfig,
    names: &Names<'_>,
    installation: &Installation,
    facts: ClusterFacts,
    flags: &mut Flags,
) {
    names.scheduler_name(flags);
    names.reservation_pods(flags);
    names.gpu_sharing(flags);
    flags.set_some("max-concurrent-reconciles", config.max_concurrent_reconciles);
    flags.set_some("plugins", binder_plugins(config, facts));
    flags.set_some("volume-binding-timeout", config.volume_binding_timeout());
    let reservation = names.reservation;
    // A process that runs all roles need not know its image; the binder has a flag for the image of reservation pods.
    if installation.runner == Runner::Deployments || reservation.image.is_some() {
        let image = image_url(reservation.image.as_ref(), &installation.image);
        flags.set("resource-reservation-pod-image", image);
    }
    let policy = reservation.image.as_ref().and_then(|image| image.pull_policy.as_ref());
    flags.set_some("resource-reservation-pod-image-pull-policy", policy);
    flags.set_some(
        "resource-reservation-service-account",
        reservation.service_account_name.as_ref(),
    );
    flags.set_some(
        "resource-reservation-allocation-timeout",
        reservation.allocation_timeout,
    );
    flags.set_some("runtime-class-name", reservation.runtime_class_name.as_ref());
    flags.set_some(
        "resource-reservation-pod-resources",
        reservation.pod_resources.as_ref().map(to_json),
    );
    flags.set_some(
        "resource-reservation-pod-security-context",
        reservation.reservation_pod_security_context.as_ref().map(to_json),
    );
    flags.set_some(
        "resource-reservation-container-security-context",
        reservation.reservation_container_security_context.as_ref().map(to_json),
    );
}

/// `--plugins`, as KAI's operator passes it, with the plugins that the binder has. Without `cdiEnabled` the binder decides about CDI
/// itself, node by node.
fn binder_plugins(config: &BinderConfig, facts: ClusterFacts) -> Option<Value> {
    let argument = config
        .plugins
        .get("gpusharing")
        .and_then(|plugin| plugin.arguments.get("cdiEnabled"));
    let detected = || facts.gpu_operator_cdi.then(|| "true".to_owned());
    let configured = config.cdi_enabled.map(|enabled| enabled.to_string());
    let cdi = configured.or_else(|| argument.cloned()).or_else(detected);
    let mut plugins = json!({});
    if let Some(cdi) = cdi {
        plugins["gpusharing"] = json!({ "enabled": true, "arguments": { "cdiEnabled": cdi } });
    }
    if let Some(hami) = config.plugins.get("hamicore") {
        plugins["hamicore"] = json!({ "enabled": hami.enabled.unwrap_or(true) });
    }
    (plugins != json!({})).then_some(plugins)
}

/// The flags of admission.
pub(super) fn admission(spec: &ConfigSpec, namespace: &str, names: &Names<'_>, flags: &mut Flags) {
    names.scheduler_name(flags);
    names.queue_label(flags);
    names.selectors(flags);
    names.reservation_pods(flags);
    names.gpu_sharing(flags);
    flags.set("namespace", namespace);
    let hami = spec.binder.as_ref().and_then(|binder| binder.plugins.get("hamicore"));
    flags.set_some("hami-core-enabled", hami.map(|plugin| plugin.enabled.unwrap_or(true)));
    let queues = spec
        .queue_controller
        .as_ref()
        .and_then(|queues| queues.webhooks.as_ref());
    flags.set_some("enable-queue-webhook", queues.and_then(|hook| hook.enable_validation));
    let queues = spec.queue_controller.as_ref();
    let violation = queues.and_then(|queues| queues.enforce_quota_violation.as_ref());
    flags.set_some("enforce-quota-violation", violation.filter(|policy| !policy.is_empty()));
    let groups = spec.pod_group_controller.as_ref();
    let groups = groups.and_then(|groups| groups.webhooks.as_ref());
    flags.set_some(
        "enable-podgroup-webhook",
        groups.and_then(|hook| hook.enable_validation),
    );
    if let Some(admission) = &spec.admission {
        admission_switches(admission, flags);
    }
}

fn admission_switches(config: &AdmissionConfig, flags: &mut Flags) {
    flags.set_some("block-nvidia-visible-devices", config.block_nvidia_visible_devices);
    flags.set_some("queue-label-selector", config.queue_label_selector);
    let resize = config.in_place_pod_resize.as_ref();
    flags.set_some(
        "validate-pod-resize-quota",
        resize.and_then(|resize| resize.validate_quota),
    );
    flags.set_some(
        "block-upsize-on-bounded-queues",
        resize.and_then(|resize| resize.block_upsize_on_bounded_queues),
    );
    let class = config.gpu_fraction_runtime_class_name.as_ref();
    let legacy = config.gpu_pod_runtime_class_name.as_ref();
    flags.set_some("gpu-fraction-runtime-class-name", class.or(legacy));
    let ports = config.webhook.as_ref();
    flags.set_some("webhook-addr", ports.and_then(|ports| ports.target_port));
    flags.set_some("webhook-service-port", ports.and_then(|ports| ports.port));
}
