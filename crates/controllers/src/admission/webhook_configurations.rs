//! The webhook configurations: which requests the API server asks us about. Rendering only.
//!
//! Pods of other schedulers are never asked about, so they come and go while nobody serves. Our own roles are not asked about when they
//! change pods and pod groups, so that running workloads are looked after in that time, too.

use kai_api::{Resource, Scope};
use serde_json::{Value, json};

use super::admission_policies::ours;
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

/// Where pods are changed.
pub const MUTATE_POD: &str = "/mutate--v1-pod";
/// Where pods are looked at.
pub const VALIDATE_POD: &str = "/validate--v1-pod";
/// Where queues are looked at.
pub const VALIDATE_QUEUE: &str = "/validate-scheduling-run-ai-v2-queue";
/// Where pod groups are looked at.
pub const VALIDATE_POD_GROUP: &str = "/validate-scheduling-run-ai-v2alpha2-podgroup";
/// Where topologies are looked at.
pub const VALIDATE_TOPOLOGY: &str = "/validate-kai-scheduler-v1alpha1-topology";

/// The API server waits this long. Answers take microseconds; the rest is for the network.
const TIMEOUT_SECONDS: u32 = 5;

/// Resource and name of every configuration.
pub(crate) const ALL: [(&Resource, &str); 4] = [
    (&MUTATING, "mutating-kai-admission"),
    (&VALIDATING, "validating-kai-admission"),
    (&VALIDATING, "kai-queue-validation-v2"),
    (&VALIDATING, "kai-podgroup-validation-v2alpha2"),
];

/// Every configuration, in the order of `ALL`. The bundle is base64 of PEM; if it is empty, the API server goes by the authorities of
/// its system, or by what another writes there.
pub fn webhook_configurations(settings: &Settings, bundle: &str) -> [Value; 4] {
    let webhooks = [
        json!([mutate_pod(settings, bundle)]),
        json!([validate_pod(settings, bundle), validate_topology(settings, bundle)]),
        json!([validate_queue(settings, bundle), keep_queue(settings, bundle)]),
        json!([validate_pod_group(settings, bundle)]),
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
    let mut hook = webhook(settings, bundle, &host(settings), MUTATE_POD, &rules);
    hook["reinvocationPolicy"] = "IfNeeded".into();
    restrict_to_our_pods(&mut hook, settings);
    hook
}

fn validate_pod(settings: &Settings, bundle: &str) -> Value {
    let mut rules = vec![pods(&["CREATE", "UPDATE"], "pods")];
    if settings.block_visible_devices == Feature::On {
        rules.push(pods(&["UPDATE"], "pods/ephemeralcontainers"));
    }
    let mut hook = webhook(settings, bundle, &host(settings), VALIDATE_POD, &rules);
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
    conditions.push(json!({"name": "not-ours", "expression": format!("!({})", ours(settings))}));
    conditions.push(json!({"name": "something-changed", "expression": relevant}));
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
    webhook(
        settings,
        bundle,
        &format!("topology.{}", host(settings)),
        VALIDATE_TOPOLOGY,
        &rules,
    )
}

fn validate_queue(settings: &Settings, bundle: &str) -> Value {
    let rules = [rule(
        "scheduling.run.ai",
        "v2",
        "queues",
        &["CREATE", "UPDATE"],
        "Cluster",
    )];
    webhook(
        settings,
        bundle,
        "queue-validation.kai.scheduler",
        VALIDATE_QUEUE,
        &rules,
    )
}

/// It guards against mistakes only, and an uninstallation must get through while nobody serves.
fn keep_queue(settings: &Settings, bundle: &str) -> Value {
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
        ours(settings)
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

/// The name of the webhooks for pods, which must look like a domain.
fn host(settings: &Settings) -> String {
    match &settings.endpoint {
        Endpoint::Service { name, .. } => format!("{name}.{}.svc", settings.system_namespace),
        Endpoint::Url(_) => format!("admission.{}.svc", settings.system_namespace),
    }
}
