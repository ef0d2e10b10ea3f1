//! Requests about resources: reads here, writes and watches passed on to their files.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Method, Response, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;

use super::request::ApiRequest;
use super::route::{Route, Target};
use super::{
    Body, discovery, format, json_answer, openapi, reviews, scale, simulated, text_answer, value_answer, watching,
    writes,
};
use crate::server::Server;
use crate::server::kinds::Kind;
use crate::server::object::Key;
use crate::server::refusal::{Cause, Refusal};
use crate::server::selector::Selector;
use crate::server::store::{Paging, Position, too_large};

/// A resource request with its kind found.
#[derive(Clone)]
pub(super) struct Subject<'a> {
    pub(super) server: &'a Server,
    pub(super) request: &'a ApiRequest,
    pub(super) target: &'a Target,
    pub(super) kind: Arc<Kind>,
}

impl Subject<'_> {
    pub(super) fn key(&self) -> Key {
        Key::new(&*self.target.namespace, &*self.target.name)
    }

    pub(super) fn selector(&self) -> Result<Selector, Refusal> {
        let query = &self.request.query;
        let mut fields = query.text("fieldSelector").to_owned();
        // Watching one object by its path is a watch with a selector on its name.
        if !self.target.name.is_empty() {
            let comma = if fields.is_empty() { "" } else { "," };
            fields = format!("{fields}{comma}metadata.name={}", self.target.name);
        }
        Selector::parse(&self.kind, query.text("labelSelector"), &fields)
    }
}

/// The answer to a request.
pub(super) async fn answer(
    server: &Server,
    request: &ApiRequest,
    warnings: &mut Vec<String>,
) -> Result<Response<Body>, Refusal> {
    match &request.route {
        Route::Health => Ok(text_answer("ok")),
        Route::Version => Ok(value_answer(&discovery::version())),
        Route::Root => Ok(value_answer(&discovery::paths(&server.lock().kinds))),
        Route::CoreVersions => Ok(value_answer(&discovery::core_versions())),
        Route::Groups => Ok(value_answer(&discovery::groups(&server.lock().kinds))),
        Route::Group(group) => {
            let found = discovery::group(&server.lock().kinds, group);
            Ok(found.map_or_else(page_not_found, |group| value_answer(&group)))
        }
        Route::Resources { group, .. } if !discovery::has_group(&server.lock().kinds, group) => Ok(page_not_found()),
        Route::Resources { group, version } if group == simulated::METRICS_GROUP => {
            simulated::metrics_resources(version)
        }
        Route::Resources { group, version } => {
            discovery::resources(&server.lock().kinds, group, version).map(|r| value_answer(&r))
        }
        Route::OpenApi2 => Ok(openapi::version2(&request.accept)),
        Route::OpenApi3(path) => openapi::version3(&server.lock().kinds, path).map(|o| value_answer(&o)),
        Route::Resource(target) if !discovery::has_group(&server.lock().kinds, &target.group) => Ok(page_not_found()),
        Route::Resource(target) if target.group == simulated::METRICS_GROUP => simulated::metrics(request, target),
        Route::Resource(target) => resource(server, request, target, warnings).await,
        Route::Unknown => Ok(page_not_found()),
    }
}

