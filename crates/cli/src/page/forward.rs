//! A replica that does not lead has no view of the cluster. It forwards requests for its page to the replica that leads, so that a Service
//! may lead readers to any of them.
//!
//! The leader judges the token of the reader itself: the forwarded request comes from another machine. A reader on loopback has no token, and is
//! not forwarded: the page tells which pod leads.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use kai_cluster::{Client, Error, Target};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::PageSlot;
use crate::roles::host_of;

/// How long the address of the leader is believed.
const LEADER_AGE_MAX: Duration = Duration::from_secs(5);
/// How long the leader may take to accept the connection, and to begin its answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(45);
/// A request that was forwarded once. Leadership may change on the way.
const FORWARDED_BY: HeaderName = HeaderName::from_static("x-kai-forwarded-by");
/// Headers that are about one connection.
const OF_CONNECTION: [HeaderName; 5] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
];

/// Where the leader is found.
#[derive(Debug)]
pub(crate) struct Election {
    pub(crate) client: Client,
    /// Namespace of the lease and of the replicas.
    pub(crate) namespace: String,
    /// The lease of the scheduler.
    pub(crate) lease: String,
    /// The name of this replica's pod.
    pub(crate) own_pod: String,
    /// The port of the page: replicas have the same flags.
    pub(crate) port: u16,
    /// The runtime that owns the connections to the API server.
    pub(crate) roles: Handle,
}

/// Forwards requests while another replica leads. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Forwarder {
    election: Arc<Election>,
    slot: PageSlot,
    /// Held while the leader is looked up, so that many requests cause one lookup.
    leader: Arc<Mutex<Option<LookedUp>>>,
}

/// The page of the replica that leads, when it was looked up; `None` = it is this one, or unknown.
#[derive(Clone, Copy)]
struct LookedUp {
    at: Instant,
    leader: Option<SocketAddr>,
}

impl Forwarder {
    pub(crate) fn new(election: Election, slot: PageSlot) -> Forwarder {
        Forwarder {
            election: Arc::new(election),
            slot,
            leader: Arc::default(),
        }
    }

    /// The page of the replica that leads; `None` if it is this one, or unknown.
    async fn leader(&self) -> Option<SocketAddr> {
        let mut known = self.leader.lock().await;
        if let Some(known) = known.filter(|known| known.at.elapsed() < LEADER_AGE_MAX) {
            return known.leader;
        }
        let election = Arc::clone(&self.election);
        let found = self.election.roles.spawn(async move { election.find().await });
        let leader = match found.await {
            Ok(Ok(leader)) => leader,
            Ok(Err(error)) => {
                tracing::debug!(%error, "the replica that leads can't be found");
                None
            }
            Err(_) => None,
        };
        *known = Some(LookedUp {
            at: Instant::now(),
            leader,
        });
        leader
    }
}

impl Election {
    async fn find(&self) -> Result<Option<SocketAddr>, Error> {
        let Some(holder) = self.client.lease_holder(&self.namespace, &self.lease).await? else {
            return Ok(None);
        };
        let pod = host_of(&holder);
        if pod == self.own_pod {
            return Ok(None);
        }
        let target = Target::of::<kai_api::Pod>(&self.namespace, pod);
        let pod = self.client.get_value(target).await?.unwrap_or_default();
        let address = pod["status"]["podIP"]
            .as_str()
            .and_then(|address| address.parse::<IpAddr>().ok());
        Ok(address.map(|address| SocketAddr::new(address, self.port)))
    }
}

/// Answers with the leader's page, if another replica leads.
pub(crate) async fn forward(
    State(forwarder): State<Forwarder>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    // A proxy in this pod connects over loopback, for readers from elsewhere.
    let is_of_this_machine = peer.ip().to_canonical().is_loopback() && !kai_page::is_forwarded(request.headers());
    let is_for_here = forwarder.slot.is_filled() || is_of_this_machine || request.headers().contains_key(FORWARDED_BY);
    if is_for_here {
        return next.run(request).await;
    }
    let Some(leader) = forwarder.leader().await else {
        return next.run(request).await;
    };
    match send(leader, peer, &forwarder.election.own_pod, request).await {
        Ok(response) => response,
        Err(error) => {
            tracing::debug!(%error, %leader, "the replica that leads does not answer");
            *forwarder.leader.lock().await = None;
            let text = "the replica that leads does not answer; try again\n";
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

async fn send(leader: SocketAddr, peer: SocketAddr, own_pod: &str, request: Request) -> anyhow::Result<Response> {
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(leader)).await??;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the answer: the sender is gone by then.
    tokio::spawn(connection);
    let (mut parts, body) = request.into_parts();
    parts.uri = path_of(&parts.uri)?;
    let has_length = parts.headers.contains_key(header::CONTENT_LENGTH);
    without_headers_of_connection(&mut parts.headers);
    parts
        .headers
        .append("x-forwarded-for", HeaderValue::from_str(&peer.ip().to_string())?);
    parts.headers.insert(FORWARDED_BY, HeaderValue::from_str(own_pod)?);
    // A request without a body stays one.
    let body = if has_length { body } else { Body::empty() };
    let answer = sender.send_request(Request::from_parts(parts, body));
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, answer).await??;
    let (mut parts, body) = answer.into_parts();
    without_headers_of_connection(&mut parts.headers);
    Ok(Response::from_parts(parts, Body::new(body)))
}

fn path_of(uri: &Uri) -> anyhow::Result<Uri> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    Ok(path.parse()?)
}

