//! The commands that show a cluster, against a playground: whole runs at 80 columns, and the scheduler's own words for comparison.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use kai_cluster::{Client, ClientConfig, Target};
use serde_json::{Value, json};
use support::{Playground, command, kai_in};

/// A cluster with two nodes of four GPUs.
const NODES: &str = "
nodes:
  - name: h100-0
    gpus: h100:4
  - name: h100-1
    gpus: h100:4
";

/// Runs kai at 80 columns. Ages are replaced: they depend on the machine.
fn run(kubeconfig: &Path, arguments: &[&str]) -> String {
    let output = command(".", arguments)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .env("COLUMNS", "80")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    let lines = text.lines().map(|line| {
        let words = line
            .split(' ')
            .map(|word| match word.len() == 8 && word.matches(':').count() == 2 {
                true => "12:34:56",
                false => word,
            });
        let words = words.map(|word| match word.strip_suffix('s') {
            Some(seconds) if !seconds.is_empty() && seconds.bytes().all(|byte| byte.is_ascii_digit()) => {
                format!("{:>width$}", "1s", width = word.len())
            }
            _ => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    });
    format!(
        "$ kai {}\n{}\n",
        arguments.join(" "),
        lines.collect::<Vec<_>>().join("\n")
    )
}

fn pod(name: &str, annotations: Value, gpus: u32) -> Value {
    let mut container = json!({ "name": "main", "image": "none" });
    if gpus > 0 {
        container["resources"] = json!({ "limits": { "nvidia.com/gpu": gpus.to_string() } });
    }
    json!({
        "metadata": { "name": name, "annotations": annotations, "labels": { "kai.scheduler/queue": "default-queue" } },
        "spec": { "schedulerName": "kai-scheduler", "containers": [container] },
    })
}

/// Creates a pod and waits until it runs or the scheduler has written why it does not.
async fn create(client: &Client, pod: Value) -> Value {
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    let target = Target::of::<kai_api::Pod>("default", &name);
    client.create(target.resource, "default", pod).await.unwrap();
    loop {
        let pod = client.get_value(target).await.unwrap().unwrap();
        let waits = pod["status"]["conditions"].as_array().into_iter().flatten();
        let reason = waits.filter(|condition| condition["reason"] == "Unschedulable").count();
        if pod["status"]["phase"] == "Running" || reason > 0 {
            return pod;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn the_commands_show_a_cluster_and_say_what_the_scheduler_says() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let nodes = directory.path().join("nodes.yaml");
    std::fs::write(&nodes, NODES).unwrap();
    let _playground = Playground::start(&["--nodes", nodes.to_str().unwrap()], &kubeconfig);
    let client = Client::connect(&ClientConfig::Kubeconfig(kubeconfig.clone()))
        .await
        .unwrap();
    create(&client, pod("train", json!({}), 4)).await;
    create(&client, pod("llm", json!({ "gpu-fraction": "0.5" }), 0)).await;
    create(&client, pod("notebook", json!({ "gpu-memory": "10000" }), 0)).await;
    let big = create(&client, pod("big", json!({}), 4)).await;

    // Reasons: the condition that the scheduler wrote, and the engine in the command's process.
    let conditions = big["status"]["conditions"].as_array().unwrap();
    let written = conditions
        .iter()
        .find(|condition| condition["type"] == "PodScheduled")
        .unwrap();
    let explained = command(".", &["explain", "pod", "big", "-o", "json", "--kubeconfig"])
        .arg(&kubeconfig)
        .output()
        .unwrap();
    let explained: Value = serde_json::from_slice(&explained.stdout).unwrap();
    assert_eq!(explained["pod"]["reason"], written["message"]);
    assert_eq!(explained["pod"]["reasonSource"], "engine");
    assert_eq!(explained["gang"]["workloadName"], "big");

    let show = |arguments: &[&str]| run(&kubeconfig, arguments);
    insta::assert_snapshot!("gpus", show(&["gpus"]));
    insta::assert_snapshot!("queues", show(&["queues"]));
    insta::assert_snapshot!("pending", show(&["pending"]));
    insta::assert_snapshot!("explain_queue", show(&["explain", "queue", "default-queue"]));
    insta::assert_snapshot!("explain_node", show(&["explain", "node", "h100-1"]));
    insta::assert_snapshot!("queues_wide", show(&["queues", "-o", "wide"]));
    let uid = big["metadata"]["uid"].as_str().unwrap();
    let text = show(&["explain", "pod", "big"]).replace(uid, "32f81801-a1a8-4901-a688-4eac5ada36da");
    insta::assert_snapshot!("explain_pod", text);
    assert!(text.contains("WHAT WOULD HELP"), "{text}");
    assert!(
        !explained["explanation"]["remedies"].as_array().unwrap().is_empty(),
        "{explained}"
    );
    assert!(show(&["explain", "podgroup", "big"]).contains("WHAT WOULD HELP"));
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(show(&["explain", "podgroup", "train"]).contains("Pod default/train"));
    assert!(show(&["pending", "-n", "other"]).ends_with("nothing waits\n"));
    assert!(show(&["gpus", "nowhere"]).contains("there is no node nowhere"));
    assert!(show(&["explain", "queue", "none"]).contains("there is no queue none"));
    // What may have been meant.
    assert!(show(&["explain", "queue", "defualt-queue"]).contains("did you mean default-queue?"));
    assert!(show(&["explain", "node", "h100-3"]).contains("did you mean h100-"));
    assert!(show(&["explain", "pod", "trian"]).contains("did you mean train?"));
    assert!(show(&["explain", "podgroup", "bgi"]).contains("no workload bgi"));
    assert!(show(&["explain", "podgroup", "notebok"]).contains("did you mean notebook?"));
    // The last line counts the nodes that were named.
    assert!(show(&["gpus", "h100-1"]).ends_with("4 GPUs, 1 shared, 3 idle\n"));
    // Every answer for programs says which version, when, and what is missing.
    for arguments in [
        ["explain", "pod", "big"],
        ["explain", "podgroup", "big"],
        ["explain", "queue", "default-queue"],
        ["explain", "node", "h100-1"],
        ["gpus", "h100-0", "h100-1"],
        ["queues", "--node-pool", ""],
        ["pending", "-q", "default-queue"],
        ["decisions", "-n", "default"],
    ] {
        let output = command(".", &arguments)
            .args(["-o", "json", "--kubeconfig"])
            .arg(&kubeconfig)
            .output()
            .unwrap();
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        let told = (&value["version"], &value["missing"], value["time"].is_string());
        assert_eq!(told, (&json!("v1"), &json!([]), true), "{arguments:?}");
    }
    assert!(show(&["queues", "--context", "none"]).contains("none"));

    let yaml = command(".", &["gpus", "-o", "yaml", "--kubeconfig"])
        .arg(&kubeconfig)
        .output()
        .unwrap();
    let yaml: Value = serde_saphyr::from_str(&String::from_utf8(yaml.stdout).unwrap()).unwrap();
    assert_eq!(yaml["version"], "v1");
    assert_eq!(yaml["nodes"][1]["gpus"][0]["state"], "shared");

    // Decisions, from the Events that the scheduler wrote; they come after the pods run.
    let decisions = || {
        let output = command(".", &["decisions", "-o", "json", "--kubeconfig"])
            .arg(&kubeconfig)
            .output()
            .unwrap();
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        value["decisions"].as_array().unwrap().clone()
    };
    while decisions().len() < 3 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let told = decisions();
    let told: Vec<(&str, &str)> = told
        .iter()
        .map(|decision| {
            (
                decision["kind"].as_str().unwrap(),
                decision["workload"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [("bind", "Pod notebook"), ("bind", "Pod llm"), ("bind", "Pod train")]
    );
    insta::assert_snapshot!("decisions", show(&["decisions"]));
    let wide = show(&["decisions", "-o", "wide"]);
    assert_eq!(
        wide.matches("allocate").count(),
        3,
        "the Events say by which action: {wide}"
    );
    assert!(show(&["decisions", "-n", "other"]).ends_with("no decisions in the last hour\n"));
    follow_decisions(&kubeconfig, &client).await;

    // The snapshot is what `/get-snapshot` answers.
    let zip = directory.path().join("snapshot.zip");
    let text = show(&["snapshot", zip.to_str().unwrap()]);
    assert!(text.contains("look at it before you pass it on"), "{text}");
    assert!(std::fs::read(&zip).unwrap().starts_with(b"PK"));
}

/// `kai decisions -w` tells what was decided, and then what is decided.
async fn follow_decisions(kubeconfig: &Path, client: &Client) {
    let mut following = command(".", &["decisions", "--watch", "--kubeconfig"])
        .arg(kubeconfig)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let past: Vec<String> = lines.by_ref().take(3).collect();
    assert!(past[0].contains("default/train to h100-"), "{past:?}");
    create(client, pod("second", json!({ "gpu-fraction": "0.5" }), 0)).await;
    let next = lines.next().unwrap();
    assert!(
        next.contains("bind") && next.contains("default/second to h100-1"),
        "{next}"
    );
    following.kill().unwrap();
    following.wait().unwrap();
}

#[test]
fn without_a_cluster_the_message_helps() {
    insta::assert_snapshot!(
        "no_kubeconfig",
        kai_in(".", &["pending", "--kubeconfig", "/nonexistent/config"])
    );
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let config = "{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], \
        contexts: [{name: c, context: {cluster: c, user: ''}}], users: [], current-context: c}";
    std::fs::write(&kubeconfig, config).unwrap();
    let text = run(&kubeconfig, &["gpus"]);
    assert!(
        text.contains("the cluster at http://127.0.0.1:1/ does not answer"),
        "{text}"
    );
    assert!(text.contains("`kai playground` starts one"), "{text}");
}

#[test]
fn version_completions_and_manual_pages_are_written() {
    assert!(kai_in(".", &["version"]).contains("target:  "));
    let json = command(".", &["version", "-o", "json"]).output().unwrap();
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    for shell in ["bash", "zsh", "fish"] {
        let script = kai_in(".", &["completions", shell]);
        assert!(script.contains("pending") && script.contains("playground"), "{shell}");
    }
    let directory = tempfile::tempdir().unwrap();
    kai_in(".", &["man", directory.path().to_str().unwrap()]);
    let page = std::fs::read_to_string(directory.path().join("kai-pending.1")).unwrap();
    assert!(page.contains("gangs that wait"), "{page}");
    let text = kai_in(".", &["man", "/nonexistent"]);
    assert!(text.contains("name an existing directory"), "{text}");
}

#[test]
fn as_a_plugin_of_kubectl_the_usage_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let plugin = directory.path().join("kubectl-kai");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_kai"), &plugin).unwrap();
    let output = std::process::Command::new(&plugin)
        .args(["pending", "--help"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Usage: kubectl kai pending"), "{text}");
}

#[test]
fn the_documentation_shows_real_output() {
    let docs = include_str!("../../../docs/cli.md");
    let snapshots = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
    for name in [
        "gpus",
        "queues",
        "pending",
        "explain_pod",
        "explain_queue",
        "explain_node",
        "decisions",
    ] {
        let text = std::fs::read_to_string(snapshots.join(format!("inspect__{name}.snap"))).unwrap();
        let output = text.splitn(3, "---\n").nth(2).unwrap().trim_end();
        assert!(
            docs.contains(output),
            "docs/cli.md does not show the snapshot {name}:\n{output}"
        );
    }
}
