//! Built-in admission of objects that name others: the RuntimeClass of a pod, the StorageClass of a claim, and the default
//! PriorityClass. Reads the store and never writes to it.

use serde_json::{Map, Value, json};

use crate::server::kinds::Kind;
use crate::server::object::{Key, Object, field_mut, map_mut, meta_text};
use crate::server::selector::Selector;
use crate::server::status_error::StatusError;
use crate::server::store::Store;

/// The annotation of the default StorageClass.
const IS_DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// Completes a new object from the objects it names, or rejects it.
pub(super) fn admit(store: &Store, kind: &Kind, object: &mut Value) -> Result<(), StatusError> {
    match (kind.group.as_str(), kind.plural.as_str()) {
        ("", "pods") => apply_runtime_class(store, kind, object),
        ("", "persistentvolumeclaims") => {
            default_storage_class(store, object);
            Ok(())
        }
        ("scheduling.k8s.io", "priorityclasses") => check_default(store, kind, object),
        _ => Ok(()),
    }
}

/// Checks a new object again after the webhooks.
pub(super) fn check(store: &Store, kind: &Kind, object: &Value) -> Result<(), StatusError> {
    if kind.is("", "pods") {
        runtime_class(store, kind, object)?;
    }
    Ok(())
}

/// The RuntimeClass of a pod.
fn runtime_class(store: &Store, kind: &Kind, pod: &Value) -> Result<Option<Object>, StatusError> {
    let Some(name) = pod["spec"]["runtimeClassName"].as_str().filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    let classes = store
        .kinds
        .get("node.k8s.io", "v1", "runtimeclasses")
        .expect("a built-in kind");
    match store.get(&classes, &Key::new("", name)) {
        Ok(class) => Ok(Some(class)),
        Err(_) => Err(refuse(
            kind,
            pod,
            &format!("pod rejected: RuntimeClass {name:?} not found"),
        )),
    }
}

fn refuse(kind: &Kind, object: &Value, why: &str) -> StatusError {
    StatusError::forbidden(kind.object_ref(meta_text(object, "name")), why)
}

/// Adds the overhead, node selector and tolerations of the RuntimeClass to the pod.
fn apply_runtime_class(store: &Store, kind: &Kind, pod: &mut Value) -> Result<(), StatusError> {
    let class = runtime_class(store, kind, pod)?;
    let class: &Value = class.as_deref().unwrap_or(&Value::Null);
    let overhead = &class["overhead"]["podFixed"];
    let asked = &pod["spec"]["overhead"];
    let has_overhead = |value: &Value| value.as_object().is_some_and(|fields| !fields.is_empty());
    if has_overhead(asked) && asked != overhead {
        let why = match has_overhead(overhead) {
            true => "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
            false => "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
        };
        return Err(refuse(kind, pod, why));
    }
    if has_overhead(overhead) {
        pod["spec"]["overhead"] = overhead.clone();
    }
    let scheduling = &class["scheduling"];
    if let Some(selector) = scheduling["nodeSelector"].as_object() {
        let own = map_mut(field_mut(pod, "spec").entry("nodeSelector").or_insert(json!({})));
        if let Some(key) = conflict(own, selector) {
            let why = format!(
                "pod rejected: conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; pod.spec.nodeSelector[{key}] = {}",
                selector[&key], own[&key]
            );
            return Err(refuse(kind, pod, &why));
        }
        own.extend(selector.clone());
    }
    if let Some(more) = scheduling["tolerations"].as_array() {
        let list = field_mut(pod, "spec").entry("tolerations").or_insert(json!([]));
        if let Some(list) = list.as_array_mut() {
            let new: Vec<Value> = more
                .iter()
                .filter(|toleration| !list.contains(toleration))
                .cloned()
                .collect();
            list.extend(new);
        }
    }
    Ok(())
}

/// A key with different values in both maps.
fn conflict(own: &Map<String, Value>, other: &Map<String, Value>) -> Option<String> {
    let mut both = other
        .iter()
        .filter(|(key, value)| own.get(*key).is_some_and(|own| own != *value));
    both.next().map(|(key, _)| key.clone())
}

/// Sets the default StorageClass of a claim without a class; the newest one, if there are several.
fn default_storage_class(store: &Store, claim: &mut Value) {
    let spec = field_mut(claim, "spec");
    if spec.get("storageClassName").is_some_and(|name| !name.is_null()) {
        return;
    }
    let kind = store
        .kinds
        .get("storage.k8s.io", "v1", "storageclasses")
        .expect("a built-in kind");
    let classes = store.list(&kind, "", &Selector::everything()).objects;
    let defaults = classes
        .iter()
        .filter(|class| class["metadata"]["annotations"][IS_DEFAULT_CLASS] == "true");
    let newest = defaults.max_by_key(|class| {
        (
            meta_text(class, "creationTimestamp").to_owned(),
            std::cmp::Reverse(class.name().to_owned()),
        )
    });
    if let Some(class) = newest {
        spec.insert("storageClassName".to_owned(), json!(class.name()));
    }
}

/// Rejects a second default PriorityClass.
fn check_default(store: &Store, kind: &Kind, class: &Value) -> Result<(), StatusError> {
    match store.priority_class("") {
        Some(default) if class["globalDefault"] == true && default.name() != meta_text(class, "name") => {
            let why = format!(
                "PriorityClass {} is already marked as default. Only one default can exist",
                default.name()
            );
            Err(refuse(kind, class, &why))
        }
        _ => Ok(()),
    }
}
