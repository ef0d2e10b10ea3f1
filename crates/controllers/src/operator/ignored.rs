//! The settings of a Config that have no effect, with reasons. They are in the message of the Config's condition.

use kai_api::crd::ConfigSpec;
use serde_json::Value;

use super::component::{is_image_of_kai, to_json};
use super::inputs::{ClusterFacts, Runner};

/// Paths in a Config without an effect, wherever the roles run. A star stands for one field.
const ALWAYS: [(&str, &str); 19] = [
    (
        "global.daemonsetsTolerations",
        "the installation sets up the node agent",
    ),
    ("nodeScaleAdjuster.service.k8sClientConfig", CLIENTS),
    ("numaPlacementExporter", "kai has no NUMA placement exporter"),
    ("prometheus", "kai installs no Prometheus server"),
    ("scheduler.GOGC", "the scheduler has no garbage collector"),
    ("podGrouper.args.genericKartaFallback", "kai reads no Kartas"),
    ("podGrouper.k8sClientConfig", CLIENTS),
    ("podGrouper.service.k8sClientConfig", CLIENTS),
    ("binder.service.k8sClientConfig", CLIENTS),
    ("admission.service.k8sClientConfig", CLIENTS),
    ("queueController.service.k8sClientConfig", CLIENTS),
    ("podGroupController.service.k8sClientConfig", CLIENTS),
    ("admission.validatingWebhookConfigurationName", NAMES),
    ("admission.mutatingWebhookConfigurationName", NAMES),
    ("queueController.webhooks.webhookConfigurationNamePrefix", NAMES),
    ("podGroupController.webhooks.webhookConfigurationNamePrefix", NAMES),
    (
        "queueController.controllerService.webhook",
        "admission serves all webhooks",
    ),
    ("podGroupController.controllerService", "admission serves all webhooks"),
    ("binder.plugins", "the binder has no such plugin or switch"),
];
/// Schedulers ask this server for past usage.
const USAGE_SERVER: &str = "prometheus.externalPrometheusUrl";
const CLIENTS: &str = "the API server limits its clients";
const NAMES: &str = "the names of webhook configurations are fixed";

/// Paths without an effect on the roles of `kai all`: its Deployment has these settings.
const IN_ONE_PROCESS: [&str; 25] = [
    "namespace",
    "global.openshift",
    "global.affinity",
    "global.requireDefaultPodAntiAffinityTerm",
    "global.securityContext",
    "global.imagesPullSecret",
    "global.additionalImagePullSecrets",
    "global.nodeSelector",
    "global.tolerations",
    "global.priorityClassName",
    "global.replicaCount",
    "global.jsonLog",
    "global.vpa",
    "*.vpa",
    "*.replicas",
    "*.service.image",
    "*.service.resources",
    "*.service.affinity",
    "*.service.podDisruptionBudget",
    "binder.probePort",
    "binder.metricsPort",
    "admission.webhook.probePort",
    "admission.webhook.metricsPort",
    "scheduler.schedulerService",
    "queueController.controllerService.metrics",
];

/// The settings without an effect: a line for each reason, with the paths.
pub(super) fn ignored(spec: &ConfigSpec, runner: Runner, facts: ClusterFacts) -> Vec<String> {
    let mut lines: Vec<(&str, Vec<String>)> = Vec::new();
    let spec = to_json(spec);
    let mut paths = Vec::new();
    leaves(&spec, &mut Vec::new(), &mut paths);
    for path in paths {
        let Some(reason) = reason(&path, &spec, runner, facts) else {
            continue;
        };
        let path = path.join(".");
        match lines.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, paths)) => paths.push(path),
            None => lines.push((reason, vec![path])),
        }
    }
    let line = |(reason, paths): (&str, Vec<String>)| format!("{} ({reason})", paths.join(", "));
    lines.into_iter().map(line).collect()
}

/// Whether the path is a part of an image reference that names an image of KAI.
fn names_image_of_kai(path: &[&str], spec: &Value) -> bool {
    let Some((field, image @ [.., "image"])) = path.split_last() else {
        return false;
    };
    let image = image.iter().fold(spec, |value, field| &value[*field]);
    ["name", "repository", "tag"].contains(field) && image["name"].as_str().is_some_and(is_image_of_kai)
}

/// The paths of all values that are no objects.
fn leaves<'a>(value: &'a Value, path: &mut Vec<&'a str>, found: &mut Vec<Vec<&'a str>>) {
    match value.as_object() {
        Some(fields) => {
            for (name, field) in fields {
                path.push(name);
                leaves(field, path, found);
                path.pop();
            }
        }
        None => found.push(path.clone()),
    }
}

fn reason(path: &[&str], spec: &Value, runner: Runner, facts: ClusterFacts) -> Option<&'static str> {
    if is_absent_component(path, spec) || is_binder_plugin(path) || starts_with(path, USAGE_SERVER) {
        return None;
    }
    let always = ALWAYS.into_iter().find(|(prefix, _)| starts_with(path, prefix));
    if let Some((_, reason)) = always {
        return Some(reason);
    }
    if names_image_of_kai(path, spec) {
        return Some("the image is KAI-Scheduler's; kai has one image for all roles");
    }
    if is_suppressed(path, spec) {
        return Some("OpenShift assigns security contexts");
    }
    let is_timeout = starts_with(path, "binder.volumeBindingTimeoutSeconds");
    if is_timeout && spec[path[0]][path[1]].as_i64().is_some_and(|seconds| seconds < 1) {
        return Some("it must be at least 1; the binder waits for its default time");
    }
    let in_one_process = runner == Runner::Process && IN_ONE_PROCESS.iter().any(|prefix| starts_with(path, prefix));
    if in_one_process {
        return Some("the Deployment of kai all has it");
    }
    let is_vpa = starts_with(path, "*.vpa") && !facts.serves_vpa;
    let is_wanted = spec[path[0]]["vpa"]["enabled"] != false;
    (is_vpa && is_wanted).then_some("the cluster serves no VerticalPodAutoscalers")
}

fn starts_with(path: &[&str], prefix: &str) -> bool {
    let mut fields = path.iter();
    let is_same = |field: &str| fields.next().is_some_and(|have| field == "*" || field == *have);
    prefix.split('.').all(is_same)
}

/// Whether the setting belongs to a component that the Config switches off: kai does not have it, so there is nothing to say.
fn is_absent_component(path: &[&str], spec: &Value) -> bool {
    match path[0] {
        "prometheus" => spec["prometheus"]["enabled"] == false,
        "nodeScaleAdjuster" => {
            spec["nodeScaleAdjuster"]["service"]["enabled"] != true
                && path != ["nodeScaleAdjuster", "service", "enabled"]
        }
        "numaPlacementExporter" => spec["numaPlacementExporter"]["service"]["enabled"] == false,
        _ => false,
    }
}

/// Whether the setting of a plugin of the binder has an effect.
fn is_binder_plugin(path: &[&str]) -> bool {
    let known = [
        "binder.plugins.gpusharing.arguments.cdiEnabled",
        "binder.plugins.hamicore.enabled",
    ];
    known.iter().any(|known| starts_with(path, known))
}

fn is_suppressed(path: &[&str], spec: &Value) -> bool {
    starts_with(path, "global.securityContext") && spec["global"]["openshift"] == true
}
