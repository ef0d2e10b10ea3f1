//! Dispatches requests by route and method, and handles reads.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Method, Response, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;

use super::request::ApiRequest;
use super::route::{Route, Target};
use super::{
    Body, discovery, format, json_response, openapi, reviews, scale, text_response, unsupported, value_response, watch,
    writes,
};
use crate::server::Server;
use crate::server::kinds::Kind;
use crate::server::object::Key;
use crate::server::selector::Selector;
use crate::server::status_error::{Cause, StatusError};
use crate::server::store::{ContinueToken, ListOptions, revision_too_large};

/// A request for a resource, with its kind.
#[derive(Clone)]
pub(super) struct RequestContext<'a> {
    pub(super) server: &'a Server,
    pub(super) request: &'a ApiRequest,
    pub(super) target: &'a Target,
    pub(super) kind: Arc<Kind>,
}

impl RequestContext<'_> {
    pub(super) fn key(&self) -> Key {
        Key::new(&*self.target.namespace, &*self.target.name)
    }

    pub(super) fn selector(&self) -> Result<Selector, StatusError> {
        let query = &self.request.query;
        let mut fields = query.text("fieldSelector").to_owned();
        // A watch of one object by its path is a watch with a field selector on the name.
        if !self.target.name.is_empty() {
            let comma = if fields.is_empty() { "" } else { "," };
            fields = format!("{fields}{comma}metadata.name={}", self.target.name);
        }
        Selector::parse(&self.kind, query.text("labelSelector"), &fields)
    }
}

/// Handles a request.
pub(super) async fn handle(
    server: &Server,
    request: &ApiRequest,
    warnings: &mut Vec<String>,
) -> Result<Response<Body>, StatusError> {
    match &request.route {
        Route::Health => Ok(text_response("ok")),
        Route::Version => Ok(value_response(&discovery::version())),
        Route::Root => Ok(value_response(&discovery::paths(&server.lock().kinds))),
        Route::CoreVersions => Ok(value_response(&discovery::core_versions())),
        Route::Groups => Ok(value_response(&discovery::groups(&server.lock().kinds))),
        Route::Group(group) => {
            let found = discovery::group(&server.lock().kinds, group);
            Ok(found.map_or_else(page_not_found, |group| value_response(&group)))
        }
        Route::Resources { group, .. } if !discovery::has_group(&server.lock().kinds, group) => Ok(page_not_found()),
        Route::Resources { group, version } if group == unsupported::METRICS_GROUP => {
            unsupported::metrics_resources(version)
        }
        Route::Resources { group, version } => {
            discovery::resources(&server.lock().kinds, group, version).map(|r| value_response(&r))
        }
        Route::OpenApi2 => Ok(openapi::version2(&request.accept)),
        Route::OpenApi3(path) => openapi::version3(&server.lock().kinds, path).map(|o| value_response(&o)),
        Route::Resource(target) if !discovery::has_group(&server.lock().kinds, &target.group) => Ok(page_not_found()),
        Route::Resource(target) if target.group == unsupported::METRICS_GROUP => unsupported::metrics(request, target),
        Route::Resource(target) => resource(server, request, target, warnings).await,
        Route::Unknown => Ok(page_not_found()),
    }
}

