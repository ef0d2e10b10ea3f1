//! Serves metrics and health of a process over HTTP: `/metrics` for authorized readers, `/readyz` and `/livez` for all. The page has an
//! address of its own. Nothing else is served to the network.
//!
//! Each address has a thread and a runtime of its own, so that busy threads of the roles do not delay its answers: a kubelet restarts a
//! process that does not answer, and the new process would begin with the same work.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::anyhow;
use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use kai_cluster::{Access, Context, MetricsAuthorizer};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::accept::{self, Limits};

const METRICS: &str = "/metrics";

/// Who may read metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readers {
    /// Accounts that may `get` the path, and readers on the same machine.
    Known,
    /// Every reader that can connect.
    Everybody,
}

/// Metrics and health.
pub(super) fn health_and_metrics(address: &str, context: &Context, readers: Readers) -> anyhow::Result<Served> {
    let authorizer = match readers {
        Readers::Known => Some(MetricsAuthorizer::new(Some(context.client.clone()))),
        Readers::Everybody => None,
    };
    let reading = Reading {
        context: context.clone(),
        authorizer,
        roles: Handle::current(),
    };
    let router = Router::new().route(METRICS, get(metrics)).with_state(reading);
    let port = Port {
        thread: "health",
        purpose: "metrics and health",
        flag: "--listen-address",
    };
    listen(address, router.merge(health_router(context)), port)
}

/// Health alone.
pub(super) fn health(address: &str, context: &Context) -> anyhow::Result<Served> {
    let port = Port {
        thread: "probes",
        purpose: "probes",
        flag: "--health-probe-bind-address",
    };
    listen(address, health_router(context), port)
}

/// The page. `flag` sets its address.
pub(crate) fn page(address: &str, router: Router, flag: &'static str) -> anyhow::Result<Served> {
    let port = Port {
        thread: "page",
        purpose: "the page",
        flag,
    };
    listen(address, router, port)
}

/// A served address. Dropping it ends the server.
pub(crate) struct Served {
    /// Dropping it ends the server.
    _end: oneshot::Sender<()>,
    ended: oneshot::Receiver<io::Result<()>>,
    address: Option<SocketAddr>,
}

impl Served {
    /// The address; `None` if none is served.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Waits until the server ends by itself.
    pub(crate) async fn ended(self) -> io::Result<()> {
        let Served { _end, ended, .. } = self;
        ended
            .await
            .unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
    }
}

#[derive(Clone)]
struct Reading {
    context: Context,
    authorizer: Option<MetricsAuthorizer>,
    /// The runtime of the roles, which owns the connections to the API server.
    roles: Handle,
}

/// What an address is for, and the flag that sets it.
struct Port {
    /// Name of its thread.
    thread: &'static str,
    purpose: &'static str,
    flag: &'static str,
}

/// Starts to serve the address. An empty one, or Go's `0`, serves nothing and never ends.
fn listen(address: &str, router: Router, port: Port) -> anyhow::Result<Served> {
    // `:8080` means all addresses, as in Go programs.
    let address = match address.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => address.to_owned(),
    };
    let listener = match address.as_str() {
        "" | "0" => None,
        address => {
            let bound = std::net::TcpListener::bind(address).and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(listener)
            });
            let Port { purpose, flag, .. } = port;
            let refused =
                |error| anyhow!("listening on {address} for {purpose}: {error}; choose another address with {flag}");
            Some(bound.map_err(refused)?)
        }
    };
    let (end, asked_to_end) = oneshot::channel::<()>();
    let (sender, ended) = oneshot::channel();
    let served = Served {
        _end: end,
        ended,
        address: listener.as_ref().and_then(|listener| listener.local_addr().ok()),
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let serve = move || {
        let result = runtime.block_on(async {
            let serving = async {
                match listener {
                    Some(listener) => {
                        accept::serve(tokio::net::TcpListener::from_std(listener)?, router, Limits::default()).await
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                result = serving => result,
                _ = asked_to_end => Ok(()),
            }
        });
        // The receiver may be gone.
        let _ = sender.send(result);
    };
    std::thread::Builder::new().name(port.thread.to_owned()).spawn(serve)?;
    Ok(served)
}

fn health_router(context: &Context) -> Router {
    Router::new()
        .route("/readyz", get(ready))
        .route("/healthz", get(alive))
        .route("/livez", get(alive))
        .with_state(context.clone())
}

async fn metrics(
    State(reading): State<Reading>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
) -> Response {
    if let Some(authorizer) = reading.authorizer {
        let token = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = token.map(str::to_owned);
        // A proxy in the same pod connects over loopback for clients from anywhere.
        let client = match kai_page::is_forwarded(&headers) {
            true => Ipv4Addr::UNSPECIFIED.into(),
            false => peer.ip(),
        };
        let asked = async move { authorizer.authorize(client, token.as_deref(), METRICS).await };
        let entry = match client.is_loopback() {
            // A loopback reader needs no check by the API server.
            true => asked.await,
            false => reading.roles.spawn(asked).await.unwrap_or(Access::Unavailable),
        };
        if let Some((code, text)) = entry.refusal() {
            let code = StatusCode::from_u16(code).unwrap_or(StatusCode::FORBIDDEN);
            return (code, text).into_response();
        }
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], reading.context.metrics.text()).into_response()
}

/// `/readyz`: the installation step is done, all first lists are complete, and each role of this replica has begun its work. A replica
/// that was ready stays ready.
async fn ready(State(context): State<Context>) -> impl IntoResponse {
    let (is_synced, not_ready) = (context.informers.are_synced(), context.health.not_ready());
    if context.health.has_become_ready(is_synced && not_ready.is_empty()) {
        return judge(&[], "not ready");
    }
    match not_ready.is_empty() {
        true => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the first lists are not complete\n".to_owned(),
        ),
        false => judge(&not_ready, "not ready"),
    }
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use kai_cluster::{Client, Clock};

    use super::*;

    /// Status line and body, read from a thread outside of any runtime.
    fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: kai\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        format!(
            "{} {}",
            head.split(' ').nth(1).unwrap(),
            body.lines().next().unwrap_or_default()
        )
    }

    #[test]
    fn health_and_metrics_are_served_while_the_engine_holds_every_thread() {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (release, held) = channel::<()>();
        let (started, start) = channel();
        let context = runtime.block_on(async {
            let server = kai_embedded::server::Server::new(kai_embedded::server::Options::default());
            Context::new(Client::in_process(server.service()), Clock::System)
        });
        context.health.announce("scheduler cycle", Duration::from_secs(3_600));
        let served = runtime.block_on(async { health_and_metrics("127.0.0.1:0", &context, Readers::Known) });
        let served = served.unwrap();
        let address = served.address.unwrap();
        // A cycle that never ends, on the runtime's only thread.
        runtime.spawn(async move {
            started.send(()).unwrap();
            held.recv().ok();
        });
        start.recv().unwrap();
        assert_eq!(get(address, "/livez"), "200 ok");
        assert!(get(address, "/readyz").starts_with("503 "));
        assert!(get(address, "/metrics").starts_with("200 "));
        // After too long without a sign of life, /livez fails and says so.
        context.health.announce("silent", Duration::ZERO);
        assert_eq!(get(address, "/livez"), "503 stuck: silent");
        drop(release);
        drop(served);
    }
}
