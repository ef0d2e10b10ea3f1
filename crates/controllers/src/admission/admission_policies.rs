//! The rules about the scheduler's own keys and objects as ValidatingAdmissionPolicies. The API server evaluates them by itself, for
//! every pod of the cluster and whether or not anybody serves the webhooks. They are rendered from the same tables as the webhook's.
//!
//! The expressions keep to plain CEL (`has`, `all`, `in`), and every field is asked for before it is read: an expression that fails
//! refuses the request, and these are about all pods of a cluster.

use kai_api::keys;
use serde_json::{Value, json};

use super::args::Settings;
use super::gpu_share;
use super::protected_keys::{self, ProtectedKeys};
use super::service_account_policies::{self, unchanged as unchanged_field};
use super::trusted_users::{GARBAGE_COLLECTORS, KUBELET_GROUP};
use super::unstructured::MetadataMap;

/// Group and version of policies.
pub(crate) const API_VERSION: &str = "admissionregistration.k8s.io/v1";
/// Names of the policies about everybody but our accounts.
const NAMES: [&str; 5] = [
    "kai-pods",
    "kai-pod-bindings",
    "kai-pod-groups",
    "kai-bind-requests",
    "kai-shared-gpu-config-maps",
];

/// Names of all policies; each has a binding of the same name.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    NAMES.into_iter().chain(service_account_policies::NAMES)
}

/// All policies, each followed by its binding.
pub fn admission_policies(settings: &Settings) -> Vec<Value> {
    let [pods, bindings, pod_groups, bind_requests, config_maps] = NAMES;
    let policies = [
        policy(pods, &[pod_rule()], &[not_ours(settings)], &pod_validations(settings)),
        policy(
            bindings,
            &[binding_rule()],
            &[not_ours(settings)],
            &binding_validations(),
        ),
        policy(
            pod_groups,
            &[pod_group_rule()],
            &[not_ours(settings)],
            &pod_group_validations(),
        ),
        policy(
            bind_requests,
            &[bind_request_rule()],
            &[not_ours(settings), not_collected()],
            &[refuse(
                "false",
                "BindRequest: only the scheduler writes bind requests; leave them alone",
            )],
        ),
        policy(
            config_maps,
            &[config_map_rule()],
            &[not_ours(settings), not_collected(), marked()],
            &config_map_validations(),
        ),
    ];
    let with_binding = |policy: Value| {
        let binding = binding(&policy);
        [policy, binding]
    };
    let own = service_account_policies::policies(settings);
    policies.into_iter().chain(own).flat_map(with_binding).collect()
}

/// Who of the users is one of ours, as CEL.
pub(crate) fn ours(settings: &Settings) -> String {
    let users: Vec<String> = settings.trusted_users.iter().map(super::UserMatcher::cel).collect();
    match users.is_empty() {
        true => "false".to_owned(),
        false => users.join(" || "),
    }
}

pub(super) fn policy(name: &str, rules: &[Value], conditions: &[Value], validations: &[Value]) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name, "labels": {"app": "admission"}},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": rules},
            "matchConditions": conditions,
            "validations": validations,
        },
    })
}

fn binding(policy: &Value) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": policy["metadata"],
        "spec": {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]},
    })
}

pub(super) fn rule(group: &str, resources: &[&str], operations: &[&str], scope: &str) -> Value {
    json!({
        "apiGroups": [group],
        "apiVersions": ["*"],
        "operations": operations,
        "resources": resources,
        "scope": scope,
    })
}

fn namespaced(group: &str, resources: &[&str], operations: &[&str]) -> Value {
    rule(group, resources, operations, "Namespaced")
}

/// Labels and annotations can be changed through the status, too.
fn pod_rule() -> Value {
    namespaced("", &["pods", "pods/status"], &["CREATE", "UPDATE"])
}

/// A binding's labels and annotations become the pod's.
fn binding_rule() -> Value {
    namespaced("", &["pods/binding", "bindings"], &["CREATE"])
}

fn pod_group_rule() -> Value {
    namespaced(
        "scheduling.run.ai",
        &["podgroups", "podgroups/status"],
        &["CREATE", "UPDATE"],
    )
}

fn bind_request_rule() -> Value {
    namespaced(
        "scheduling.run.ai",
        &["bindrequests", "bindrequests/status"],
        &["CREATE", "UPDATE", "DELETE"],
    )
}

fn config_map_rule() -> Value {
    namespaced("", &["configmaps"], &["CREATE", "UPDATE", "DELETE"])
}

pub(super) fn condition(name: &str, expression: String) -> Value {
    json!({"name": name, "expression": expression})
}

fn not_ours(settings: &Settings) -> Value {
    condition("not-ours", format!("!({})", ours(settings)))
}

