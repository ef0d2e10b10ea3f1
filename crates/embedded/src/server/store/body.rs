//! Checks of the bodies of writes: kind, version, namespace, name, uid and size. Pure.

use serde_json::{Value, json};

use super::write::Part;
use crate::server::kinds::Kind;
use crate::server::object::{Key, Object, json_bytes, map_mut, meta_text, metadata_mut};
use crate::server::patch::Patch;
use crate::server::rules;
use crate::server::status_error::{Cause, StatusError};
use crate::server::types::types;

/// The largest object: etcd's default limit of a request.
const OBJECT_BYTES_MAX: usize = 3 * 512 * 1024;

/// The body with the stored version, the kind and the namespace filled in; an error if the body states others.
pub(super) fn normalize(kind: &Kind, namespace: &str, body: Value) -> Result<Value, StatusError> {
    let mut new = body;
    if !new.is_object() {
        return Err(StatusError::bad_request("the body of the request is not an object"));
    }
    let expect = kind.api_version();
    let stored = kind.stored_api_version();
    let says = |field: &str| new[field].as_str().unwrap_or("").to_owned();
    let (version, name) = (says("apiVersion"), says("kind"));
    let known = version.is_empty() || version == expect || version == stored;
    if !known || (!name.is_empty() && name != kind.kind) {
        return Err(StatusError::bad_request(wrong_kind_message(kind, &version, &name)));
    }
    new["apiVersion"] = json!(stored);
    new["kind"] = json!(kind.kind);
    if kind.plural == "events" {
        rules::events::to_core(&mut new);
    }
    let metadata = metadata_mut(&mut new);
    let own = metadata.get("namespace").and_then(Value::as_str).unwrap_or("");
    if kind.namespaced() {
        if !own.is_empty() && own != namespace {
            return Err(StatusError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        metadata.insert("namespace".to_owned(), json!(namespace));
    } else {
        metadata.remove("namespace");
    }
    Ok(new)
}

pub(super) fn applied_config(kind: &Kind, key: &Key, config: &Value, part: Part) -> Result<Value, StatusError> {
    let mut config = normalize(kind, &key.namespace, config.clone())?;
    let name = meta_text(&config, "name");
    if !name.is_empty() && name != key.name {
        return Err(StatusError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            key.name
        )));
    }
    metadata_mut(&mut config).insert("name".to_owned(), json!(key.name));
    match part {
        Part::Main if kind.status => {
            map_mut(&mut config).remove("status");
        }
        Part::Main => {}
        Part::Status => {
            map_mut(&mut config)
                .retain(|field, _| matches!(field.as_str(), "apiVersion" | "kind" | "metadata" | "status"));
            metadata_mut(&mut config)
                .retain(|field, _| matches!(field.as_str(), "name" | "namespace" | "resourceVersion" | "uid"));
        }
    }
    Ok(config)
}

pub(super) fn check_body(kind: &Kind, old: &Object, body: &Value) -> Result<(), StatusError> {
    let object = kind.object_ref(old.name());
    let name = meta_text(body, "name");
    if !name.is_empty() && name != old.name() {
        return Err(StatusError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            old.name()
        )));
    }
    let uid = meta_text(body, "uid");
    if !uid.is_empty() && uid != old.uid() {
        let why = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            old.uid()
        );
        return Err(StatusError::conflict(object, why));
    }
    let revision = meta_text(body, "resourceVersion");
    if revision.is_empty() && kind.custom.is_some() {
        let cause = Cause::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
        return Err(StatusError::invalid(&kind.plural, &kind.group, old.name(), &[cause]));
    }
    if !revision.is_empty() && revision != meta_text(old, "resourceVersion") {
        return Err(StatusError::outdated(object));
    }
    Ok(())
}

/// Kubernetes' message about a body whose version or kind differs from the path's.
fn wrong_kind_message(kind: &Kind, version: &str, name: &str) -> String {
    let expect = kind.api_version();
    let (group, short_version) = version.split_once('/').unwrap_or(("", version));
    let package = |group: &str| {
        if group.is_empty() {
            "core".to_owned()
        } else {
            group.split('.').next().unwrap_or("").to_owned()
        }
    };
    if version != expect && group == kind.group {
        return format!("the API version in the data ({version}) does not match the expected API version ({expect})");
    }
    let why = if types().of_kind(version, name).is_some() {
        let (own, kind) = (package(&kind.group), &kind.kind);
        format!("converting ({short_version}.{name}) to ({own}.{kind}): unknown conversion")
    } else {
        format!("no kind {name:?} is registered for version {version:?} in scheme \"pkg/runtime/scheme.go:111\"")
    };
    format!(
        "{name} in version {short_version:?} cannot be handled as a {}: {why}",
        kind.kind
    )
}

/// Rejects an applied configuration with unknown fields or wrong types: apply is always strict.
pub(super) fn check_typed(kind: &Kind, config: &Value) -> Result<(), StatusError> {
    let text = |field: &str| config[field].as_str().unwrap_or("");
    if text("apiVersion").is_empty() || text("kind").is_empty() {
        let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
        let message = format!("invalid object type: {group}/{version}, Kind={}", text("kind"));
        return Err(StatusError::bad_request(message));
    }
    let problem = match rules::decode(kind, config.clone()) {
        Ok(decoded) => decoded
            .unknown
            .first()
            .map(|path| format!(".{path}: field not declared in schema")),
        Err(problem) => Some(problem),
    };
    let Some(problem) = problem else { return Ok(()) };
    let message = format!(
        "failed to create typed patch object ({}/{}; {}/{}, Kind={}): {problem}",
        meta_text(config, "namespace"),
        meta_text(config, "name"),
        kind.group,
        kind.version,
        kind.kind
    );
    Err(StatusError::without_reason(500, message))
}

/// Rejects a patch that changes the uid.
pub(super) fn check_uid(kind: &Kind, old: &Object, new: &Value) -> Result<(), StatusError> {
    let uid = meta_text(new, "uid");
    if uid.is_empty() || uid == old.uid() {
        return Ok(());
    }
    let cause = Cause::invalid("metadata.uid", &json!(uid), "field is immutable");
    Err(StatusError::invalid(&kind.kind, &kind.group, old.name(), &[cause]))
}

/// The error of a body that is no object of its kind.
pub(crate) fn decode_error(version: &str, kind: &str, problem: &str) -> StatusError {
    StatusError::bad_request(format!(
        "{kind} in version {version:?} cannot be handled as a {kind}: {problem}"
    ))
}

/// The error of a patch whose result is no object of its kind.
pub(crate) fn patch_error(patch: &Patch, problem: &str) -> StatusError {
    let shown = match patch {
        Patch::Json(value) | Patch::Merge(value) | Patch::Strategic(value) => value,
        Patch::Apply { config, .. } => config,
    };
    let cause = Cause::invalid("patch", &json!(shown.to_string()), problem);
    StatusError::invalid("", "", "", &[cause])
}

/// Rejects an object that is too large for etcd.
pub(super) fn check_size(new: &Value) -> Result<(), StatusError> {
    if json_bytes(new) > OBJECT_BYTES_MAX {
        return Err(StatusError::without_reason(500, "etcdserver: request is too large"));
    }
    Ok(())
}
