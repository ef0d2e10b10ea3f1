//! The playground as a user sees it: the program itself, and a stock kubectl.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use kai_api::Object as _;
use kai_cluster::{Client, ClientConfig, Part, Patch, Selection, Target};
use serde_json::{Value, json};
use support::{Playground, command};

/// The lines of the output in the README, in order; the README omits some lines of the real output.
fn readme_lines() -> Vec<&'static str> {
    let readme = include_str!("../../../README.md");
    let shown = readme
        .split("```console\n$ cargo run --release -- playground\n")
        .nth(1)
        .unwrap();
    let story = shown.split("The cluster is yours").next().unwrap();
    story
        .lines()
        .map(str::trim_end)
        // The page is not served by --once.
        .filter(|line| !line.is_empty() && !line.starts_with("The page of the cluster:"))
        .collect()
}

#[test]
fn the_story_comes_true_as_the_readme_shows_it() {
    let directory = tempfile::tempdir().unwrap();
    let run = command(".", &["playground", "--once"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{text}\n{}", String::from_utf8_lossy(&run.stderr));
    assert!(text.contains("everything went as it should"), "{text}");
    assert!(!directory.path().join("kai-playground.kubeconfig").exists());
    let mut printed = text.lines().map(str::trim_end);
    for shown in readme_lines() {
        let same = |line: &str| match shown.strip_suffix("...").filter(|_| shown.starts_with("  ok")) {
            Some(beginning) => line.starts_with(beginning),
            None => line == shown,
        };
        assert!(
            printed.any(same),
            "the README shows a line that is not printed there: {shown:?}\n{text}"
        );
    }
}

#[test]
fn the_story_does_not_run_on_other_nodes_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let docs = include_str!("../../../docs/playground.md");
    let nodes = docs
        .split("```yaml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    std::fs::write(directory.path().join("nodes.yaml"), nodes).unwrap();
    let run = command(".", &["playground", "--once", "--nodes", "nodes.yaml"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(2), "{text}");
    assert!(text.contains("the story, which needs the usual nodes"), "{text}");
    let kubeconfig = directory.path().join("kubeconfig");
    let nodes = directory.path().join("nodes.yaml");
    let _playground = Playground::start(&["--nodes", nodes.to_str().unwrap()], &kubeconfig);
    if let Some(kubectl) = Kubectl::find(&kubeconfig) {
        assert!(kubectl.run(&["get", "nodes"]).contains("big-2"));
    }
}

#[test]
fn an_existing_kubeconfig_is_given_back() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let own = r#"{"apiVersion":"v1","kind":"Config","clusters":[{"name":"work","cluster":{"server":"https://work"}}],"users":[],
        "contexts":[{"name":"work","context":{"cluster":"work","user":""}}],"current-context":"work"}"#;
    std::fs::write(&kubeconfig, own).unwrap();
    let read =
        || -> serde_json::Value { serde_saphyr::from_str(&std::fs::read_to_string(&kubeconfig).unwrap()).unwrap() };
    let before = read();
    let mut playground = Playground::start(&["--empty"], &kubeconfig);
    let during = read();
    assert_eq!(during["current-context"], "kai-playground");
    assert_eq!(during["clusters"][0], before["clusters"][0]);
    // As a terminal does for Ctrl-C.
    let id = playground.process.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    assert!(playground.process.wait().unwrap().success());
    assert_eq!(read(), before);
}

/// Runs the playground until it ends with an error, and checks its words.
#[track_caller]
fn check_refused(arguments: &[&str], words: &[&str]) {
    let run = command(".", &["playground", "--once"])
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(2), "{text}");
    for word in words {
        assert_eq!(text.matches(word).count(), 1, "{word}: {text}");
    }
}

#[test]
fn files_that_can_t_be_read_or_written_are_named_with_cause_and_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let nodes = command(".", &["playground", "--nodes", "/nonexist"]).output().unwrap();
    let text = String::from_utf8_lossy(&nodes.stderr);
    assert_eq!(nodes.status.code(), Some(2), "{text}");
    assert!(text.contains("reading /nonexist: No such file or directory"), "{text}");
    check_refused(
        &["--kubeconfig", &path("no/such/place")],
        &["writing the kubeconfig", "No such file or directory", "--kubeconfig"],
    );
    let pipe = path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    check_refused(&["--kubeconfig", &pipe], &["is a pipe", "--kubeconfig"]);
    let own = "{kind: Config, clusters: [{name: kai-playground, cluster: {server: 'https://work'}}]}";
    std::fs::write(path("own"), own).unwrap();
    check_refused(
        &["--kubeconfig", &path("own")],
        &["has an entry kai-playground", "--kubeconfig"],
    );
    assert_eq!(std::fs::read_to_string(path("own")).unwrap(), own);
}