/// What has lost its owner or its namespace must be able to go.
fn not_collected() -> Value {
    let names: Vec<String> = GARBAGE_COLLECTORS.iter().map(|name| format!("'{name}'")).collect();
    let expression = format!(
        "!(request.operation == 'DELETE' && request.userInfo.username in [{}])",
        names.join(", ")
    );
    condition("not-collected", expression)
}

fn marked() -> Value {
    let has = |object: &str| {
        format!(
            "({object} != null && has({object}.metadata.labels) && '{}' in {object}.metadata.labels)",
            keys::SHARED_GPU_MARKER
        )
    };
    condition("shared-gpu", format!("{} || {}", has("object"), has("oldObject")))
}

pub(super) fn refuse(unless: &str, message: &str) -> Value {
    json!({"expression": unless, "message": message, "reason": "Forbidden"})
}

fn pod_validations(settings: &Settings) -> Vec<Value> {
    let mut validations = Vec::new();
    for table in [&protected_keys::POD_LABELS, &protected_keys::POD_ANNOTATIONS] {
        validations.extend(owned_validations("Pod", table));
    }
    let message = format!(
        "Pod: metadata.labels.{}: {}",
        keys::APP,
        protected_keys::HELPER_APP_USED
    );
    validations.push(refuse(&helper(), &message));
    let message = format!("Pod: spec.nodeName: {}", protected_keys::NODE_CHOSEN);
    validations.push(refuse(&node_chosen(&settings.scheduler_name), &message));
    let message = format!("Pod: {}: {}", keys::RESOURCE_GPU_SHARE, gpu_share::SHARE_DEVICE_BY_HAND);
    validations.push(refuse(&no_share_device_by_hand(&settings.scheduler_name), &message));
    let message = format!("Pod: status.phase: {}", protected_keys::PHASE_WRITTEN);
    validations.push(refuse(&phase(&settings.scheduler_name), &message));
    let fixed = &protected_keys::FIXED_ANNOTATIONS;
    let message = format!(
        "Pod: {}: {}: {}",
        fixed.map.path(),
        fixed.exact.join(", "),
        protected_keys::GPU_REQUEST_CHANGED
    );
    validations.push(refuse(
        &format!("request.operation != 'UPDATE' || {}", unchanged(fixed)),
        &message,
    ));
    validations
}

fn binding_validations() -> Vec<Value> {
    let tables = [&protected_keys::POD_LABELS, &protected_keys::POD_ANNOTATIONS];
    let validation = |table: &ProtectedKeys| {
        let map = format!("object.{}", table.map.path());
        let message = format!(
            "Binding: {}: {}: {}",
            table.map.path(),
            listed(table),
            protected_keys::KEY_ADDED
        );
        refuse(
            &format!("!has({map}) || {map}.all(key, !({}))", is_owned(table)),
            &message,
        )
    };
    let by_tenant = refuse(
        &may_everywhere("binding", "create"),
        &format!("Binding: {}", protected_keys::BINDING_FORBIDDEN),
    );
    tables.into_iter().map(validation).chain([by_tenant]).collect()
}

fn pod_group_validations() -> Vec<Value> {
    let mut validations = owned_validations("PodGroup", &protected_keys::POD_GROUP_ANNOTATIONS);
    let status = "PodGroup: status: only the scheduler writes it; leave it alone";
    validations.push(refuse(
        "!has(request.subResource) || request.subResource != 'status'",
        status,
    ));
    validations
}

fn config_map_validations() -> Vec<Value> {
    let marker = keys::SHARED_GPU_MARKER;
    let kept = format!("has(object.metadata.labels) && '{marker}' in object.metadata.labels");
    let was = format!("has(oldObject.metadata.labels) && '{marker}' in oldObject.metadata.labels");
    let parts = [
        "request.operation == 'UPDATE'".to_owned(),
        kept,
        was,
        unchanged_field("data"),
        unchanged_field("binaryData"),
        unchanged_field("metadata.ownerReferences"),
    ];
    let message = format!(
        "ConfigMap: it tells a pod which GPUs are its own (label {marker}); only the scheduler writes it. Leave it alone: it goes \
         with its pod"
    );
    vec![refuse(&parts.join(" && "), &message)]
}

/// Owned keys of the new object are as in the old one, and none is gone.
fn owned_validations(kind: &str, table: &ProtectedKeys) -> Vec<Value> {
    let path = table.map.path();
    let is_owned = is_owned(table);
    let (new, old) = (format!("object.{path}"), format!("oldObject.{path}"));
    let written = format!(
        "!has({new}) || {new}.all(key, !({is_owned}) || (request.operation == 'UPDATE' && has({old}) && key in {old} && \
         {old}[key] == {new}[key]))"
    );
    let removed = format!(
        "request.operation != 'UPDATE' || !has({old}) || {old}.all(key, !({is_owned}) || (has({new}) && key in {new}))"
    );
    vec![
        refuse(
            &written,
            &format!("{kind}: {path}: {}: {}", listed(table), protected_keys::KEY_ADDED),
        ),
        refuse(
            &removed,
            &format!("{kind}: {path}: {}: {}", listed(table), protected_keys::KEY_CHANGED),
        ),
    ]
}

