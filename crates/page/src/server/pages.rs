//! Views, their JSON, remedies, files, and the steps of the story.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::response::Response;
use http::header::{self, HeaderMap, HeaderValue};
use http::{StatusCode, Uri};

use super::App;
use super::access::{Caller, foreign_origin, is_same_origin};
use super::respond::{blocking, content, html, plain, see_other, takes_gzip};
use crate::assets;
use crate::document::Document;
use crate::html::Html;
use crate::route::{Route, VIEWS, parameter};
use crate::views;

/// How long a request waits for the search before it, and for its own.
const EXPLANATION_TIMEOUT: Duration = Duration::from_secs(30);

/// The time of this machine.
pub(super) fn now() -> String {
    let now = jiff::Timestamp::now();
    // Milliseconds are enough for ages.
    jiff::Timestamp::from_millisecond(now.as_millisecond())
        .unwrap_or(now)
        .to_string()
}

/// A view.
pub(super) async fn view(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let zip = takes_gzip(&headers);
    let Some(route) = Route::parse(uri.path(), uri.query().unwrap_or_default()) else {
        return not_found(&app, &caller);
    };
    let _reader = app.hub.reader();
    let snapshot = app.hub.current().await;
    let app = app.clone();
    blocking(move || {
        let rendering = snapshot.rendering(&caller.scope, &route);
        app.hub.remember(&caller.scope, &route, &rendering.outline);
        let place = route.place();
        let document = Document {
            title: &title(&route),
            cluster_name: &app.cluster_name,
            place: Some(place),
            digest: Some(&rendering.outline.digest),
            now: &now(),
            time: snapshot.time(),
            logged_in: caller.token.is_some(),
        };
        html(StatusCode::OK, document.write(&rendering.blocks.html), zip)
    })
    .await
}

fn title(route: &Route) -> String {
    match route {
        Route::Gang { pod_group, .. } => pod_group.clone(),
        Route::Pod { name, .. } | Route::Node { name } => name.clone(),
        Route::Overview
        | Route::Gpus { .. }
        | Route::Queues
        | Route::Waiting { .. }
        | Route::Gangs { .. }
        | Route::Decisions(_)
        | Route::Nodes => VIEWS[route.place()].1.to_owned(),
    }
}

fn not_found(app: &App, caller: &Caller) -> Response {
    let mut text = Html::default();
    text.raw("<section class=\"panel notice\"><h1>No such page</h1><p>The <a href=\"/\">overview</a> leads to every view.</p></section>");
    html(
        StatusCode::NOT_FOUND,
        fixed(app, caller, "No such page").write(&text),
        false,
    )
}

/// A document that is not live.
fn fixed<'a>(app: &'a App, caller: &Caller, title: &'a str) -> Document<'a> {
    Document {
        title,
        cluster_name: &app.cluster_name,
        place: None,
        digest: None,
        now: "",
        time: None,
        logged_in: caller.token.is_some(),
    }
}

/// The view of the cluster as JSON.
pub(super) async fn view_json(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    let zip = takes_gzip(&headers);
    let _reader = app.hub.reader();
    let snapshot = app.hub.current().await;
    blocking(move || {
        let Some(view) = snapshot.view_for(&caller.scope) else {
            return no_view();
        };
        json(view.as_ref(), "the view", zip)
    })
    .await
}

fn no_view() -> Response {
    plain(
        StatusCode::SERVICE_UNAVAILABLE,
        "this replica does not schedule at present, or has not read the cluster yet",
    )
}

fn json(value: &impl serde::Serialize, what: &str, zip: bool) -> Response {
    match serde_json::to_string(value) {
        Ok(json) => content(StatusCode::OK, "application/json", json, zip),
        Err(error) => plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("cannot write {what} as JSON: {error}"),
        ),
    }
}

/// What would let a pod start: a page, with `?fragment` only its content, with `?json` the explanation as JSON. A caller who may see some
/// namespaces gets it for the pods in these, without the names of others.
pub(super) async fn remedies(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path((namespace, pod)): Path<(String, String)>,
    uri: Uri,
) -> Response {
    if caller.scope.as_ref().is_some_and(|own| !own.contains(&namespace)) {
        return plain(StatusCode::FORBIDDEN, "you may not list the pods of this namespace");
    }
    let _reader = app.hub.reader();
    let search = async {
        let _permit = app.explanations.acquire().await.ok()?;
        Some(app.source.explain(&namespace, &pod).await)
    };
    let Ok(Some(explanation)) = tokio::time::timeout(EXPLANATION_TIMEOUT, search).await else {
        return plain(
            StatusCode::SERVICE_UNAVAILABLE,
            "the search takes too long; try again later",
        );
    };
    let explanation = match (explanation, &caller.scope) {
        (Some(explanation), Some(own)) => {
            // Which names are foreign is in the whole view.
            let Some(view) = app.hub.current().await.view.clone() else {
                return no_view();
            };
            Some(view.restricted_explanation(&explanation, own))
        }
        (explanation, _) => explanation,
    };
    let query = uri.query().unwrap_or_default();
    if parameter(query, "json").is_some() {
        return match explanation {
            Some(explanation) => json(&explanation, "what would help", false),
            None => plain(
                StatusCode::NOT_FOUND,
                "the pod does not wait, or what would help is not known",
            ),
        };
    }
    let mut text = Html::default();
    views::remedies(&mut text, &namespace, &pod, explanation.as_ref());
    if parameter(query, "fragment").is_some() {
        return html(StatusCode::OK, text.into_string(), false);
    }
    let mut panel = Html::default();
    panel.raw("<section class=\"panel\">").append(&text).raw("</section>");
    html(
        StatusCode::OK,
        fixed(&app, &caller, "What would help").write(&panel),
        false,
    )
}

/// A file of the program. Its address changes with its content.
pub(super) async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let Some(asset) = assets::find(&name) else {
        return plain(StatusCode::NOT_FOUND, "no such file");
    };
    let zip = takes_gzip(&headers);
    let bytes = if zip { &asset.gzipped } else { &asset.plain };
    let mut response = Response::new(Body::from(bytes.clone()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.content_type));
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("public, max-age=31536000, immutable"),
    );
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if zip {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// Submits a step of the playground's story.
pub(super) async fn submit(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(step): Path<usize>,
    headers: HeaderMap,
) -> Response {
    let Some(story) = &app.story else {
        return plain(StatusCode::NOT_FOUND, "there is no story: only the playground has one");
    };
    if !is_same_origin(&headers) {
        return foreign_origin();
    }
    if !caller.sees_everything() {
        return plain(
            StatusCode::FORBIDDEN,
            "only those who may see every namespace submit steps",
        );
    }
    if step >= story.steps().len() {
        return plain(StatusCode::NOT_FOUND, "there is no such step");
    }
    match story.submit(step).await {
        Ok(()) => see_other("/"),
        Err(text) => plain(StatusCode::CONFLICT, text),
    }
}