/// A pod: its name, its node, and why it has none.
type Decided = (String, Option<String>, Option<String>);

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// The pods as the scheduler has decided, once nothing changes any more.
async fn settled(client: &Client) -> Vec<Decided> {
    let default = Selection {
        namespace: Some("default".to_owned()),
        ..Selection::default()
    };
    let mut before = None;
    loop {
        let pods = client.list_values(&kai_api::Pod::RESOURCE, &default).await.unwrap();
        let is_final = |pod: &Value| {
            let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            let refused = conditions
                .filter(|condition| condition["reason"] == "Unschedulable")
                .count()
                > 0;
            pod["metadata"]["deletionTimestamp"].is_null() && (pod["status"]["phase"] == "Running" || refused)
        };
        let all_final = pods.iter().all(is_final);
        let of = |pod: &Value| {
            let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            let mut refused =
                conditions.filter(|condition| condition["type"] == "PodScheduled" && condition["status"] == "False");
            let reason = refused.next_back().and_then(|condition| text(&condition["message"]));
            (
                text(&pod["metadata"]["name"]).unwrap(),
                text(&pod["spec"]["nodeName"]),
                reason,
            )
        };
        let mut now: Vec<Decided> = pods.iter().map(of).collect();
        now.sort();
        if all_final && before.as_ref() == Some(&now) {
            return now;
        }
        before = Some(now);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// The pods of a run of `kai simulate` with their status.
fn replayed(snapshot: &Path, further: &[&str]) -> Vec<(Decided, String)> {
    let run = command(".", &["simulate", "-o", "json"])
        .arg(snapshot)
        .args(further)
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let outcome: Value = serde_json::from_slice(&run.stdout).unwrap();
    let pods = outcome["pods"].as_array().unwrap().iter();
    let pods = pods.filter(|pod| pod["namespace"] == "default").map(|pod| {
        let decided = (text(&pod["name"]).unwrap(), text(&pod["node"]), text(&pod["reason"]));
        (decided, text(&pod["status"]).unwrap())
    });
    let mut pods: Vec<_> = pods.collect();
    pods.sort();
    pods
}

/// Nodes of all kinds, shared GPUs, MIG slices, replicas, unified memory, a gang and a reclaim.
#[tokio::test]
async fn a_snapshot_of_the_playground_decides_as_its_scheduler_did() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let _playground = Playground::start(&[], &kubeconfig);
    let client = Client::connect(&ClientConfig::Kubeconfig(kubeconfig.clone()))
        .await
        .unwrap();
    let take = |name: &str| {
        let file = directory.path().join(name);
        let run = command(".", &["snapshot", "--kubeconfig"])
            .arg(&kubeconfig)
            .arg(&file)
            .output()
            .unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        file
    };
    let before = settled(&client).await;
    let pods: Vec<Decided> = replayed(&take("story.zip"), &[])
        .into_iter()
        .map(|(pod, _)| pod)
        .collect();
    assert_eq!(pods, before, "pods keep their places and wait for the same reasons");
    assert!(before.len() > 20 && before.iter().any(|(_, node, _)| node.is_none()));

    // A pod that waits, and the policy that lets it start (docs/tour.md).
    let big = json!({
        "metadata": { "name": "big", "labels": { "kai.scheduler/queue": "red" } },
        "spec": {
            "schedulerName": "kai-scheduler", "nodeSelector": { "nvidia.com/gpu.family": "hopper" },
            "containers": [{ "name": "main", "image": "pytorch", "resources": { "limits": { "nvidia.com/gpu": "4" } } }],
        },
    });
    client.create(&kai_api::Pod::RESOURCE, "default", big).await.unwrap();
    let waits = settled(&client).await;
    let file = take("big.zip");
    let pods: Vec<Decided> = replayed(&file, &[]).into_iter().map(|(pod, _)| pod).collect();
    assert_eq!(pods, waits);
    let policy = [
        "--what-if",
        "queue research gpu.quota=8",
        "--what-if",
        "queue red gpu.quota=6",
    ];
    let foreseen = replayed(&file, &policy);
    // In this order, for only both of them let the pod start.
    for (queue, quota) in [("red", 6), ("research", 8)] {
        let patch = Patch::Merge(json!({ "spec": { "resources": { "gpu": { "quota": quota } } } }));
        let target = Target::of::<kai_api::Queue>("", queue);
        client.patch(target, Part::Object, patch).await.unwrap();
    }
    let runs = |pod: &Decided| pod.0 == "big" && pod.1.is_some();
    while !settled(&client).await.iter().any(runs) {}
    let leaving = foreseen.iter().filter(|(_, status)| status == "Releasing");
    let leaving: BTreeSet<String> = leaving.map(|((name, ..), _)| name.clone()).collect();
    let decisions = command(".", &["decisions", "-o", "json", "--kubeconfig"])
        .arg(&kubeconfig)
        .output()
        .unwrap();
    let decisions: Value = serde_json::from_slice(&decisions.stdout).unwrap();
    let evicted = decisions["decisions"].as_array().unwrap().iter();
    let for_big = evicted.filter(|told| told["kind"] == "evict" && told["beneficiary"]["workload"] == "Pod big");
    let evicted: BTreeSet<String> = for_big.map(|told| text(&told["pod"]).unwrap()).collect();
    // Its node is open: the victims leave several, and the pod starts where they have left first.
    assert_eq!(evicted, leaving);
    assert!(!leaving.is_empty());
}

struct Kubectl<'a> {
    program: String,
    kubeconfig: &'a Path,
}

