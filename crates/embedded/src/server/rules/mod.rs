//! The rules of particular kinds: decoding, defaulting, built-in admission and validation.
//!
//! `pods`, `pod_spec` and `containers` are about pods, `workloads` about Deployments and the like, `custom` and `schema` about custom
//! resources, `events` about events. `defaults` and `validation` have the other built-in kinds; `metadata` and `names` apply to all kinds;
//! `references` admits objects that name other objects.

mod containers;
pub(crate) mod custom;
mod defaults;
pub(crate) mod events;
mod metadata;
pub(crate) mod names;
mod pod_spec;
mod pods;
mod references;
mod schema;
mod validation;
mod workloads;

use serde_json::Value;

use super::kinds::Kind;
use super::object::{Object, map_mut, meta_text};
use super::status_error::StatusError;
use super::store::Store;
use super::types::{self, Decoded};

/// Decodes a body as an object of its kind: drops unknown fields, nulls and values that Go omits. The error says what does not fit.
pub(crate) fn decode(kind: &Kind, object: Value) -> Result<Decoded, String> {
    let Some(custom) = &kind.custom else {
        let version = kind.stored_api_version();
        let Some(of_type) = types::types().of_kind(&version, &kind.kind) else {
            return Ok(Decoded::whole(object));
        };
        return types::decode(of_type, object, true);
    };
    let mut decoded = Decoded::whole(object);
    let metadata = decoded.value.get_mut("metadata").map(Value::take).unwrap_or_default();
    let metadata = types::decode_at("metadata", types::OBJECT_META, metadata)?;
    decoded.unknown = metadata.unknown;
    decoded.value["metadata"] = metadata.value;
    if let Some(schema) = &custom.schema {
        schema::prune(&mut decoded.value, schema, &mut decoded.unknown);
    }
    Ok(decoded)
}

/// Sets the defaults of missing fields. Idempotent.
pub(crate) fn default_object(kind: &Kind, object: &mut Value) {
    if let Some(custom) = &kind.custom {
        if let Some(schema) = &custom.schema {
            schema::prune(object, schema, &mut Vec::new());
            schema::fill_defaults(object, schema);
        }
        return;
    }
    match (kind.group.as_str(), kind.plural.as_str()) {
        ("", "pods") => pods::default_pod(object),
        ("apps" | "batch", _) => workloads::default_object(kind, object),
        _ => defaults::default_object(kind, object),
    }
    if let Some(of_type) = types::types().of_kind(&kind.stored_api_version(), &kind.kind) {
        types::complete(of_type, object);
    }
}

/// Built-in admission of a new object.
pub(crate) fn admit_create(store: &Store, kind: &Kind, object: &mut Value) -> Result<(), StatusError> {
    if kind.is("", "pods") {
        pods::set_priority(store, kind, object)?;
        pods::add_default_tolerations(&mut object["spec"]);
        pods::set_condition_times(object, &store.clock.now_text());
    }
    references::admit(store, kind, object)
}

/// Built-in admission of a new object after the webhooks.
pub(crate) fn validate_create(store: &Store, kind: &Kind, object: &Value) -> Result<(), StatusError> {
    references::check(store, kind, object)
}

/// Sets the fields of a new object that depend on its uid or on the store.
pub(crate) fn complete_new(store: &mut Store, kind: &Kind, object: &mut Value) {
    match (kind.group.as_str(), kind.plural.as_str()) {
        ("batch", "jobs") => workloads::set_job_selector(object),
        ("", "services") => defaults::assign_cluster_ip(store, object),
        ("apiextensions.k8s.io", "customresourcedefinitions") => custom::establish(object, &store.clock.now_text()),
        _ => {}
    }
}

/// Validates an object, or a write to one of its subresources.
pub(crate) fn check(kind: &Kind, old: Option<&Object>, new: &Value, subresource: &str) -> Result<(), StatusError> {
    let mut causes = metadata::check(&new["metadata"]);
    if let Some(custom) = &kind.custom {
        if let Some(schema) = &custom.schema {
            causes.extend(schema::check(new, old.map(|o| &**o), schema));
        }
    } else if kind.is("", "pods") {
        causes.extend(match (old, subresource) {
            (Some(old), "resize") => pods::check_resize(old, new),
            _ => pods::check(old.map(|o| &**o), new),
        });
    } else {
        causes.extend(validation::check(kind, old.map(|o| &**o), new));
    }
    if causes.is_empty() {
        return Ok(());
    }
    Err(StatusError::invalid(
        &kind.kind,
        &kind.group,
        meta_text(new, "name"),
        &causes,
    ))
}

/// Whether a write changed the part that `metadata.generation` counts.
pub(crate) fn spec_differs(kind: &Kind, old: &Value, new: &Value) -> bool {
    if kind.custom.is_none() {
        return old["spec"] != new["spec"];
    }
    let without = |value: &Value| {
        let mut value = value.clone();
        map_mut(&mut value).retain(|field, _| field != "metadata" && !(kind.status && field == "status"));
        value
    };
    without(old) != without(new)
}
