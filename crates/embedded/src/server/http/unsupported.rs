//! Requests that need a running container or its metrics. Containers are simulated, and the responses say so.

use http::{Method, Response, StatusCode};
use serde_json::{Value, json};

use super::request::ApiRequest;
use super::resources::RequestContext;
use super::route::Target;
use super::{Body, text_response, value_response};
use crate::server::kinds::Kind;
use crate::server::status_error::StatusError;

/// The API group of `kubectl top`.
pub(super) const METRICS_GROUP: &str = "metrics.k8s.io";
pub(super) const METRICS_VERSION: &str = "v1beta1";
/// Pod subresources that need a container, with their kind in discovery.
pub(super) const CONTAINER_SUBRESOURCES: [(&str, &str); 4] = [
    ("attach", "PodAttachOptions"),
    ("exec", "PodExecOptions"),
    ("portforward", "PodPortForwardOptions"),
    ("proxy", "PodProxyOptions"),
];

/// The response, if the request needs a container.
pub(super) fn respond(context: &RequestContext<'_>) -> Option<Result<Response<Body>, StatusError>> {
    let (kind, target) = (&context.kind, context.target);
    let of_pod = kind.is("", "pods") && !target.name.is_empty();
    let into = CONTAINER_SUBRESOURCES
        .iter()
        .any(|(name, _)| *name == target.subresource);
    let reads_log = target.subresource == "log" && context.request.method == Method::GET;
    if !of_pod || !into && !reads_log {
        return None;
    }
    let found = context.server.lock().get(kind, &context.key());
    Some(found.and_then(|_| {
        if reads_log {
            return Ok(text_response("this pod runs on a simulated node and writes no log\n"));
        }
        Err(not_implemented(kind, target))
    }))
}

fn not_implemented(kind: &Kind, target: &Target) -> StatusError {
    let what = match target.subresource.as_str() {
        "exec" => "no command can be run in",
        "attach" => "there is no process to attach to in",
        _ => "no port can be reached in",
    };
    let message = format!(
        "containers are simulated here: {what} pod {:?} of namespace {:?}; see docs/playground.md",
        target.name, target.namespace
    );
    let object = kind.object_ref(&target.name);
    StatusError {
        details: StatusError::not_found(object).details,
        ..StatusError::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
    }
}

/// The response of the metrics API: its resources exist, but have no values.
pub(super) fn metrics(request: &ApiRequest, target: &Target) -> Result<Response<Body>, StatusError> {
    let known = target.version == METRICS_VERSION && matches!(target.plural.as_str(), "nodes" | "pods");
    if !known {
        return Err(StatusError::no_such_path());
    }
    if request.method != Method::GET {
        return Err(StatusError::no_such_method());
    }
    let message = format!(
        "containers are simulated here: nothing uses processors or memory, so there is no usage of {} to show",
        target.plural
    );
    Err(StatusError::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message))
}

/// The resources of the metrics API.
pub(super) fn metrics_resources(version: &str) -> Result<Response<Body>, StatusError> {
    if version != METRICS_VERSION {
        return Err(StatusError::no_such_path());
    }
    let resource = |plural: &str, kind: &str, namespaced: bool| -> Value {
        json!({"name": plural, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get", "list"]})
    };
    Ok(value_response(&json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{METRICS_GROUP}/{METRICS_VERSION}"),
        "resources": [resource("nodes", "NodeMetrics", false), resource("pods", "PodMetrics", true)],
    })))
}
