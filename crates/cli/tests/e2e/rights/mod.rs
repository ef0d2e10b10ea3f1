//! The node agent and the endpoints of the roles, with the permissions of the manifests, on a real API server; and the calls that each
//! account of kai must not make.

mod accounts;
mod page;
mod registration;
mod tokens;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kai_api::{Resource, Scope, keys};
use kai_cluster::{Deletion, NodeEvent, PodChange, Severity, Target};
use kai_embedded::kubelet::NodeTemplate;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio_stream::StreamExt;

use crate::harness::manifest::PodManifest;
use crate::harness::{Cluster, Kube, User, scenario};

/// Makes all calls of `kai_node::agent` in the same way. A call that the manifests do not allow fails.
#[test]
fn the_node_agent_may_do_what_it_does_and_no_more() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        let Some(kube) = cluster.kube() else { return };
        let agent = tokens::agent_of(cluster, "node").await.0;
        let labels = BTreeMap::from([("example.com/of-the-agent".to_owned(), "yes".to_owned())]);
        agent.apply_node_labels("node", "e2e", &labels).await.unwrap();
        assert_eq!(
            agent.node_labels("node").await.unwrap()["example.com/of-the-agent"],
            "yes"
        );
        agent.apply_node_labels("node", "e2e", &BTreeMap::new()).await.unwrap();
        assert!(
            !agent
                .node_labels("node")
                .await
                .unwrap()
                .contains_key("example.com/of-the-agent")
        );
        let mut watched = pin!(agent.watch_node_labels("node"));
        let first = tokio::time::timeout(Duration::from_secs(30), watched.next())
            .await
            .unwrap();
        assert!(first.unwrap().contains_key("kubernetes.io/hostname"));
        tokens::say_health(&User(agent.clone()), "node").await.unwrap();
        let event = NodeEvent {
            severity: Severity::Normal,
            reason: "GPURecovered".to_owned(),
            message: "it is back".to_owned(),
        };
        agent.record_node_event("node", "e2e", &event).await.unwrap();
        let handler = agent.runtime_class_handler(keys::RUNTIME_CLASS).await.unwrap();
        assert_eq!(handler.as_deref(), Some("nvidia"));

        // The reservation pod that the binder creates for a half, from the agent's watch.
        cluster.create(PodManifest::new("half").fraction("0.5").build()).await;
        cluster.until_only_running(&["half"]).await;
        let mut changes = pin!(agent.watch_pods(keys::RESERVATION, "node"));
        let seen = async {
            loop {
                if let Some(PodChange::Seen(pod)) = changes.next().await {
                    return pod;
                }
            }
        };
        let pod = tokio::time::timeout(Duration::from_secs(30), seen).await.unwrap();
        let gpu = pod.annotations[keys::RESERVED_GPU].clone();
        agent
            .annotate_pod(keys::RESERVATION, &pod, keys::RESERVED_GPU, &gpu)
            .await
            .unwrap();

        let may = async |group: &str, resource: &str, verb: &str, namespace: &str| {
            let call = json!({ "group": group, "resource": resource, "verb": verb, "namespace": namespace });
            may(kube, tokens::NODE_AGENT, call).await
        };
        assert!(
            may("", "pods", "list", keys::RESERVATION).await,
            "the question is asked right"
        );
        for (group, resource, verb, namespace) in [
            ("", "pods", "list", "default"),
            ("", "pods", "patch", "default"),
            ("", "pods", "patch", keys::RESERVATION),
            ("", "pods", "delete", keys::RESERVATION),
            ("", "secrets", "get", "default"),
            ("", "configmaps", "get", "default"),
            ("", "nodes", "delete", ""),
            ("scheduling.run.ai", "bindrequests", "create", "default"),
        ] {
            assert!(
                !may(group, resource, verb, namespace).await,
                "{verb} {resource} in {namespace}"
            );
        }
    });
}

