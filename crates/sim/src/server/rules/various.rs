//! Defaults and checks of the small built-in kinds.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::server::kinds::Kind;
use crate::server::object::{field_mut, map_mut, meta_text, metadata_mut};
use crate::server::refusal::Cause;
use crate::server::store::Store;

pub(super) fn default_object(kind: &Kind, object: &mut Value) {
    match (kind.group.as_str(), kind.plural.as_str()) {
        ("", "namespaces") => default_namespace(object),
        ("", "secrets") => default_secret(object),
        ("", "services") => {
            let spec = field_mut(object, "spec");
            spec.entry("type").or_insert(json!("ClusterIP"));
            spec.entry("sessionAffinity").or_insert(json!("None"));
            for port in spec
                .get_mut("ports")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                let number = port["port"].clone();
                map_mut(port).entry("protocol").or_insert(json!("TCP"));
                map_mut(port).entry("targetPort").or_insert(number);
            }
        }
        ("", "persistentvolumeclaims") => {
            field_mut(object, "spec")
                .entry("volumeMode")
                .or_insert(json!("Filesystem"));
            field_mut(object, "status").entry("phase").or_insert(json!("Pending"));
        }
        ("", "persistentvolumes") => {
            let spec = field_mut(object, "spec");
            spec.entry("persistentVolumeReclaimPolicy").or_insert(json!("Retain"));
            spec.entry("volumeMode").or_insert(json!("Filesystem"));
            field_mut(object, "status").entry("phase").or_insert(json!("Pending"));
        }
        ("storage.k8s.io", "storageclasses") => {
            let fields = map_mut(object);
            fields.entry("reclaimPolicy").or_insert(json!("Delete"));
            fields.entry("volumeBindingMode").or_insert(json!("Immediate"));
        }
        ("scheduling.k8s.io", "priorityclasses") => {
            map_mut(object)
                .entry("preemptionPolicy")
                .or_insert(json!("PreemptLowerPriority"));
        }
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations" | "validatingwebhookconfigurations") => {
            default_webhooks(kind, object);
        }
        ("admissionregistration.k8s.io", "validatingadmissionpolicies") => {
            field_mut(object, "spec")
                .entry("failurePolicy")
                .or_insert(json!("Fail"));
        }
        ("apiextensions.k8s.io", "customresourcedefinitions") => super::custom::default_definition(object),
        _ => {}
    }
}

/// What is wrong with an object of one of these kinds.
pub(super) fn check(kind: &Kind, old: Option<&Value>, new: &Value) -> Vec<Cause> {
    match (kind.group.as_str(), kind.plural.as_str()) {
        ("scheduling.k8s.io", "priorityclasses") => {
            let changed = old.is_some_and(|old| old["value"] != new["value"]);
            changed
                .then(|| Cause::forbidden("value", "may not be changed in an update."))
                .into_iter()
                .collect()
        }
        ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets") => check_selector(old, new),
        ("", "configmaps" | "secrets") => {
            let frozen = old.is_some_and(|old| {
                old["immutable"] == true && (old["data"] != new["data"] || new["immutable"] != true)
            });
            frozen
                .then(|| Cause::forbidden("data", "field is immutable when `immutable` is set"))
                .into_iter()
                .collect()
        }
        ("apiextensions.k8s.io", "customresourcedefinitions") => super::custom::check_definition(new),
        _ => Vec::new(),
    }
}

fn check_selector(old: Option<&Value>, new: &Value) -> Vec<Cause> {
    let selector = &new["spec"]["selector"];
    if selector.is_null() {
        return vec![Cause::required("spec.selector", "")];
    }
    if old.is_some_and(|old| old["spec"]["selector"] != *selector) {
        return vec![Cause::invalid("spec.selector", selector, "field is immutable")];
    }
    let labels = &new["spec"]["template"]["metadata"]["labels"];
    let selects = crate::server::selector::Selector::of_object(selector).is_some_and(|s| s.matches_labels(labels));
    if selects {
        return Vec::new();
    }
    vec![Cause::invalid(
        "spec.template.metadata.labels",
        labels,
        "`selector` does not match template `labels`",
    )]
}

/// A service gets an address, unless it wants none.
pub(super) fn give_address(store: &mut Store, service: &mut Value) {
    let spec = field_mut(service, "spec");
    let external = spec.get("type").is_some_and(|t| t == "ExternalName");
    if !external && !spec.contains_key("clusterIP") {
        let address = store.next_service_address();
        spec.insert("clusterIPs".to_owned(), json!([address]));
        spec.insert("clusterIP".to_owned(), json!(address));
    }
}

fn default_namespace(namespace: &mut Value) {
    field_mut(namespace, "status").entry("phase").or_insert(json!("Active"));
    field_mut(namespace, "spec")
        .entry("finalizers")
        .or_insert(json!(["kubernetes"]));
    let name = meta_text(namespace, "name").to_owned();
    if !name.is_empty() {
        let labels = map_mut(metadata_mut(namespace).entry("labels").or_insert(json!({})));
        labels.insert("kubernetes.io/metadata.name".to_owned(), json!(name));
    }
}

fn default_secret(secret: &mut Value) {
    let fields = map_mut(secret);
    fields.entry("type").or_insert(json!("Opaque"));
    if let Some(Value::Object(plain)) = fields.remove("stringData") {
        let data = map_mut(fields.entry("data").or_insert(json!({})));
        for (name, text) in plain {
            data.insert(name, json!(STANDARD.encode(text.as_str().unwrap_or(""))));
        }
    }
}

fn default_webhooks(kind: &Kind, object: &mut Value) {
    for webhook in object["webhooks"].as_array_mut().into_iter().flatten() {
        let fields = map_mut(webhook);
        fields.entry("failurePolicy").or_insert(json!("Fail"));
        fields.entry("matchPolicy").or_insert(json!("Equivalent"));
        fields.entry("timeoutSeconds").or_insert(json!(10));
        fields.entry("namespaceSelector").or_insert(json!({}));
        fields.entry("objectSelector").or_insert(json!({}));
        if kind.plural.starts_with("mutating") {
            fields.entry("reinvocationPolicy").or_insert(json!("Never"));
        }
        for rule in webhook["rules"].as_array_mut().into_iter().flatten() {
            map_mut(rule).entry("scope").or_insert(json!("*"));
        }
    }
}
