//! Metrics and health of a process over HTTP: `/metrics`, `/readyz`, `/livez`. Nothing else is served to the network.

use std::io;

use anyhow::Context as _;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use cluster::Context;

/// Metrics and health.
pub(super) async fn health_and_metrics(address: &str, context: &Context) -> anyhow::Result<impl Serving + use<>> {
    let router = health_router().route("/metrics", get(metrics));
    let what = "metrics and health; choose another with --listen-address";
    listen(address, router.with_state(context.clone()), what).await
}

/// Health alone.
pub(super) async fn health(address: &str, context: &Context) -> anyhow::Result<impl Serving + use<>> {
    let what = "probes; choose another with --health-probe-bind-address";
    listen(address, health_router().with_state(context.clone()), what).await
}

/// Serves for as long as it is polled.
pub(super) trait Serving: Future<Output = io::Result<()>> {}
impl<F: Future<Output = io::Result<()>>> Serving for F {}

/// Begins to listen; the future serves. An empty address, or Go's `0`, serves nothing and never ends.
async fn listen(address: &str, router: Router, what: &str) -> anyhow::Result<impl Serving + use<>> {
    // `:8080` as Go programs have it means all addresses.
    let address = match address.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => address.to_owned(),
    };
    let listener = match address.as_str() {
        "" | "0" => None,
        address => {
            let bound = tokio::net::TcpListener::bind(address).await;
            Some(bound.with_context(|| format!("listening on {address} for {what}"))?)
        }
    };
    Ok(async move {
        match listener {
            Some(listener) => axum::serve(listener, router).await,
            None => std::future::pending().await,
        }
    })
}

fn health_router() -> Router<Context> {
    Router::new()
        .route("/readyz", get(ready))
        .route("/healthz", get(alive))
        .route("/livez", get(alive))
}

async fn metrics(State(context): State<Context>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], context.metrics.text())
}

/// Ready to work: everything that was asked for has been listed.
async fn ready(State(context): State<Context>) -> impl IntoResponse {
    if !context.feeds.are_synced() {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            "the first lists are not complete\n".to_owned(),
        );
    }
    judge(&context.health.not_ready(), "not ready")
}

async fn alive(State(context): State<Context>) -> impl IntoResponse {
    judge(&context.health.stuck(), "stuck")
}

fn judge(parts: &[&str], what: &str) -> (StatusCode, String) {
    match parts {
        [] => (StatusCode::OK, "ok\n".to_owned()),
        parts => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{what}: {}\n", parts.join(", ")),
        ),
    }
}