/// The response to a path outside the API, as of Go's HTTP server.
fn page_not_found() -> Response<Body> {
    let mut response = text_response("404 page not found\n");
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

async fn resource(
    server: &Server,
    request: &ApiRequest,
    target: &Target,
    warnings: &mut Vec<String>,
) -> Result<Response<Body>, StatusError> {
    if let Some(response) = reviews::respond(request, target)? {
        return Ok(response);
    }
    let of_pod = binding_of_pod(request, target)?;
    let target = of_pod.as_ref().unwrap_or(target);
    let kind = server.lock().kinds.get(&target.group, &target.version, &target.plural);
    let kind = kind.ok_or_else(StatusError::no_such_path)?;
    let one = !target.name.is_empty();
    if !kind.namespaced() && !target.namespace.is_empty() || kind.namespaced() && one && target.namespace.is_empty() {
        return Err(StatusError::no_such_path());
    }
    let context = RequestContext {
        server,
        request,
        target,
        kind,
    };
    if let Some(response) = unsupported::respond(&context) {
        return response;
    }
    if !matches!(request.method, Method::GET | Method::HEAD) {
        request.check_write_options()?;
    }
    match (&request.method, one) {
        (&Method::GET | &Method::HEAD, _) if request.query.flag("watch") => watch::watch(&context),
        (&Method::GET | &Method::HEAD, true) => get(&context),
        (&Method::GET | &Method::HEAD, false) => list(&context),
        (&Method::POST, _) => writes::post(&context, warnings).await,
        (&Method::PUT, true) => writes::put(&context, warnings).await,
        (&Method::PATCH, true) => writes::patch(&context, warnings).await,
        (&Method::DELETE, true) => writes::delete(&context, warnings).await,
        (&Method::DELETE, false) => writes::delete_collection(&context, warnings).await,
        _ => Err(StatusError::no_such_method()),
    }
}

/// The legacy binding: a POST to `bindings` with the pod's name in the body equals a POST to the pod's `binding`.
fn binding_of_pod(request: &ApiRequest, target: &Target) -> Result<Option<Target>, StatusError> {
    let old_way = target.group.is_empty() && target.plural == "bindings" && target.name.is_empty();
    if !old_way || request.method != Method::POST {
        return Ok(None);
    }
    let name = request.value()?["metadata"]["name"].as_str().unwrap_or("").to_owned();
    if name.is_empty() {
        return Err(StatusError::bad_request(
            "a binding has to name its pod in metadata.name",
        ));
    }
    let (plural, subresource) = ("pods".to_owned(), "binding".to_owned());
    Ok(Some(Target {
        plural,
        name,
        subresource,
        ..target.clone()
    }))
}

fn get(context: &RequestContext<'_>) -> Result<Response<Body>, StatusError> {
    let store = context.server.lock();
    let object = store.get(&context.kind, &context.key())?;
    let now = store.clock.now();
    drop(store);
    match context.target.subresource.as_str() {
        "" => {}
        "status" if context.kind.status => {}
        "scale" if context.kind.scale.is_some() => {
            return scale::read(&context.kind, &object).map(|scale| value_response(&scale));
        }
        _ => return Err(StatusError::no_such_path()),
    }
    Ok(json_response(
        StatusCode::OK,
        format::one(&context.kind, &object, context.request.format()?, now),
    ))
}

fn list(context: &RequestContext<'_>) -> Result<Response<Body>, StatusError> {
    let selector = context.selector()?;
    let query = &context.request.query;
    let store = context.server.lock();
    let asked = parse_revision(query.text("resourceVersion"))?;
    if asked > store.revision() {
        return Err(revision_too_large(asked, store.revision()));
    }
    let exact = query.text("resourceVersionMatch") == "Exact";
    let from = match query.text("continue") {
        "" => None,
        text => Some(decode_continue(text)?),
    };
    if !query.text("resourceVersionMatch").is_empty() && query.text("resourceVersion").is_empty() {
        let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
        return Err(StatusError::invalid_options(
            "ListOptions",
            Cause::forbidden("resourceVersionMatch", why),
        ));
    }
    let options = ListOptions {
        limit: limit_of(query.text("limit"))?,
        from,
        exactly_at: exact.then_some(asked),
    };
    let page = store.page(&context.kind, &context.target.namespace, &selector, &options)?;
    let now = store.clock.now();
    drop(store);
    Ok(json_response(
        StatusCode::OK,
        format::list(&context.kind, &page, context.request.format()?, now),
    ))
}

fn limit_of(text: &str) -> Result<Option<usize>, StatusError> {
    if text.is_empty() {
        return Ok(None);
    }
    let limit: i64 = text
        .parse()
        .map_err(|_| StatusError::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax")))?;
    Ok(usize::try_from(limit).ok().filter(|limit| *limit > 0))
}

/// The lowest revision that a list may have.
fn parse_revision(text: &str) -> Result<u64, StatusError> {
    revision_of(text).map_err(|why| StatusError::bad_request(format!("invalid resource version: {why}")))
}

/// A resourceVersion as a number; an empty text is 0.
pub(super) fn revision_of(text: &str) -> Result<u64, String> {
    if text.is_empty() {
        return Ok(0);
    }
    let why =
        |_| format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax");
    text.parse().map_err(why)
}

/// The text of a continue token.
pub(super) fn encode_continue(position: &ContinueToken) -> String {
    let value = json!([position.revision, position.after.namespace, position.after.name]);
    URL_SAFE_NO_PAD.encode(value.to_string())
}

fn decode_continue(text: &str) -> Result<ContinueToken, StatusError> {
    let bad = || StatusError::bad_request("invalid continue token: continue key is not valid");
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| bad())?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|_| bad())?;
    let (Some(revision), Some(namespace), Some(name)) = (value[0].as_u64(), value[1].as_str(), value[2].as_str())
    else {
        return Err(bad());
    };
    Ok(ContinueToken {
        revision,
        after: Key::new(namespace, name),
    })
}