/// The answer to a path outside the API, as Go's HTTP servers give it.
fn page_not_found() -> Response<Body> {
    let mut response = text_answer("404 page not found\n");
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

async fn resource(
    server: &Server,
    request: &ApiRequest,
    target: &Target,
    warnings: &mut Vec<String>,
) -> Result<Response<Body>, Refusal> {
    if let Some(answer) = reviews::answer(request, target)? {
        return Ok(answer);
    }
    let of_pod = binding_of_pod(request, target)?;
    let target = of_pod.as_ref().unwrap_or(target);
    let kind = server.lock().kinds.get(&target.group, &target.version, &target.plural);
    let kind = kind.ok_or_else(Refusal::no_such_path)?;
    let one = !target.name.is_empty();
    if !kind.namespaced() && !target.namespace.is_empty() || kind.namespaced() && one && target.namespace.is_empty() {
        return Err(Refusal::no_such_path());
    }
    let subject = Subject {
        server,
        request,
        target,
        kind,
    };
    if let Some(answer) = simulated::answer(&subject) {
        return answer;
    }
    if !matches!(request.method, Method::GET | Method::HEAD) {
        request.check_write_options()?;
    }
    match (&request.method, one) {
        (&Method::GET | &Method::HEAD, _) if request.query.flag("watch") => watching::watch(&subject),
        (&Method::GET | &Method::HEAD, true) => get(&subject),
        (&Method::GET | &Method::HEAD, false) => list(&subject),
        (&Method::POST, _) => writes::post(&subject, warnings).await,
        (&Method::PUT, true) => writes::put(&subject, warnings).await,
        (&Method::PATCH, true) => writes::patch(&subject, warnings).await,
        (&Method::DELETE, true) => writes::delete(&subject, warnings).await,
        (&Method::DELETE, false) => writes::delete_collection(&subject, warnings).await,
        _ => Err(Refusal::no_such_method()),
    }
}

/// The old way of binding posts to `bindings` and names the pod in the body; the same as posting to the pod's own.
fn binding_of_pod(request: &ApiRequest, target: &Target) -> Result<Option<Target>, Refusal> {
    let old_way = target.group.is_empty() && target.plural == "bindings" && target.name.is_empty();
    if !old_way || request.method != Method::POST {
        return Ok(None);
    }
    let name = request.value()?["metadata"]["name"].as_str().unwrap_or("").to_owned();
    if name.is_empty() {
        return Err(Refusal::bad_request("a binding has to name its pod in metadata.name"));
    }
    let (plural, subresource) = ("pods".to_owned(), "binding".to_owned());
    Ok(Some(Target {
        plural,
        name,
        subresource,
        ..target.clone()
    }))
}

fn get(subject: &Subject<'_>) -> Result<Response<Body>, Refusal> {
    let store = subject.server.lock();
    let object = store.get(&subject.kind, &subject.key())?;
    let now = store.clock.now();
    drop(store);
    match subject.target.subresource.as_str() {
        "" => {}
        "status" if subject.kind.status => {}
        "scale" if subject.kind.scale.is_some() => {
            return scale::read(&subject.kind, &object).map(|scale| value_answer(&scale));
        }
        _ => return Err(Refusal::no_such_path()),
    }
    Ok(json_answer(
        StatusCode::OK,
        format::one(&subject.kind, &object, subject.request.format()?, now),
    ))
}

fn list(subject: &Subject<'_>) -> Result<Response<Body>, Refusal> {
    let selector = subject.selector()?;
    let query = &subject.request.query;
    let store = subject.server.lock();
    let asked = parse_revision(query.text("resourceVersion"))?;
    if asked > store.revision() {
        return Err(too_large(asked, store.revision()));
    }
    let exact = query.text("resourceVersionMatch") == "Exact";
    let from = match query.text("continue") {
        "" => None,
        text => Some(parse_continue(text)?),
    };
    if !query.text("resourceVersionMatch").is_empty() && query.text("resourceVersion").is_empty() {
        let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
        return Err(Refusal::invalid_options(
            "ListOptions",
            Cause::forbidden("resourceVersionMatch", why),
        ));
    }
    let paging = Paging {
        limit: limit_of(query.text("limit"))?,
        from,
        exactly_at: exact.then_some(asked),
    };
    let page = store.page(&subject.kind, &subject.target.namespace, &selector, &paging)?;
    let now = store.clock.now();
    drop(store);
    Ok(json_answer(
        StatusCode::OK,
        format::list(&subject.kind, &page, subject.request.format()?, now),
    ))
}

fn limit_of(text: &str) -> Result<Option<usize>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    let limit: i64 = text
        .parse()
        .map_err(|_| Refusal::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax")))?;
    Ok(usize::try_from(limit).ok().filter(|limit| *limit > 0))
}

/// The revision that a list is asked to be at least as new as.
fn parse_revision(text: &str) -> Result<u64, Refusal> {
    revision_of(text).map_err(|why| Refusal::bad_request(format!("invalid resource version: {why}")))
}

/// A revision as clients write it; none is 0.
pub(super) fn revision_of(text: &str) -> Result<u64, String> {
    if text.is_empty() {
        return Ok(0);
    }
    let why =
        |_| format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax");
    text.parse().map_err(why)
}

/// A position as clients carry it around.
pub(super) fn continue_text(position: &Position) -> String {
    let value = json!([position.revision, position.after.namespace, position.after.name]);
    URL_SAFE_NO_PAD.encode(value.to_string())
}

fn parse_continue(text: &str) -> Result<Position, Refusal> {
    let bad = || Refusal::bad_request("invalid continue token: continue key is not valid");
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| bad())?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|_| bad())?;
    let (Some(revision), Some(namespace), Some(name)) = (value[0].as_u64(), value[1].as_str(), value[2].as_str())
    else {
        return Err(bad());
    };
    Ok(Position {
        revision,
        after: Key::new(namespace, name),
    })
}
