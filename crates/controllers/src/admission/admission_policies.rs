//! The ValidatingAdmissionPolicies that protect the scheduler's keys and objects. The API server evaluates them itself, for every pod
//! of the cluster, while the webhooks are up or down. They are rendered from the tables of `protected_keys`.
//!
//! The expressions use plain CEL (`has`, `all`, `in`) and check every field before they read it: an expression that fails denies the
//! request, and these policies cover all pods of a cluster.

use kai_api::Enforcement;
use kai_api::keys::{self, KeySet};
use serde_json::{Value, json};

use super::args::Settings;
use super::gpu_share;
use super::protected_keys::{self, ProtectedKeys};
use super::service_account_policies::{self, unchanged as unchanged_field};
use super::trusted_users::{GARBAGE_COLLECTORS, KUBELET_GROUP};
use super::unstructured::MetadataMap;

/// API version of policies and bindings.
pub(crate) const API_VERSION: &str = "admissionregistration.k8s.io/v1";
/// Names of the policies for users other than our service accounts.
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
        policy(
            pods,
            &[pod_rule()],
            &[not_trusted(settings)],
            &pod_validations(settings),
        ),
        policy(
            bindings,
            &[binding_rule()],
            &[not_trusted(settings)],
            &binding_validations(),
        ),
        policy(
            pod_groups,
            &[pod_group_rule()],
            &[not_trusted(settings)],
            &pod_group_validations(),
        ),
        policy(
            bind_requests,
            &[bind_request_rule()],
            &[not_trusted(settings), not_garbage_collected()],
            &[deny_unless(
                "false",
                "BindRequest: only the scheduler writes bind requests; leave them alone",
            )],
        ),
        policy(
            config_maps,
            &[config_map_rule()],
            &[
                not_trusted(settings),
                not_garbage_collected(),
                is_shared_gpu_config_map(),
            ],
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

/// Whether the user is trusted, as a CEL expression.
pub(crate) fn is_trusted(settings: &Settings) -> String {
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

/// A write to the status can change labels and annotations, too.
pub(super) fn pod_rule() -> Value {
    namespaced("", &["pods", "pods/status"], &["CREATE", "UPDATE"])
}

/// The API server copies the labels and annotations of a Binding to the pod.
pub(super) fn binding_rule() -> Value {
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

fn not_trusted(settings: &Settings) -> Value {
    condition("not-ours", format!("!({})", is_trusted(settings)))
}

/// The control plane may delete objects whose owner or namespace is gone.
fn not_garbage_collected() -> Value {
    let names: Vec<String> = GARBAGE_COLLECTORS.iter().map(|name| format!("'{name}'")).collect();
    let expression = format!(
        "!(request.operation == 'DELETE' && request.userInfo.username in [{}])",
        names.join(", ")
    );
    condition("not-collected", expression)
}

fn is_shared_gpu_config_map() -> Value {
    let has = |object: &str| {
        format!(
            "({object} != null && has({object}.metadata.labels) && '{}' in {object}.metadata.labels)",
            keys::SHARED_GPU_MARKER
        )
    };
    condition("shared-gpu", format!("{} || {}", has("object"), has("oldObject")))
}

pub(super) fn deny_unless(condition: &str, message: &str) -> Value {
    json!({"expression": condition, "message": message, "reason": "Forbidden"})
}

fn pod_validations(settings: &Settings) -> Vec<Value> {
    let mut validations = Vec::new();
    validations.extend(protected_key_validations("Pod", &protected_keys::POD_LABELS, None));
    let exception = of_fake_reservation(settings);
    validations.extend(protected_key_validations(
        "Pod",
        &protected_keys::POD_ANNOTATIONS,
        Some(&exception),
    ));
    let message = format!("Pod: metadata.labels.{}: {}", keys::APP, protected_keys::OWN_APP_USED);
    validations.push(deny_unless(&no_own_app(settings), &message));
    let message = format!("Pod: spec.nodeName: {}", protected_keys::NODE_NAME_SET);
    validations.push(deny_unless(&no_node_name(&settings.scheduler_name), &message));
    let message = format!("Pod: {}: {}", keys::RESOURCE_GPU_SHARE, gpu_share::SHARE_DEVICE_BY_HAND);
    validations.push(deny_unless(
        &no_share_device_by_hand(&settings.scheduler_name),
        &message,
    ));
    let message = format!(
        "Pod: metadata.annotations.{}: {}",
        keys::GPU_ENFORCEMENT,
        gpu_share::ENDING_CONTAINER_NOT_LIMITED
    );
    validations.push(deny_unless(
        &no_required_limit_of_ending_container(&settings.scheduler_name),
        &message,
    ));
    let message = format!("Pod: status.phase: {}", protected_keys::PHASE_WRITTEN);
    validations.push(deny_unless(&phase_unchanged(&settings.scheduler_name), &message));
    let fixed = &protected_keys::FIXED_ANNOTATIONS;
    let message = format!(
        "Pod: {}: {}: {}",
        fixed.map.path(),
        key_list(fixed),
        protected_keys::GPU_REQUEST_CHANGED
    );
    validations.push(deny_unless(
        &format!("request.operation != 'UPDATE' || {}", unchanged_keys(fixed)),
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
            key_list(table),
            protected_keys::KEY_ADDED
        );
        deny_unless(
            &format!("!has({map}) || {map}.all(key, !({}))", is_protected(table)),
            &message,
        )
    };
    let by_tenant = deny_unless(
        &allowed_in_all_namespaces("binding", "create"),
        &format!("Binding: {}", protected_keys::BINDING_FORBIDDEN),
    );
    tables.into_iter().map(validation).chain([by_tenant]).collect()
}

fn pod_group_validations() -> Vec<Value> {
    let mut validations = protected_key_validations("PodGroup", &protected_keys::POD_GROUP_ANNOTATIONS, None);
    let status = "PodGroup: status: only the scheduler writes it; leave it alone";
    validations.push(deny_unless(
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
    vec![deny_unless(&parts.join(" && "), &message)]
}

/// Whether the key is the GPU of a reservation pod that fake-gpu-operator annotates, as `protected_keys::is_fake_reservation` has it.
fn of_fake_reservation(settings: &Settings) -> String {
    let (key, label) = (keys::RESERVED_GPU, keys::NODE_FAKE_GPU);
    let namespace = &settings.reservation_pods.namespace;
    format!(
        "key == '{key}' && request.operation == 'UPDATE' && request.namespace == '{namespace}' && \
         has(oldObject.spec.nodeSelector) && '{label}' in oldObject.spec.nodeSelector"
    )
}

/// No protected key is added, changed or removed. Keys for which `exception` holds may be written.
fn protected_key_validations(kind: &str, table: &ProtectedKeys, exception: Option<&str>) -> Vec<Value> {
    let path = table.map.path();
    let is_protected = is_protected(table);
    let (new, old) = (format!("object.{path}"), format!("oldObject.{path}"));
    let exception = exception.map(|holds| format!(" || ({holds})")).unwrap_or_default();
    let written = format!(
        "!has({new}) || {new}.all(key, !({is_protected}) || (request.operation == 'UPDATE' && has({old}) && key in {old} && \
         {old}[key] == {new}[key]){exception})"
    );
    let removed = format!(
        "request.operation != 'UPDATE' || !has({old}) || {old}.all(key, !({is_protected}) || (has({new}) && key in {new}))"
    );
    vec![
        deny_unless(
            &written,
            &format!("{kind}: {path}: {}: {}", key_list(table), protected_keys::KEY_ADDED),
        ),
        deny_unless(
            &removed,
            &format!("{kind}: {path}: {}: {}", key_list(table), protected_keys::KEY_CHANGED),
        ),
    ]
}

fn is_protected(table: &ProtectedKeys) -> String {
    let exact = table.keys.exact.iter().map(|key| format!("key == '{key}'"));
    exact.chain(patterns(&table.keys)).collect::<Vec<_>>().join(" || ")
}

/// The keys of the set that are no single keys, as expressions.
fn patterns(keys: &KeySet) -> impl Iterator<Item = String> {
    let prefixes = keys.prefixes.iter().map(|prefix| format!("key.startsWith('{prefix}')"));
    let containers = keys.containers.iter().map(|of| {
        // Prefix and suffix must not overlap.
        let (prefix, suffix) = (of.prefix, of.suffix);
        let bytes_min = prefix.len() + suffix.len();
        format!("(key.startsWith('{prefix}') && key.endsWith('{suffix}') && size(key) >= {bytes_min})")
    });
    prefixes.chain(containers)
}

pub(super) fn key_list(table: &ProtectedKeys) -> String {
    let exact = table.keys.exact.iter().map(|key| (*key).to_owned());
    let prefixes = table.keys.prefixes.iter().map(|prefix| format!("{prefix}*"));
    let containers = table.keys.containers.iter().map(ToString::to_string);
    exact.chain(prefixes).chain(containers).collect::<Vec<_>>().join(", ")
}

/// An object is created without any key of the table; later none is added, changed or removed.
pub(super) fn keys_unchanged_or_absent(table: &ProtectedKeys) -> String {
    let map = format!("object.{}", table.map.path());
    let absent = format!("(!has({map}) || {map}.all(key, !({})))", is_protected(table));
    format!("request.operation == 'CREATE' ? {absent} : {}", unchanged_keys(table))
}

/// No key of the table is added, changed or removed.
fn unchanged_keys(table: &ProtectedKeys) -> String {
    let path = table.map.path();
    let keys: Vec<String> = table.keys.exact.iter().map(|key| format!("'{key}'")).collect();
    let there = |object: &str| format!("(has({object}.{path}) && key in {object}.{path})");
    let (new, old) = (there("object"), there("oldObject"));
    let exact = format!(
        "[{}].all(key, {new} == {old} && (!{new} || object.{path}[key] == oldObject.{path}[key]))",
        keys.join(", ")
    );
    let patterns: Vec<String> = patterns(&table.keys).collect();
    if patterns.is_empty() {
        return exact;
    }
    let is_pattern = patterns.join(" || ");
    let kept = |one: &str, other: &str| {
        format!(
            "(!has({one}.{path}) || {one}.{path}.all(key, !({is_pattern}) || ({} && {one}.{path}[key] == {other}.{path}[key])))",
            there(other)
        )
    };
    let (added, removed) = (kept("object", "oldObject"), kept("oldObject", "object"));
    format!("({exact} && {added} && {removed})")
}

fn no_own_app(settings: &Settings) -> String {
    let own_apps: Vec<String> = protected_keys::own_apps(&settings.reservation_pods)
        .iter()
        .map(|app| format!("'{app}'"))
        .collect();
    let app = keys::APP;
    let path = MetadataMap::Labels.path();
    let there = |object: &str| {
        format!(
            "(has({object}.{path}) && '{app}' in {object}.{path} && {object}.{path}['{app}'] in [{}])",
            own_apps.join(", ")
        )
    };
    let (new, old) = (there("object"), there("oldObject"));
    format!(
        "request.operation == 'UPDATE' ? ({new} == {old} && (!{new} || object.{path}['{app}'] == oldObject.{path}['{app}'])) : !{new}"
    )
}

/// Only pods of this scheduler that request a part of a GPU may have share devices.
fn no_share_device_by_hand(scheduler_name: &str) -> String {
    let path = MetadataMap::Annotations.path();
    let share = keys::GPU_SHARE_ANNOTATIONS;
    let exact = share.exact.iter().map(|key| format!("'{key}' in object.{path}"));
    let of_container = patterns(&share).collect::<Vec<_>>().join(" || ");
    let of_container = format!("!object.{path}.all(key, !({of_container}))");
    let sharing = format!(
        "(has(object.spec.schedulerName) && object.spec.schedulerName == '{scheduler_name}' && has(object.{path}) && ({}))",
        exact.chain([of_container]).collect::<Vec<_>>().join(" || ")
    );
    let without = |list: &str| {
        let share_device = keys::RESOURCE_GPU_SHARE;
        format!("(!has(c.resources.{list}) || !('{share_device}' in c.resources.{list}))")
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

/// A pod that requires a limit does not give its GPU share to an init container that ends. An annotation that names such a container gives
/// it the share, or is refused by the webhook.
fn no_required_limit_of_ending_container(scheduler_name: &str) -> String {
    let annotations = format!("object.{}", MetadataMap::Annotations.path());
    let (enforcement, named) = (keys::GPU_ENFORCEMENT, keys::GPU_FRACTION_CONTAINER);
    let required = format!(
        "has({annotations}) && '{enforcement}' in {annotations} && {annotations}['{enforcement}'] == '{}'",
        Enforcement::Required.name()
    );
    let has_share = [keys::CONTAINER_MEMORY_REQUEST, keys::CONTAINER_MEMORY_LIMIT]
        .map(|key| format!("('{}' + c.name + '{}') in {annotations}", key.prefix, key.suffix));
    format!(
        "request.operation != 'CREATE' || !has(object.spec.schedulerName) || object.spec.schedulerName != '{scheduler_name}' || \
         !({required}) || !has(object.spec.initContainers) || object.spec.initContainers.all(c, \
         (has(c.restartPolicy) && c.restartPolicy == 'Always') || !(has(c.name) && (('{named}' in {annotations} && {annotations}['{named}'] == c.name) || {})))",
        has_share.join(" || ")
    )
}

fn no_node_name(scheduler_name: &str) -> String {
    format!(
        "request.operation != 'CREATE' || !has(object.spec.schedulerName) || object.spec.schedulerName != '{scheduler_name}' || \
         !has(object.spec.nodeName) || object.spec.nodeName == '' || {}",
        is_kubelet()
    )
}

/// Kubelets and controllers may patch the status of pods in all namespaces; a user who may do so in one namespace only is a tenant. The
/// scheduler accounts for all pods that have a node, of any scheduler: a pod that seems to have ended seems to have freed its GPU.
fn phase_unchanged(scheduler_name: &str) -> String {
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
        is_kubelet(),
        allowed_in_all_namespaces("status", "patch")
    )
}

/// The API server's NodeRestriction decides which pods a kubelet may write.
fn is_kubelet() -> String {
    format!("(has(request.userInfo.groups) && '{KUBELET_GROUP}' in request.userInfo.groups)")
}

/// Whether RBAC allows the verb on pods of all namespaces.
fn allowed_in_all_namespaces(subresource: &str, verb: &str) -> String {
    format!("authorizer.group('').resource('pods').subresource('{subresource}').check('{verb}').allowed()")
}
