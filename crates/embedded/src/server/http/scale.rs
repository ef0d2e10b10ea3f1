//! The subresource `scale`: the replicas of an object in the form that all kinds share.

use http::Response;
use serde_json::{Value, json};

use super::resources::RequestContext;
use super::writes::write;
use super::{Body, value_response};
use crate::server::kinds::Kind;
use crate::server::object::{Key, Object, map_mut, meta_text};
use crate::server::patch::shape::Shape;
use crate::server::patch::{Patch, patched};
use crate::server::status_error::{Cause, StatusError};
use crate::server::store::{Part, PlannedUpdate, WriteOptions, decode_error, patch_error};
use crate::server::types;

/// The type of the subresource.
const SCALE: &str = "autoscaling.v1.Scale";

pub(super) async fn put(
    context: &RequestContext<'_>,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
) -> Result<Response<Body>, StatusError> {
    let body = types::decode(SCALE, context.request.value()?, true)
        .map_err(|problem| decode_error("v1", "Scale", &problem))?;
    let object = write(context, options, warnings, |context, _| {
        let old = context.server.lock().get(&context.kind, &context.key())?;
        rescaled(context, &old, &body.value)
    });
    Ok(value_response(&scale_of(&context.kind, &object.await?)))
}

pub(super) async fn patch(
    context: &RequestContext<'_>,
    patch: &Patch,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
) -> Result<Response<Body>, StatusError> {
    let object = write(context, options, warnings, |context, _| {
        let old = context.server.lock().get(&context.kind, &context.key())?;
        let scale = patched(&scale_of(&context.kind, &old), patch, Shape::Untyped)?;
        let scale = types::decode(SCALE, scale, true).map_err(|problem| patch_error(patch, &problem))?;
        rescaled(context, &old, &scale.value)
    });
    Ok(value_response(&scale_of(&context.kind, &object.await?)))
}

/// An object's `Scale`, for reads: an error for a custom object without replicas.
pub(super) fn read(kind: &Kind, object: &Object) -> Result<Value, StatusError> {
    let path = kind.scale.as_ref().map_or("", |scale| scale.spec_replicas.as_str());
    if kind.custom.is_some() && at_path(object, path).is_null() {
        let why = format!("the spec replicas field {path:?} does not exist");
        let mut error = StatusError::of_code(500, format!("Internal error occurred: {why}"));
        *error.details = json!({"causes": [{"message": why}]});
        return Err(error);
    }
    Ok(scale_of(kind, object))
}

/// An object's `Scale`.
fn scale_of(kind: &Kind, object: &Object) -> Value {
    let Some(scale) = &kind.scale else { return Value::Null };
    let at = |path: &str| at_path(object, path).as_i64().unwrap_or(0);
    let selector = match &scale.selector {
        Some(path) => at_path(object, path).as_str().unwrap_or("").to_owned(),
        None => selector_text(&object["spec"]["selector"]),
    };
    let metadata = &object["metadata"];
    let mut made = json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"], "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": {},
        "status": {"replicas": at(&scale.status_replicas)},
    });
    // Go omits the empty field.
    if at(&scale.spec_replicas) != 0 {
        made["spec"]["replicas"] = json!(at(&scale.spec_replicas));
    }
    if !selector.is_empty() {
        made["status"]["selector"] = json!(selector);
    }
    made
}

fn rescaled(context: &RequestContext<'_>, old: &Object, scale: &Value) -> Result<PlannedUpdate, StatusError> {
    let Some(paths) = &context.kind.scale else {
        return Err(StatusError::no_such_path());
    };
    // Go omits zero.
    let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
    if replicas < 0 {
        let why = "must be greater than or equal to 0";
        let cause = Cause::invalid("spec.replicas", &json!(replicas), why);
        return Err(StatusError::invalid("Scale", "autoscaling", old.name(), &[cause]));
    }
    let mut body = old.to_value();
    let mut place = &mut body;
    for name in paths.spec_replicas.split('.').filter(|p| !p.is_empty()) {
        place = map_mut(place).entry(name).or_insert(Value::Null);
    }
    *place = json!(replicas);
    let revision = meta_text(scale, "resourceVersion");
    if !revision.is_empty() {
        body["metadata"]["resourceVersion"] = json!(revision);
    }
    context
        .server
        .lock()
        .plan_update(&context.kind, &Key::of(old), body, Part::Main)
}

fn at_path<'v>(object: &'v Value, path: &str) -> &'v Value {
    path.split('.')
        .filter(|p| !p.is_empty())
        .fold(object, |value, name| &value[name])
}

pub(super) fn selector_text(selector: &Value) -> String {
    let labels = selector["matchLabels"].as_object().or_else(|| selector.as_object());
    let pairs = labels
        .into_iter()
        .flatten()
        .filter_map(|(k, v)| Some(format!("{k}={}", v.as_str()?)));
    pairs.collect::<Vec<_>>().join(",")
}
