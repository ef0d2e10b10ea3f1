//! Metrics and health of a process over HTTP: `/metrics`, `/readyz`, `/livez`. Nothing else is served to the network.

use std::io;

use anyhow::Context as _;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use cluster::Context;

/// Begins to listen; the future serves. An empty address serves nothing and never ends.
pub(super) async fn health_and_metrics(
    address: &str,
    context: &Context,
) -> anyhow::Result<impl Future<Output = io::Result<()>> + use<>> {
    // `:8080` as Go programs have it means all addresses.
    let address = match address.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => address.to_owned(),
    };
    let listener = match address.as_str() {
        "" => None,
        address => Some(tokio::net::TcpListener::bind(address).await.with_context(|| {
            format!("listening on {address} for metrics and health; choose another with --listen-address")
        })?),
    };
    let router = router(context.clone());
    Ok(async move {
        match listener {
            Some(listener) => axum::serve(listener, router).await,
            None => std::future::pending().await,
        }
    })
}

fn router(context: Context) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/readyz", get(ready))
        .route("/healthz", get(alive))
        .route("/livez", get(alive))
        .with_state(context)
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