/// Whether RBAC allows a call. It asks for a review instead of making the call: a forbidden call in the audit log would fail the suite.
async fn may(kube: &Kube, account: &str, call: Value) -> bool {
    let resource = kai_api::Resource::new(
        "authorization.k8s.io",
        "v1",
        "SubjectAccessReview",
        "subjectaccessreviews",
        kai_api::Scope::Cluster,
    );
    let review = json!({ "spec": { "user": account, "resourceAttributes": call } });
    kube.client.create(&resource, "", review).await.unwrap()["status"]["allowed"] == true
}

/// A role as a process, killed on drop.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// An address of this machine that other machines can reach.
fn outward() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // This sends nothing: the kernel only chooses a route.
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// Status code and body; `None` if no process listens.
fn get(address: SocketAddr, path: &str, token: Option<&str>) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok()?;
    let authorization = token
        .map(|token| format!("Authorization: Bearer {token}\r\n"))
        .unwrap_or_default();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\n{authorization}Connection: close\r\n\r\n"
    )
    .ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let code = answer.split(' ').nth(1)?.parse().ok()?;
    Some((code, answer))
}

/// The scheduler as a process with the account of the manifests. The roles of the scenario end, so that the process becomes the leader; else
/// it would have no data.
async fn leading_scheduler(cluster: &Cluster, listen: &[String]) -> (Program, NamedTempFile) {
    let kube = cluster.kube().expect("a process connects to a real API server");
    cluster.kill_roles().await;
    let lease = Resource::new("coordination.k8s.io", "v1", "Lease", "leases", Scope::Namespaced);
    let target = Target {
        resource: &lease,
        namespace: "kai-scheduler",
        name: "kai-scheduler",
    };
    cluster.client.delete(target, &Deletion::default()).await.unwrap();
    let config = kube.kubeconfig_with(&json!({ "as": "system:serviceaccount:kai-scheduler:scheduler" }));
    let program = Command::new(env!("CARGO_BIN_EXE_kai"))
        .args(["scheduler", "--leader-elect"])
        .args(listen)
        .arg("--kubeconfig")
        .arg(config.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    (Program(program.unwrap()), config)
}

#[test]
fn metrics_are_for_accounts_that_may_and_answers_for_this_machine() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        let Some(kube) = cluster.kube() else { return };
        let tokens =
            std::env::var("KAI_E2E_TOKENS").expect("KAI_E2E_TOKENS has a token of the tenant and one of a reader");
        let (tenant, reader) = tokens.split_once(',').unwrap();
        kube.apply(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": "e2e-metrics-reader" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kai-metrics-reader" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader" }],
        }))
        .await;
        let (metrics, debug_port) = (free_port(), free_port());
        let listen = [
            format!("--listen-address=:{metrics}"),
            format!("--plugin-server-port={debug_port}"),
        ];
        let _running = leading_scheduler(cluster, &listen).await;
        let here = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let code = |answer: Option<(u16, String)>| answer.map(|(code, _)| code);
        cluster
            .until("the program serves", |_| {
                code(get(here(metrics), "/livez", None)) == Some(200)
            })
            .await;
        let (_, text) = get(here(metrics), "/metrics", None).unwrap();
        assert!(text.contains("kai_") || text.contains("# EOF"), "{text}");
        cluster
            .until("the program answers", |_| {
                code(get(here(debug_port), "/get-snapshot", None)) == Some(200)
            })
            .await;

        let outward = outward().expect("this machine has an address besides its loopback");
        let from_afar = |port: u16, path: &str, token: Option<&str>| code(get((outward, port).into(), path, token));
        assert_eq!(
            from_afar(metrics, "/livez", None),
            Some(200),
            "kubelets ask without a token"
        );
        assert_eq!(from_afar(metrics, "/metrics", None), Some(401));
        assert_eq!(from_afar(metrics, "/metrics", Some("nonsense")), Some(401));
        assert_eq!(from_afar(metrics, "/metrics", Some(tenant)), Some(403));
        assert_eq!(from_afar(metrics, "/metrics", Some(reader)), Some(200));
        for path in ["/get-snapshot", "/explain", "/"] {
            assert_eq!(
                from_afar(debug_port, path, Some(reader)),
                None,
                "{path}: nobody listens there"
            );
            assert_eq!(from_afar(metrics, path, Some(reader)), Some(404), "{path}");
        }
        cluster.start_roles();
    });
}