fn without_headers_of_connection(headers: &mut HeaderMap) {
    for name in OF_CONNECTION {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use axum::routing::get;
    use axum::{Extension, Json, Router};
    use serde_json::json;

    use super::*;
    use crate::roles::serve_page;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// An API server where the pod `kai-0` at 127.0.0.1 holds the lease.
    fn api_server() -> Client {
        let lease = || async { Json(json!({ "spec": { "holderIdentity": "kai-0_8a1f" } })) };
        let pod = || async { Json(json!({ "status": { "podIP": "127.0.0.1" } })) };
        Client::in_process(
            Router::new()
                .route(
                    "/apis/coordination.k8s.io/v1/namespaces/kai/leases/kai-scheduler",
                    get(lease),
                )
                .route("/api/v1/namespaces/kai/pods/kai-0", get(pod)),
        )
    }

    /// The page of a replica that does not lead, for readers at this address.
    fn follower(own_pod: &str, port: u16, peer: [u8; 4]) -> Router {
        let election = Election {
            client: api_server(),
            namespace: "kai".to_owned(),
            lease: "kai-scheduler".to_owned(),
            own_pod: own_pod.to_owned(),
            port,
            roles: Handle::current(),
        };
        let forwarder = Forwarder::new(election, PageSlot::default());
        Router::new()
            .fallback(|| async { "no view here" })
            .layer(axum::middleware::from_fn_with_state(forwarder, forward))
            .layer(Extension(ConnectInfo(SocketAddr::from((peer, 1)))))
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_reader_of_any_replica_sees_the_page_of_the_leader() {
        let leader = Router::new().fallback(|request: Request| async move {
            let (parts, body) = request.into_parts();
            let body = axum::body::to_bytes(body, 1_000).await.unwrap();
            let header = |name: &str| parts.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
            let told = json!({
                "to": format!("{} {}", parts.method, parts.uri),
                "body": String::from_utf8_lossy(&body),
                "host": header("host"), "cookie": header("cookie"), "for": header("x-forwarded-for"), "by": header("x-kai-forwarded-by"),
            });
            (StatusCode::CREATED, [("x-of-leader", "yes")], told.to_string())
        });
        let leader = serve_page("127.0.0.1:0", leader, "--ui-address").unwrap();
        let port = leader.address().unwrap().port();
        let serve = |router: Router| serve_page("127.0.0.1:0", router, "--ui-address").unwrap();
        let remote = serve(follower("kai-1", port, [10, 0, 0, 7]));
        let own = serve(follower("kai-0", port, [10, 0, 0, 7]));
        let here = serve(follower("kai-1", port, [127, 0, 0, 1]));
        let nowhere = serve(follower("kai-1", 1, [10, 0, 0, 7]));
        let check = move || {
            let (remote, here) = (remote.address().unwrap(), here.address().unwrap());
            let head = "host: kai-ui:8082\r\ncookie: kai-token=abc\r\nconnection: close\r\n";
            let answer = ask(remote, &format!("GET /gpus?cells=small HTTP/1.1\r\n{head}\r\n"));
            assert!(
                answer.starts_with("HTTP/1.1 201") && answer.contains("x-of-leader: yes"),
                "{answer}"
            );
            let told = |answer: &str| -> serde_json::Value {
                serde_json::from_str(&answer[answer.find('{').unwrap()..=answer.rfind('}').unwrap()]).unwrap()
            };
            let expect = json!({
                "to": "GET /gpus?cells=small", "body": "", "host": "kai-ui:8082", "cookie": "kai-token=abc",
                "for": "10.0.0.7", "by": "kai-1",
            });
            assert_eq!(told(&answer), expect);
            let post = format!("POST /login HTTP/1.1\r\n{head}content-length: 9\r\n\r\ntoken=abc");
            assert_eq!(told(&ask(remote, &post))["body"], "token=abc");

            let get = |address: SocketAddr, more: &str| ask(address, &format!("GET / HTTP/1.1\r\n{head}{more}\r\n"));
            let is_local = |answer: &str| answer.ends_with("no view here");
            // Not in a circle, not to itself, and not for readers on this machine, unless a proxy speaks for them.
            assert!(is_local(&get(remote, "x-kai-forwarded-by: kai-2\r\n")));
            assert!(is_local(&get(own.address().unwrap(), "")));
            assert!(is_local(&get(here, "")));
            assert!(!is_local(&get(here, "x-forwarded-for: 192.0.2.7\r\n")));
            let away = get(nowhere.address().unwrap(), "");
            assert!(
                away.starts_with("HTTP/1.1 503") && away.contains("does not answer"),
                "{away}"
            );
            drop(leader);
        };
        tokio::task::spawn_blocking(check).await.unwrap();
    }
}
