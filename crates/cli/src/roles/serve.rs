//! Metrics and health of a process over HTTP: `/metrics` for those who may, `/readyz` and `/livez` for all. Nothing else is served to
//! the network.

use std::io;
use std::net::SocketAddr;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use cluster::{Context, Gate};

const METRICS: &str = "/metrics";

/// Who may read metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readers {
    /// Accounts that may `get` the path, and whoever is on the same machine.
    Known,
    /// Whoever can connect.
    Everybody,
}

/// Metrics and health.
pub(super) async fn health_and_metrics(
    address: &str,
    context: &Context,
    readers: Readers,
) -> anyhow::Result<impl Serving + use<>> {
    let gate = match readers {
        Readers::Known => Some(Gate::new(Some(context.client.clone()))),
        Readers::Everybody => None,
    };
    let served = Served {
        context: context.clone(),
        gate,
    };
    let router = Router::new().route(METRICS, get(metrics)).with_state(served);
    let what = "metrics and health; choose another with --listen-address";
    listen(address, router.merge(health_router(context)), what).await
}

/// Health alone.
pub(super) async fn health(address: &str, context: &Context) -> anyhow::Result<impl Serving + use<>> {
    let what = "probes; choose another with --health-probe-bind-address";
    listen(address, health_router(context), what).await
}

/// Serves for as long as it is polled.
pub(super) trait Serving: Future<Output = io::Result<()>> {}
impl<F: Future<Output = io::Result<()>>> Serving for F {}

#[derive(Clone)]
struct Served {
    context: Context,
    gate: Option<Gate>,
}

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
    let router = router.into_make_service_with_connect_info::<SocketAddr>();
    Ok(async move {
        match listener {
            Some(listener) => axum::serve(listener, router).await,
            None => std::future::pending().await,
        }
    })
}

fn health_router(context: &Context) -> Router {
    Router::new()
        .route("/readyz", get(ready))
        .route("/healthz", get(alive))
        .route("/livez", get(alive))
        .with_state(context.clone())
}

async fn metrics(
    State(served): State<Served>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
) -> Response {
    if let Some(gate) = &served.gate {
        let token = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        if let Some((code, text)) = gate.entry(peer.ip(), token, METRICS).await.refusal() {
            let code = StatusCode::from_u16(code).unwrap_or(StatusCode::FORBIDDEN);
            return (code, text).into_response();
        }
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], served.context.metrics.text()).into_response()
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
