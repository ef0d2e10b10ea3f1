//! Defaulting of built-in kinds other than pods and workloads.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::server::kinds::Kind;
use crate::server::object::{field_mut, items_mut, map_mut, meta_text, metadata_mut};
use crate::server::store::Store;

pub(super) fn default_object(kind: &Kind, object: &mut Value) {
    match (kind.group.as_str(), kind.plural.as_str()) {
        ("", "namespaces") => default_namespace(object),
        ("", "secrets") => default_secret(object),
        ("", "services") => {
            let spec = field_mut(object, "spec");
            spec.entry("type").or_insert(json!("ClusterIP"));
            spec.entry("sessionAffinity").or_insert(json!("None"));
            if spec.get("type").is_some_and(|of_type| of_type != "ExternalName") {
                spec.entry("internalTrafficPolicy").or_insert(json!("Cluster"));
                spec.entry("ipFamilies").or_insert(json!(["IPv4"]));
                spec.entry("ipFamilyPolicy").or_insert(json!("SingleStack"));
            }
            if spec.get("clusterIP").is_some_and(|address| address == "None") {
                spec.entry("clusterIPs").or_insert(json!(["None"]));
            }
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
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => {
            for subject in items_mut(object, "subjects") {
                if subject["kind"] != "ServiceAccount" {
                    map_mut(subject)
                        .entry("apiGroup")
                        .or_insert(json!("rbac.authorization.k8s.io"));
                }
            }
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

/// Sets the cluster IP of a Service, unless it is headless.
pub(super) fn assign_cluster_ip(store: &mut Store, service: &mut Value) {
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
    for webhook in items_mut(object, "webhooks") {
        let fields = map_mut(webhook);
        fields.entry("failurePolicy").or_insert(json!("Fail"));
        fields.entry("matchPolicy").or_insert(json!("Equivalent"));
        fields.entry("timeoutSeconds").or_insert(json!(10));
        fields.entry("namespaceSelector").or_insert(json!({}));
        fields.entry("objectSelector").or_insert(json!({}));
        if kind.plural.starts_with("mutating") {
            fields.entry("reinvocationPolicy").or_insert(json!("Never"));
        }
        for rule in items_mut(webhook, "rules") {
            map_mut(rule).entry("scope").or_insert(json!("*"));
        }
    }
}