fn is_owned(table: &ProtectedKeys) -> String {
    let exact = table.exact.iter().map(|key| format!("key == '{key}'"));
    let prefixes = table
        .prefixes
        .iter()
        .map(|prefix| format!("key.startsWith('{prefix}')"));
    exact.chain(prefixes).collect::<Vec<_>>().join(" || ")
}

fn listed(table: &ProtectedKeys) -> String {
    let exact = table.exact.iter().map(|key| (*key).to_owned());
    let prefixes = table.prefixes.iter().map(|prefix| format!("{prefix}*"));
    exact.chain(prefixes).collect::<Vec<_>>().join(", ")
}

fn unchanged(table: &ProtectedKeys) -> String {
    let path = table.map.path();
    let keys: Vec<String> = table.exact.iter().map(|key| format!("'{key}'")).collect();
    let there = |object: &str| format!("(has({object}.{path}) && key in {object}.{path})");
    let (new, old) = (there("object"), there("oldObject"));
    format!(
        "[{}].all(key, {new} == {old} && (!{new} || object.{path}[key] == oldObject.{path}[key]))",
        keys.join(", ")
    )
}

fn helper() -> String {
    let helpers: Vec<String> = protected_keys::HELPER_APPS
        .iter()
        .map(|helper| format!("'{helper}'"))
        .collect();
    let app = keys::APP;
    let path = MetadataMap::Labels.path();
    let there = |object: &str| {
        format!(
            "(has({object}.{path}) && '{app}' in {object}.{path} && {object}.{path}['{app}'] in [{}])",
            helpers.join(", ")
        )
    };
    let (new, old) = (there("object"), there("oldObject"));
    format!(
        "request.operation == 'UPDATE' ? ({new} == {old} && (!{new} || object.{path}['{app}'] == oldObject.{path}['{app}'])) : !{new}"
    )
}

/// Slots are for pods of ours that ask for a part of a GPU.
fn no_share_device_by_hand(scheduler_name: &str) -> String {
    let path = MetadataMap::Annotations.path();
    let annotated = |key: &str| format!("'{key}' in object.{path}");
    let sharing = format!(
        "(has(object.spec.schedulerName) && object.spec.schedulerName == '{scheduler_name}' && has(object.{path}) && ({} || {}))",
        annotated(keys::GPU_FRACTION),
        annotated(keys::GPU_MEMORY)
    );
    let without = |list: &str| {
        let slot = keys::RESOURCE_GPU_SHARE;
        format!("(!has(c.resources.{list}) || !('{slot}' in c.resources.{list}))")
    };
    let none = |containers: &str| {
        format!(
            "(!has(object.spec.{containers}) || object.spec.{containers}.all(c, !has(c.resources) || ({} && {})))",
            without("requests"),
            without("limits")
        )
    };
    format!(
        "request.operation != 'CREATE' || {sharing} || ({} && {})",
        none("containers"),
        none("initContainers")
    )
}

fn node_chosen(scheduler_name: &str) -> String {
    format!(
        "request.operation != 'CREATE' || !has(object.spec.schedulerName) || object.spec.schedulerName != '{scheduler_name}' || \
         !has(object.spec.nodeName) || object.spec.nodeName == '' || {}",
        of_kubelet()
    )
}

/// Kubelets and controllers may write the status of any pod; whoever may do so in a namespace only is a tenant. The scheduler counts all
/// pods that have a node, whoever placed them: one that seems to have ended seems to have left its GPU.
fn phase(scheduler_name: &str) -> String {
    let phase =
        |object: &str| format!("(has({object}.status) && has({object}.status.phase) ? {object}.status.phase : '')");
    let counts = format!(
        "((has(object.spec.schedulerName) && object.spec.schedulerName == '{scheduler_name}') || (has(object.spec.nodeName) && \
         object.spec.nodeName != ''))"
    );
    format!(
        "request.operation != 'UPDATE' || !{counts} || {} == {} || {} || {}",
        phase("object"),
        phase("oldObject"),
        of_kubelet(),
        may_everywhere("status", "patch")
    )
}

/// Which pods a kubelet may write is for the API server to say.
fn of_kubelet() -> String {
    format!("(has(request.userInfo.groups) && '{KUBELET_GROUP}' in request.userInfo.groups)")
}

/// Whether the user may do this to pods of all namespaces.
fn may_everywhere(subresource: &str, verb: &str) -> String {
    format!("authorizer.group('').resource('pods').subresource('{subresource}').check('{verb}').allowed()")
}