impl Kubectl<'_> {
    /// The kubectl in `$KUBECTL`, or in PATH.
    fn find(kubeconfig: &Path) -> Option<Kubectl<'_>> {
        let program = std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".to_owned());
        if Command::new(&program).arg("version").arg("--client").output().is_err() {
            eprintln!("skipped: there is no kubectl; name one with KUBECTL");
            return None;
        }
        Some(Kubectl { program, kubeconfig })
    }

    /// Applies a manifest.
    fn apply(&self, manifest: &str) {
        let file = self.kubeconfig.with_file_name("manifest.yaml");
        std::fs::write(&file, manifest).unwrap();
        self.run(&["apply", "-f", file.to_str().unwrap()]);
    }

    fn run(&self, arguments: &[&str]) -> String {
        let run = Command::new(&self.program)
            .arg("--kubeconfig")
            .arg(self.kubeconfig)
            .args(arguments)
            .output()
            .unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&run.stdout),
            String::from_utf8_lossy(&run.stderr),
        );
        assert!(run.status.success(), "kubectl {arguments:?}\n{out}\n{err}");
        out.into_owned()
    }
}

/// Runs a block of commands in docs/operations.md with this kubectl.
fn run_block(kubectl: &Kubectl<'_>, name: &str) {
    let page = include_str!("../../../docs/operations.md");
    let start = format!("<!-- run by crates/cli/tests/playground.rs: {name} -->\n```sh\n");
    let block = page
        .split(&start)
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    let folder = kubectl.kubeconfig.parent().unwrap();
    let function = format!("kubectl() {{ command '{}' \"$@\"; }}\n", kubectl.program);
    let run = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &format!("{function}{block}")])
        .env("KUBECONFIG", kubectl.kubeconfig)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(
        run.status.success(),
        "{block}\n{}",
        String::from_utf8_lossy(&run.stderr)
    );
}

#[test]
fn queues_and_shards_come_back_from_the_backup_of_the_page() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let _playground = Playground::start(&["--empty"], &kubeconfig);
    let Some(kubectl) = Kubectl::find(&kubeconfig) else {
        return;
    };
    kubectl.apply(
        "\
apiVersion: kai.scheduler/v1
kind: SchedulingShard
metadata: {name: a100}
spec: {partitionLabelValue: a100}
---
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: parent}
spec: {resources: {gpu: {quota: 4}}}
---
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: child}
spec: {parentQueue: parent, resources: {gpu: {quota: 3}}}
",
    );
    let kinds = "queues.scheduling.run.ai,schedulingshards.kai.scheduler";
    let names = || kubectl.run(&["get", kinds, "-o", "name"]);
    let quota = || kubectl.run(&["get", "queue", "child", "-o", "jsonpath={.spec.resources.gpu.quota}"]);
    let before = (names(), quota());
    assert!(
        before.0.contains("/child") && before.0.contains("/a100") && before.1 == "3",
        "{before:?}"
    );
    run_block(&kubectl, "backup");
    for kind in kinds.split(',') {
        kubectl.run(&["delete", kind, "--all"]);
    }
    assert!(!names().contains("/child"));
    run_block(&kubectl, "restore");
    assert_eq!((names(), quota()), before);
}

