//! The webhook configurations: the requests that the API server sends to the webhooks. Rendering only.
//!
//! The API server sends no pods of other schedulers, so those are created and deleted while no webhook server runs. It sends no pod and
//! pod group writes of our own roles either, so that the roles work in that time. It sends no queues and topologies that the installation
//! step creates: a replica is ready after that step, and only a ready one is an endpoint of the webhooks' Service.

use kai_api::{Resource, Scope};
use serde_json::{Value, json};

use super::admission_policies::is_trusted;
use super::args::{Endpoint, Feature, Settings};

/// MutatingWebhookConfigurations.
pub(crate) const MUTATING: Resource = Resource::new(
    "admissionregistration.k8s.io",
    "v1",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    Scope::Cluster,
);
/// ValidatingWebhookConfigurations.
pub(crate) const VALIDATING: Resource = Resource::new(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    Scope::Cluster,
);

/// Path of the webhook that mutates pods.
pub const MUTATE_POD: &str = "/mutate--v1-pod";
/// Path of the webhook that validates pods.
pub const VALIDATE_POD: &str = "/validate--v1-pod";
/// Path of the webhook that validates in-place resizes of pods.
pub const VALIDATE_POD_RESIZE: &str = "/validate--v1-pod-resize";
/// Path of the webhook that validates queues.
pub const VALIDATE_QUEUE: &str = "/validate-scheduling-run-ai-v2-queue";
/// Path of the webhook that validates pod groups.
pub const VALIDATE_POD_GROUP: &str = "/validate-scheduling-run-ai-v2alpha2-podgroup";
/// Path of the webhook that validates topologies.
pub const VALIDATE_TOPOLOGY: &str = "/validate-kai-scheduler-v1alpha1-topology";

/// The API server's time-out. An answer takes microseconds; the rest is for the network.
const TIMEOUT_SECONDS: u32 = 5;

/// Resource and name of every webhook configuration.
pub(crate) const ALL: [(&Resource, &str); 4] = [
    (&MUTATING, "mutating-kai-admission"),
    (&VALIDATING, "validating-kai-admission"),
    (&VALIDATING, "kai-queue-validation-v2"),
    (&VALIDATING, "kai-podgroup-validation-v2alpha2"),
];

/// Every webhook configuration, in the order of `ALL`. `bundle` is base64 of PEM. If it is empty, the API server trusts the CAs of its
/// system or a CA bundle that another component injects.
pub fn webhook_configurations(settings: &Settings, bundle: &str) -> [Value; 4] {
    let webhooks = [
        json!([mutate_pod(settings, bundle)]),
        json!([
            validate_pod(settings, bundle),
            validate_pod_resize(settings, bundle),
            validate_topology(settings, bundle)
        ]),
        // Without webhooks the configuration stays, empty: admission may not delete webhook configurations.
        match settings.queue_webhook {
            Feature::On => json!([
                validate_queue(settings, bundle),
                validate_queue_deletion(settings, bundle)
            ]),
            Feature::Off => json!([]),
        },
        match settings.pod_group_webhook {
            Feature::On => json!([validate_pod_group(settings, bundle)]),
            Feature::Off => json!([]),
        },
    ];
    let mut at = 0;
    webhooks.map(|webhooks| {
        let (resource, name) = ALL[at];
        at += 1;
        json!({
            "apiVersion": resource.api_version(),
            "kind": resource.kind,
            "metadata": {"name": name, "labels": {"app": "admission"}},
            "webhooks": webhooks,
        })
    })
}

fn mutate_pod(settings: &Settings, bundle: &str) -> Value {
    let mut rules = vec![pods(&["CREATE"], "pods")];
    if settings.block_visible_devices == Feature::On {
        rules.push(pods(&["UPDATE"], "pods/ephemeralcontainers"));
    }
    let mut hook = webhook(settings, bundle, &webhook_name(settings), MUTATE_POD, &rules);
    hook["reinvocationPolicy"] = "IfNeeded".into();
    restrict_to_our_pods(&mut hook, settings);
    hook
}

fn validate_pod(settings: &Settings, bundle: &str) -> Value {
    let mut rules = vec![pods(&["CREATE", "UPDATE"], "pods")];
    if settings.block_visible_devices == Feature::On {
        rules.push(pods(&["UPDATE"], "pods/ephemeralcontainers"));
    }
    let mut hook = webhook(settings, bundle, &webhook_name(settings), VALIDATE_POD, &rules);
    restrict_to_our_pods(&mut hook, settings);
    let differs = |field: &str| {
        format!(
            "has(object.{field}) != has(oldObject.{field}) || (has(object.{field}) && object.{field} != oldObject.{field})"
        )
    };
    let relevant = format!(
        "request.operation != 'UPDATE' || (has(request.subResource) && request.subResource != '') || {} || {}",
        differs("metadata.labels"),
        differs("metadata.annotations")
    );
    let conditions = hook["matchConditions"].as_array_mut().expect("written as a list");
    conditions.push(json!({"name": "not-ours", "expression": format!("!({})", is_trusted(settings))}));
    conditions.push(json!({"name": "something-changed", "expression": relevant}));
    hook
}

