//! Snapshots of a running cluster, replayed by `kai simulate`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use kai_cli::roles::RoleSettings;
use kai_embedded::kubelet::NodeTemplate;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::manifest::{PodManifest, queue};
use crate::harness::{Cluster, scenario_with};

/// The body of the scheduler's answer to `/get-snapshot`.
async fn snapshot(address: SocketAddr) -> Vec<u8> {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = "GET /get-snapshot HTTP/1.0\r\nHost: scheduler\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(
        answer.starts_with(b"HTTP/1.0 200"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    let body = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    answer.split_off(body)
}

/// The pods of a run of `kai simulate`: name, node and reason. Warnings make it fail.
fn replayed(snapshot: &Path, further: &[&str]) -> Vec<(String, Option<String>, Option<String>)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kai"));
    command
        .args(["simulate", "--strict", "-o", "json"])
        .arg(snapshot)
        .args(further);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let pods = outcome["pods"].as_array().unwrap().iter();
    let pods = pods.filter(|pod| pod["namespace"] == "default");
    pods.map(|pod| (text(&pod["name"]).unwrap(), text(&pod["node"]), text(&pod["reason"])))
        .collect()
}

/// The same of the cluster.
fn decided(cluster: &Cluster) -> Vec<(String, Option<String>, Option<String>)> {
    let of = |pod: &Arc<kai_api::Pod>| {
        let name = pod.metadata.plain_name().to_owned();
        (name.clone(), cluster.node_of(&name), cluster.reason(&name))
    };
    cluster.pods().iter().map(of).collect()
}

/// The snapshot without the names of the cluster decides the same, and has none of them.
fn check_redacted(snapshot: &Path, decided: &[(String, Option<String>, Option<String>)]) {
    let redacted = snapshot.with_file_name("redacted.zip");
    let output = Command::new(env!("CARGO_BIN_EXE_kai"))
        .args(["simulate", "-o", "json", "--redact"])
        .args([&redacted, snapshot])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let new_name = |class: &str, name: &str| {
        let names = told["names"].as_array().unwrap();
        let found = names
            .iter()
            .find(|found| found["class"] == class && found["name"] == name);
        found.unwrap()["redacted"].as_str().unwrap().to_owned()
    };
    let renamed = |(pod, node, _): &(String, Option<String>, Option<String>)| {
        let node = node.as_ref().map(|node| new_name("node", node));
        (new_name("pod", pod), node)
    };
    let mut expected: Vec<_> = decided.iter().map(renamed).collect();
    let replayed = replayed(&redacted, &[]).into_iter();
    let mut replayed: Vec<_> = replayed.map(|(pod, node, _)| (pod, node)).collect();
    expected.sort();
    replayed.sort();
    assert_eq!(replayed, expected);
    let json = redacted.with_extension("json");
    let output = Command::new(env!("CARGO_BIN_EXE_kai"))
        .args(["simulate", "--redact"])
        .args([&json, snapshot])
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = std::fs::read_to_string(json).unwrap();
    for name in ["half-0", "limited", "unmapped", "company", "node-a", "node-b"] {
        assert!(
            !text.contains(&format!("\"{name}")),
            "{name} is in the redacted snapshot"
        );
    }
}

/// Pods that share GPUs, a queue at its limit, a missing ConfigMap, and a pod that no node fits.
async fn populate(cluster: &Cluster) {
    cluster.create(queue("company", None, -1.0, -1.0)).await;
    cluster.create(queue("red", Some("company"), 2.0, 3.0)).await;
    cluster.create(queue("blue", Some("company"), 2.0, -1.0)).await;
    for number in 0..2 {
        let pod = PodManifest::new(&format!("half-{number}")).queue("red").fraction("0.5");
        cluster.create(pod.build()).await;
    }
    cluster
        .create(PodManifest::new("two").queue("red").gpus(2).build())
        .await;
    cluster.until_running(3).await;
    cluster
        .create(PodManifest::new("limited").queue("red").gpus(1).build())
        .await;
    cluster
        .create(PodManifest::new("large").queue("blue").gpus(7).build())
        .await;
    let mut unmapped = PodManifest::new("unmapped").queue("blue").gpus(1).build();
    unmapped["spec"]["containers"][0]["envFrom"] = json!([{ "configMapRef": { "name": "gone" } }]);
    cluster.create(unmapped).await;
    for name in ["limited", "large", "unmapped"] {
        cluster.until_waiting(name, "").await;
    }
    cluster.settle().await;
}

#[test]
fn a_snapshot_decides_as_the_scheduler_did() {
    let mut settings = RoleSettings::every_role().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    settings.debug_address = Some(port);
    let nodes = [
        NodeTemplate::new("node-a", "h100:4"),
        NodeTemplate::new("node-b", "h100:2"),
    ];
    scenario_with(settings, &nodes, async |cluster| {
        populate(cluster).await;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("snapshot.zip");
        std::fs::write(&file, snapshot(port).await).unwrap();
        let (before, now) = (decided(cluster), replayed(&file, &[]));
        assert_eq!(now, before, "pods keep their nodes and wait for the same reasons");
        assert_eq!(before.iter().filter(|(_, node, _)| node.is_some()).count(), 3);
        // The comparison can fail: without the queue's limit, a pod less waits.
        let unlimited = replayed(&file, &["--what-if", "queue red gpu.limit=-1"]);
        assert_eq!(unlimited.iter().filter(|(_, node, _)| node.is_some()).count(), 4);
        check_redacted(&file, &before);
        // The next decision of the scheduler, and of the simulation with the same pod.
        let next = PodManifest::new("next").queue("blue").gpus(2).build();
        let manifest = directory.path().join("next.json");
        std::fs::write(&manifest, next.to_string()).unwrap();
        cluster.create(next).await;
        cluster.until("next runs", |cluster| cluster.runs("next")).await;
        let foreseen = replayed(&file, &[manifest.to_str().unwrap()]);
        let node = foreseen.iter().find(|(name, ..)| name == "next").unwrap().1.clone();
        assert_eq!(node, cluster.node_of("next"));
        assert!(node.is_some());
    });
}