#[test]
fn a_stock_kubectl_runs_two_pods_on_one_gpu() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let Some(kubectl) = Kubectl::find(&kubeconfig) else {
        return;
    };
    let _playground = Playground::start(&["--empty"], &kubeconfig);
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/half-a-gpu.yaml");
    kubectl.run(&["wait", "queue/default-queue", "--for=create", "--timeout=60s"]);
    assert!(kubectl.run(&["get", "nodes"]).contains("thor"));
    kubectl.run(&["apply", "-f", example]);
    kubectl.run(&[
        "wait",
        "pod/half-a",
        "pod/half-b",
        "--for=condition=Ready",
        "--timeout=60s",
    ]);
    let groups = kubectl.run(&[
        "get",
        "pods",
        "-o",
        "jsonpath={.items[*].metadata.labels.runai-gpu-group}",
    ]);
    let groups: Vec<&str> = groups.split_whitespace().collect();
    assert_eq!(groups.len(), 2);
    assert_eq!(groups[0], groups[1], "both are on one GPU");
    let described = kubectl.run(&["describe", "pod", "half-a"]);
    assert!(described.contains("Scheduled"), "{described}");
    let table = kubectl.run(&["get", "queues"]);
    assert!(
        table.contains("PRIORITY") && table.contains("default-parent-queue"),
        "{table}"
    );
    kubectl.run(&["delete", "-f", example, "--wait=true"]);
    kubectl.run(&[
        "wait",
        "pods",
        "--all",
        "-n",
        "kai-resource-reservation",
        "--for=delete",
        "--timeout=60s",
    ]);
}

#[test]
fn a_stock_kubectl_rolls_workloads_out_and_back() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let Some(kubectl) = Kubectl::find(&kubeconfig) else {
        return;
    };
    let _playground = Playground::start(&["--empty"], &kubeconfig);
    kubectl.run(&["wait", "queue/default-queue", "--for=create", "--timeout=60s"]);

    // A plain Deployment: no annotations, and a scheduler that does not run here, which the pods' events report.
    kubectl.run(&["create", "deployment", "plain", "--image=nginx", "--replicas=2"]);
    // A wait for pods by label ends at once as long as there are none.
    kubectl.run(&[
        "wait",
        "deployment/plain",
        "--for=jsonpath={.status.replicas}=2",
        "--timeout=60s",
    ]);
    let pods = kubectl.run(&["get", "pods", "-l", "app=plain", "-o", "name"]);
    let pod = pods.lines().next().unwrap().trim_start_matches("pod/");
    let of_pod = format!("involvedObject.name={pod},reason=FailedScheduling");
    kubectl.run(&[
        "wait",
        "event",
        "--field-selector",
        &of_pod,
        "--for=create",
        "--timeout=60s",
    ]);
    let described = kubectl.run(&["describe", "pod", pod]);
    assert!(
        described.contains("no scheduler named \"default-scheduler\" runs in this cluster"),
        "{described}"
    );

    let workload = |kind: &str, more: &str| {
        format!(
            "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: web}}\nspec:\n  selector: {{matchLabels: {{app: web}}}}\n{more}  template:\n    \
             metadata: {{labels: {{app: web, priorityClassName: train}}}}\n    spec:\n      schedulerName: kai-scheduler\n      \
             containers: [{{name: main, image: one}}]\n"
        )
    };
    for (kind, more) in [
        ("Deployment", "  replicas: 2\n"),
        ("StatefulSet", "  replicas: 2\n  serviceName: web\n"),
        ("DaemonSet", ""),
    ] {
        let name = format!("{kind}/web");
        let status = ["rollout", "status", &name, "--timeout=120s"];
        kubectl.apply(&workload(kind, more));
        kubectl.run(&status);
        kubectl.run(&["set", "image", &name, "main=two"]);
        kubectl.run(&status);
        let history = kubectl.run(&["rollout", "history", &name]);
        let numbers: Vec<&str> = history
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .collect();
        assert!(numbers.contains(&"1") && numbers.contains(&"2"), "{history}");
        kubectl.run(&["rollout", "undo", &name]);
        kubectl.run(&status);
        let images = kubectl.run(&["get", &name, "-o", "jsonpath={.spec.template.spec.containers[*].image}"]);
        assert_eq!(images, "one", "{kind}");
        kubectl.run(&["delete", &name, "--wait=true"]);
        kubectl.run(&["wait", "pod", "-l", "app=web", "--for=delete", "--timeout=60s"]);
    }

    kubectl.apply(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: work}\nspec:\n  template:\n    metadata:\n      annotations: \
         {sim.kai.scheduler/run-seconds: '0.5'}\n    spec:\n      schedulerName: kai-scheduler\n      restartPolicy: Never\n      \
         containers: [{name: main, image: one}]\n",
    );
    kubectl.run(&["wait", "job/work", "--for=condition=complete", "--timeout=60s"]);
    kubectl.apply(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec:\n  accessModes: [ReadWriteOnce]\n  \
         resources: {requests: {storage: 1Gi}}\n",
    );
    kubectl.run(&[
        "wait",
        "pvc/data",
        "--for=jsonpath={.status.phase}=Bound",
        "--timeout=60s",
    ]);
    kubectl.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: reader}\nspec:\n  schedulerName: kai-scheduler\n  containers: [{name: main, image: one}]\n  \
         volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]\n",
    );
    kubectl.run(&["wait", "pod/reader", "--for=condition=Ready", "--timeout=60s"]);
}