/// Fails open, as in KAI: a resize must not depend on this webhook, because an autoscaler may make it to save a pod.
fn validate_pod_resize(settings: &Settings, bundle: &str) -> Value {
    let rules = [pods(&["UPDATE"], "pods/resize")];
    let name = format!("resize.{}", webhook_name(settings));
    let mut hook = webhook(settings, bundle, &name, VALIDATE_POD_RESIZE, &rules);
    hook["failurePolicy"] = "Ignore".into();
    restrict_to_our_pods(&mut hook, settings);
    hook
}

fn validate_topology(settings: &Settings, bundle: &str) -> Value {
    let rules = [rule(
        "kai.scheduler",
        "v1alpha1",
        "topologies",
        &["CREATE", "UPDATE"],
        "Cluster",
    )];
    let mut hook = webhook(
        settings,
        bundle,
        &format!("topology.{}", webhook_name(settings)),
        VALIDATE_TOPOLOGY,
        &rules,
    );
    exempt_installation_step(&mut hook, settings);
    hook
}

fn validate_queue(settings: &Settings, bundle: &str) -> Value {
    let rules = [rule(
        "scheduling.run.ai",
        "v2",
        "queues",
        &["CREATE", "UPDATE"],
        "Cluster",
    )];
    let mut hook = webhook(
        settings,
        bundle,
        "queue-validation.kai.scheduler",
        VALIDATE_QUEUE,
        &rules,
    );
    exempt_installation_step(&mut hook, settings);
    hook
}

/// Fails open: the webhook guards against mistakes only, and an uninstallation must succeed while no webhook server runs.
fn validate_queue_deletion(settings: &Settings, bundle: &str) -> Value {
    let rules = [rule("scheduling.run.ai", "v2", "queues", &["DELETE"], "Cluster")];
    let mut hook = webhook(settings, bundle, "queue-deletion.kai.scheduler", VALIDATE_QUEUE, &rules);
    hook["failurePolicy"] = "Ignore".into();
    hook
}

fn validate_pod_group(settings: &Settings, bundle: &str) -> Value {
    let rules = [rule(
        "scheduling.run.ai",
        "v2alpha2",
        "podgroups",
        &["CREATE", "UPDATE"],
        "Namespaced",
    )];
    let mut hook = webhook(
        settings,
        bundle,
        "podgroup-validation.kai.scheduler",
        VALIDATE_POD_GROUP,
        &rules,
    );
    let relevant = format!(
        "request.operation == 'CREATE' || !({}) || has(object.spec) != has(oldObject.spec) || \
         (has(object.spec) && object.spec != oldObject.spec)",
        is_trusted(settings)
    );
    hook["matchConditions"] = json!([{"name": "not-ours-or-specified-anew", "expression": relevant}]);
    hook
}

fn webhook(settings: &Settings, bundle: &str, name: &str, path: &str, rules: &[Value]) -> Value {
    let mut client = match &settings.endpoint {
        Endpoint::Service { name, port } => {
            json!({"service": {"namespace": settings.system_namespace, "name": name, "path": path, "port": port}})
        }
        Endpoint::Url(base) => json!({"url": format!("{base}{path}")}),
    };
    if !bundle.is_empty() {
        client["caBundle"] = bundle.into();
    }
    json!({
        "name": name,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "timeoutSeconds": TIMEOUT_SECONDS,
        "clientConfig": client,
        "rules": rules,
    })
}

fn restrict_to_our_pods(hook: &mut Value, settings: &Settings) {
    let mut expressions = vec![json!({
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": ["kube-system", settings.system_namespace],
    })];
    if let Some(label) = &settings.namespaces.with_label {
        expressions.push(json!({"key": label, "operator": "Exists"}));
    }
    hook["namespaceSelector"] = json!({"matchExpressions": expressions});
    if !settings.namespaces.labels.is_empty() {
        hook["namespaceSelector"]["matchLabels"] = settings.namespaces.labels.iter().cloned().collect();
    }
    if !settings.pod_labels.is_empty() {
        hook["objectSelector"] = json!({"matchLabels": settings.pod_labels.iter().cloned().collect::<Value>()});
    }
    let ours = format!(
        "has(object.spec.schedulerName) && object.spec.schedulerName == '{}'",
        settings.scheduler_name
    );
    hook["matchConditions"] = json!([{"name": "scheduler-name-match", "expression": ours}]);
}

/// The accounts of kai create objects of these kinds only in the installation step.
fn exempt_installation_step(hook: &mut Value, settings: &Settings) {
    let expression = format!(
        "request.operation != 'CREATE' || !request.userInfo.username.startsWith('system:serviceaccount:{}:')",
        settings.system_namespace
    );
    hook["matchConditions"] = json!([{"name": "not-installed-by-us", "expression": expression}]);
}

fn rule(group: &str, version: &str, resource: &str, operations: &[&str], scope: &str) -> Value {
    json!({
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": operations,
        "resources": [resource],
        "scope": scope,
    })
}

fn pods(operations: &[&str], resource: &str) -> Value {
    rule("", "v1", resource, operations, "Namespaced")
}

/// The name of the pod webhooks, which must be a domain name.
fn webhook_name(settings: &Settings) -> String {
    match &settings.endpoint {
        Endpoint::Service { name, .. } => format!("{name}.{}.svc", settings.system_namespace),
        Endpoint::Url(_) => format!("admission.{}.svc", settings.system_namespace),
    }
}
