//! `--scheduler auto`: the commands reach the debug endpoints of the pod that leads through an API server, which is a stub here. It speaks
//! the protocol of port-forwards over WebSocket as kube-apiserver and the kubelet do.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use support::command;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Message, Role};

const VIEW: &str = include_str!("data/top.json");
const PORT: u16 = 8081;

/// How the cluster answers.
#[derive(Clone, Copy)]
enum World {
    /// Pod `kai-scheduler-0` leads and answers.
    Leads,
    /// The lease has no holder.
    NobodyLeads,
    /// The caller may not forward ports.
    Refused,
    /// Nothing listens at the port.
    Closed,
}

async fn answer(State(world): State<World>, request: Request) -> Response {
    match request.uri().path() {
        "/apis/coordination.k8s.io/v1/namespaces/kai-scheduler/leases/kai-scheduler" => {
            let holder = match world {
                World::NobodyLeads => "",
                World::Leads | World::Refused | World::Closed => "kai-scheduler-0_8a1f",
            };
            Json(json!({ "metadata": { "name": "kai-scheduler" }, "spec": { "holderIdentity": holder } }))
                .into_response()
        }
        "/api/v1/namespaces/kai-scheduler/pods/kai-scheduler-0/portforward" => match world {
            World::Refused => status(
                403,
                "pods \"kai-scheduler-0\" is forbidden: User \"ann\" cannot get resource \"pods/portforward\"",
            ),
            World::Leads | World::NobodyLeads | World::Closed => forward(request, world),
        },
        // Neither Config nor shards.
        _ => status(404, "the server could not find the requested resource"),
    }
}

fn status(code: u16, message: &str) -> Response {
    let body: Value = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message, "reason": "" });
    (StatusCode::from_u16(code).unwrap(), Json(body)).into_response()
}

/// Switches to WebSocket, and hands the connection on.
fn forward(mut request: Request, world: World) -> Response {
    assert_eq!(
        request.uri().query().unwrap().trim_start_matches('&'),
        format!("ports={PORT}")
    );
    let offered = request.headers()[header::SEC_WEBSOCKET_PROTOCOL].to_str().unwrap();
    assert!(offered.contains("v4.channel.k8s.io"), "{offered}");
    let accept = derive_accept_key(request.headers()[header::SEC_WEBSOCKET_KEY].as_bytes());
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let stream = TokioIo::new(upgrade.await.unwrap());
        let stream = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
        serve(stream, world).await;
    });
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_ACCEPT, accept)
        .header(header::SEC_WEBSOCKET_PROTOCOL, "v4.channel.k8s.io")
        .body(Body::empty())
        .unwrap()
}

/// The kubelet's end: channel 0 has the bytes of the port, channel 1 its error. Each begins with the port.
async fn serve<S>(mut stream: WebSocketStream<S>, world: World)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let frame = |channel: u8, bytes: &[u8]| Message::binary([&[channel], bytes].concat());
    for channel in [0, 1] {
        stream.send(frame(channel, &PORT.to_le_bytes())).await.unwrap();
    }
    if let World::Closed = world {
        let told = "an error occurred forwarding 8081: connection refused";
        stream.send(frame(1, told.as_bytes())).await.unwrap();
        let _ = stream.close(None).await;
        return;
    }
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let Some(Ok(message)) = stream.next().await else { return };
        if let Message::Binary(bytes) = message {
            assert_eq!(bytes[0], 0, "channel");
            request.extend_from_slice(&bytes[1..]);
        }
    }
    let request = String::from_utf8(request).unwrap();
    let (status, body) = match request.starts_with("GET /view HTTP/1.1\r\n") {
        true => ("200 OK", VIEW),
        false => ("503 Service Unavailable", "this replica does not lead"),
    };
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    // In parts, as a network has them.
    for part in answer.as_bytes().chunks(10_000) {
        stream.send(frame(0, part)).await.unwrap();
    }
    while let Some(Ok(message)) = stream.next().await {
        if message.is_close() {
            return;
        }
    }
}

/// Runs kai on a cluster like this, and returns its output and errors.
async fn run(world: World, arguments: &'static [&'static str]) -> (String, String) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let router = axum::Router::new().fallback(answer).with_state(world);
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let config = format!(
        "{{apiVersion: v1, kind: Config, clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}], \
         contexts: [{{name: c, context: {{cluster: c, user: ''}}}}], users: [], current-context: c}}"
    );
    std::fs::write(&kubeconfig, config).unwrap();
    let output = tokio::task::spawn_blocking(move || {
        command(".", arguments)
            .args(["--scheduler", "auto", "--kubeconfig"])
            .arg(&kubeconfig)
            .output()
            .unwrap()
    });
    let output = output.await.unwrap();
    server.abort();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pod_that_leads_answers_through_the_api_server() {
    let (queues, errors) = run(World::Leads, &["queues"]).await;
    assert!(queues.contains("research") && errors.is_empty(), "{queues}{errors}");
    let (json, _) = run(World::Leads, &["gpus", "-o", "json"]).await;
    let (shown, known): (Value, Value) = (
        serde_json::from_str(&json).unwrap(),
        serde_json::from_str(VIEW).unwrap(),
    );
    assert_eq!(shown["time"], known["time"]);
    let (_, errors) = run(World::Leads, &["decisions"]).await;
    assert!(
        errors.contains("the scheduler in Pod kai-scheduler/kai-scheduler-0 can't tell: this replica does not lead"),
        "{errors}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_the_way_is_named_with_a_remedy() {
    for (world, words) in [
        (
            World::NobodyLeads,
            [
                "nobody holds the lease kai-scheduler of namespace kai-scheduler",
                "--scheduler-namespace",
            ],
        ),
        (
            World::Refused,
            [
                "User \"ann\" cannot get",
                "the rights get and create on pods/portforward of namespace kai-scheduler",
            ],
        ),
        (
            World::Closed,
            ["port 8081 of Pod kai-scheduler/kai-scheduler-0", "connection refused"],
        ),
    ] {
        let (output, errors) = run(world, &["queues"]).await;
        assert_eq!(output, "");
        for word in words {
            assert!(errors.contains(word), "{word}: {errors}");
        }
    }
}
