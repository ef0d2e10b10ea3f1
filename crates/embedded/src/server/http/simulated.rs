//! Requests that need a container: nothing runs on a simulated node, and the answers say so.

use http::{Method, Response, StatusCode};
use serde_json::{Value, json};

use super::request::ApiRequest;
use super::resources::Subject;
use super::route::Target;
use super::{Body, text_answer, value_answer};
use crate::server::kinds::Kind;
use crate::server::refusal::Refusal;

/// The group that `kubectl top` asks.
pub(super) const METRICS_GROUP: &str = "metrics.k8s.io";
pub(super) const METRICS_VERSION: &str = "v1beta1";
/// Subresources of pods that reach into their containers, with the kind that discovery names.
pub(super) const INTO_CONTAINERS: [(&str, &str); 4] = [
    ("attach", "PodAttachOptions"),
    ("exec", "PodExecOptions"),
    ("portforward", "PodPortForwardOptions"),
    ("proxy", "PodProxyOptions"),
];

/// The answer to a request about a container, if this is one.
pub(super) fn answer(subject: &Subject<'_>) -> Option<Result<Response<Body>, Refusal>> {
    let (kind, target) = (&subject.kind, subject.target);
    let of_pod = kind.is("", "pods") && !target.name.is_empty();
    let into = INTO_CONTAINERS.iter().any(|(name, _)| *name == target.subresource);
    let reads_log = target.subresource == "log" && subject.request.method == Method::GET;
    if !of_pod || !into && !reads_log {
        return None;
    }
    let found = subject.server.lock().get(kind, &subject.key());
    Some(found.and_then(|_| {
        if reads_log {
            return Ok(text_answer("this pod runs on a simulated node and writes no log\n"));
        }
        Err(refusal(kind, target))
    }))
}

fn refusal(kind: &Kind, target: &Target) -> Refusal {
    let what = match target.subresource.as_str() {
        "exec" => "no command can be run in",
        "attach" => "there is no process to attach to in",
        _ => "no port can be reached in",
    };
    let message = format!(
        "containers are simulated here: {what} pod {:?} of namespace {:?}; see docs/playground.md",
        target.name, target.namespace
    );
    let about = kind.about(&target.name);
    Refusal {
        details: Refusal::not_found(about).details,
        ..Refusal::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
    }
}

/// The answer of the metrics API: its resources are known, and nothing measures them.
pub(super) fn metrics(request: &ApiRequest, target: &Target) -> Result<Response<Body>, Refusal> {
    let known = target.version == METRICS_VERSION && matches!(target.plural.as_str(), "nodes" | "pods");
    if !known {
        return Err(Refusal::no_such_path());
    }
    if request.method != Method::GET {
        return Err(Refusal::no_such_method());
    }
    let message = format!(
        "containers are simulated here: nothing uses processors or memory, so there is no usage of {} to show",
        target.plural
    );
    Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message))
}

/// The resources of the metrics API.
pub(super) fn metrics_resources(version: &str) -> Result<Response<Body>, Refusal> {
    if version != METRICS_VERSION {
        return Err(Refusal::no_such_path());
    }
    let resource = |plural: &str, kind: &str, namespaced: bool| -> Value {
        json!({"name": plural, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get", "list"]})
    };
    Ok(value_answer(&json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{METRICS_GROUP}/{METRICS_VERSION}"),
        "resources": [resource("nodes", "NodeMetrics", false), resource("pods", "PodMetrics", true)],
    })))
}
