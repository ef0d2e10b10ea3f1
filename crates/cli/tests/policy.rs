//! The commands look at a cluster with the policy of its Config and its SchedulingShards.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use kai_cluster::{Client, ClientConfig, Target};
use serde_json::{Value, json};
use support::{Playground, command};

const NODES: &str = "nodes: [{ name: h100-0, gpus: 'h100:4' }]";

/// `kai all` in a process of its own.
struct Roles(Child);

impl Drop for Roles {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Roles {
    fn start(account: &Path) -> Roles {
        let flags = [
            "all",
            "--listen-address=",
            "--no-admission",
            "--leader-elect=false",
            "--plugin-server-port=0",
            "--ui-address=",
        ];
        let process = command(".", &flags)
            .arg("--kubeconfig")
            .arg(account)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Roles(process.unwrap())
    }
}

fn pod(name: &str, priority_class: &str) -> Value {
    json!({
        "metadata": { "name": name, "labels": { "kai.scheduler/queue": "default-queue", "priorityClassName": priority_class } },
        "spec": {
            "schedulerName": "kai-scheduler",
            "containers": [{ "name": "main", "image": "none", "resources": { "limits": { "nvidia.com/gpu": "4" } } }],
        },
    })
}

/// Creates a pod with all GPUs.
async fn create(client: &Client, name: &str, priority_class: &str) {
    let target = Target::of::<kai_api::Pod>("default", name);
    let body = pod(name, priority_class);
    client.create(target.resource, "default", body).await.unwrap();
}

/// Waits until the pod runs.
async fn running(client: &Client, name: &str) {
    let target = Target::of::<kai_api::Pod>("default", name);
    while client.get_value(target).await.unwrap().unwrap()["status"]["phase"] != "Running" {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until the scheduler has written why the pod has no node.
async fn reason(client: &Client, name: &str) -> String {
    let target = Target::of::<kai_api::Pod>("default", name);
    loop {
        let pod = client.get_value(target).await.unwrap().unwrap();
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        if let Some(condition) = conditions.find(|condition| condition["reason"] == "Unschedulable") {
            return condition["message"].as_str().unwrap().to_owned();
        }
        assert_ne!(pod["status"]["phase"], "Running", "the shard does not preempt");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What `kai explain` says about a pod, and what it warns of.
fn explained(kubeconfig: &Path, pod: &str, flags: &[&str]) -> (Value, String) {
    let output = command(".", &["explain", "pod", pod, "-o", "json"])
        .args(flags)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .output()
        .unwrap();
    let warnings = String::from_utf8(output.stderr).unwrap();
    let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {warnings}"));
    (value["pod"].clone(), warnings)
}

/// The shard has no action `preempt`: a pod of higher priority waits. With the default policy it would get the place of the other pod.
#[tokio::test]
async fn a_reason_is_that_of_the_shards_policy() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let kubeconfig = file("kubeconfig");
    std::fs::write(file("nodes.yaml"), NODES).unwrap();
    let nodes = file("nodes.yaml");
    let _playground = Playground::start(&["--without-roles", "--nodes", nodes.to_str().unwrap()], &kubeconfig);
    let client = Client::connect(&ClientConfig::Kubeconfig(kubeconfig.clone()))
        .await
        .unwrap();
    let shard =
        json!({ "metadata": { "name": "default" }, "spec": { "actions": { "preempt": { "enabled": false } } } });
    let config = json!({ "metadata": { "name": "kai-config" }, "spec": {} });
    for (target, body) in [
        (Target::of::<kai_api::SchedulingShard>("", "default"), shard),
        (Target::of::<kai_api::Config>("", "kai-config"), config),
    ] {
        client.create(target.resource, "", body).await.unwrap();
    }
    let account = std::fs::read_to_string(&kubeconfig).unwrap().replace(
        "user: {}",
        "user: {token: 'system:serviceaccount:kai-scheduler:kai-all'}",
    );
    std::fs::write(file("account"), account).unwrap();
    let _roles = Roles::start(&file("account"));

    create(&client, "train", "train").await;
    running(&client, "train").await;
    create(&client, "urgent", "build-preemptible").await;
    let condition = reason(&client, "urgent").await;
    let (told, warnings) = explained(&kubeconfig, "urgent", &[]);
    assert_eq!(
        (told["reason"].as_str(), warnings.as_str()),
        (Some(condition.as_str()), "")
    );

    // A typed configuration file comes first.
    std::fs::write(file("conf.yaml"), "actions: allocate, preempt\n").unwrap();
    let (told, _) = explained(
        &kubeconfig,
        "urgent",
        &["--scheduler-conf", file("conf.yaml").to_str().unwrap()],
    );
    assert_ne!(told["reason"].as_str(), Some(condition.as_str()), "{told}");

    // A node pool without a shard has no known policy.
    let (_, warnings) = explained(&kubeconfig, "urgent", &["--node-pool", "none"]);
    assert!(
        warnings.contains("no SchedulingShard has the node pool \"none\"") && warnings.contains("--scheduler-conf"),
        "{warnings}"
    );
}
