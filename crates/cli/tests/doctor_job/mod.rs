//! `kai doctor NODE` on an API server in the test: the Job controller is the embedded one, and the test plays the kubelet.
#![allow(clippy::unwrap_used)]

use std::process::Output;

use kai_cluster::{Client, Clock, Context};
use kai_embedded::server::{EventType, Listening, Options, Patch, Selector, Server, StoreHandle};
use kai_embedded::workloads::Workloads;
use serde_json::{Value, json};

use crate::support::command;

const NAMESPACE: &str = "kai-scheduler";

struct Cluster {
    runtime: tokio::runtime::Runtime,
    server: Server,
    listening: Listening,
}

/// A cluster with the node `jetson-1` and the node agent of the chart.
fn cluster() -> Cluster {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = Server::new(Options::default());
    let listening = runtime.block_on(server.listen("127.0.0.1:0".parse().unwrap())).unwrap();
    kai_cli::embedded::install(&server).unwrap();
    let store = server.store();
    for object in [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }),
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": "jetson-1", "labels": { "nvidia.com/gpu.count": "1", "kubernetes.io/os": "linux" } },
        }),
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": { "name": "kai-node-agent", "namespace": NAMESPACE },
            "spec": {
                "selector": { "matchLabels": { "app": "kai-node-agent" } },
                "template": {
                    "metadata": { "labels": { "app": "kai-node-agent" } },
                    "spec": { "containers": [{
                        "name": "kai-node-agent", "image": "registry/kai:1", "imagePullPolicy": "Never",
                        "args": ["node-agent", "--driver=tegra"],
                    }] },
                },
            },
        }),
    ] {
        let _ = store.create(object);
    }
    Cluster {
        runtime,
        server,
        listening,
    }
}

impl Cluster {
    fn store(&self) -> StoreHandle {
        self.server.store()
    }

    /// Starts the Job controller.
    fn start_controllers(&self) {
        let service = self.server.service();
        self.runtime.spawn(async move {
            let client = Client::in_process(service);
            Workloads::new(&Context::new(client, Clock::System)).run().await;
        });
    }

    /// Gives this status to each pod of the doctor, as a kubelet would.
    fn start_kubelet(&self, status: Value) {
        let store = self.store();
        let mut pods = store.watch("pods", NAMESPACE, Selector::default(), Some(0)).unwrap();
        self.runtime.spawn(async move {
            while let Ok(event) = pods.next().await {
                let pod = event.object;
                if pod["metadata"]["labels"]["app"] == "kai-doctor" && pod["status"]["phase"] == "Pending" {
                    let name = pod["metadata"]["name"].as_str().unwrap();
                    let patch = Patch::Merge(json!({ "status": status }));
                    let _ = store.patch_status("pods", NAMESPACE, name, &patch);
                }
            }
        });
    }

    /// Records an event about each Job, as the Job controller does if the API server refuses a pod.
    fn refuse_pods(&self, message: &'static str) {
        let store = self.store();
        let mut jobs = store
            .watch("jobs.batch", NAMESPACE, Selector::default(), Some(0))
            .unwrap();
        self.runtime.spawn(async move {
            while let Ok(event) = jobs.next().await {
                let name = event.object["metadata"]["name"].as_str().unwrap().to_owned();
                let _ = store.create(json!({
                    "apiVersion": "v1", "kind": "Event",
                    "metadata": { "name": format!("{name}.1"), "namespace": NAMESPACE },
                    "involvedObject": { "apiVersion": "batch/v1", "kind": "Job", "namespace": NAMESPACE, "name": name },
                    "type": "Warning", "reason": "FailedCreate", "message": message,
                }));
            }
        });
    }

    fn kai(&self, arguments: &[&str]) -> Output {
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        std::fs::write(&kubeconfig, self.listening.kubeconfig(None)).unwrap();
        let mut command = command(".", arguments);
        command.arg("--kubeconfig").arg(&kubeconfig).output().unwrap()
    }

    fn count(&self, resource: &str) -> usize {
        let page = self.store().list(resource, NAMESPACE, &Selector::default()).unwrap();
        page.objects.len()
    }
}

fn texts(output: &Output) -> (&str, &str) {
    let text = |bytes| std::str::from_utf8(bytes).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_report_of_a_node_is_the_log_of_a_job_there() {
    let cluster = cluster();
    cluster.start_controllers();
    let terminated = json!({ "terminated": { "exitCode": 1, "reason": "Error" } });
    cluster.start_kubelet(json!({
        "phase": "Failed",
        "containerStatuses": [{
            "name": "kai-doctor", "image": "registry/kai:1", "imageID": "", "ready": false, "restartCount": 0, "state": terminated,
        }],
    }));
    let store = cluster.store();
    let of_doctor = store.selector("pods", "app=kai-doctor", "").unwrap();
    let mut pods = store.watch("pods", NAMESPACE, of_doctor, Some(0)).unwrap();
    let output = cluster.kai(&["doctor", "jetson-1", "--image", "llm:1"]);
    let (stdout, stderr) = texts(&output);
    assert_eq!((output.status.code(), stderr), (Some(1), ""), "the doctor's own code");
    assert_eq!(stdout, "this pod runs on a simulated node and writes no log\n");
    let pod = pods.try_next().unwrap().unwrap().object;
    let container = &pod["spec"]["containers"][0];
    assert_eq!(
        (&pod["spec"]["nodeName"], &container["image"]),
        (&"jetson-1".into(), &"registry/kai:1".into())
    );
    let args = [
        "doctor",
        "--host-root=/host",
        "--image=llm:1",
        "--output=table",
        "--driver=tegra",
    ];
    assert_eq!(container["args"], json!(args));
    let view = r#"{"node":{"labels":{"nvidia.com/gpu.count":"1"},"runtimeClass":"missing"}}"#;
    assert_eq!(
        container["env"][1],
        json!({ "name": "KAI_DOCTOR_CLUSTER", "value": view })
    );
    assert_eq!(cluster.count("jobs.batch"), 0, "the Job is removed");
    // The garbage collector deletes the pod, later than the command ends.
    let deleted = async { while pods.next().await.unwrap().event_type != EventType::Deleted {} };
    cluster.runtime.block_on(deleted);
}

#[test]
fn an_image_that_is_not_on_the_node_is_told() {
    let cluster = cluster();
    cluster.start_controllers();
    let waiting = json!({ "waiting": { "reason": "ErrImageNeverPull", "message": "image is not present" } });
    cluster.start_kubelet(json!({
        "phase": "Pending",
        "containerStatuses": [{
            "name": "kai-doctor", "image": "registry/kai:1", "imageID": "", "ready": false, "restartCount": 0, "state": waiting,
        }],
    }));
    let output = cluster.kai(&["doctor", "jetson-1"]);
    let (stdout, stderr) = texts(&output);
    assert_eq!((output.status.code(), stdout), (Some(2), ""));
    let expect = "error: the doctor does not start on node jetson-1: its container waits: ErrImageNeverPull: image is not present; import";
    assert!(stderr.starts_with(expect), "{stderr}");
    assert_eq!(cluster.count("jobs.batch"), 0, "the Job is removed");
}

#[test]
fn a_pod_that_the_namespace_forbids_is_told() {
    let cluster = cluster();
    cluster.refuse_pods("Error creating: pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": hostPath volumes (volume \"host\")");
    let output = cluster.kai(&["doctor", "jetson-1"]);
    let (_, stderr) = texts(&output);
    assert!(stderr.contains("violates PodSecurity"), "{stderr}");
    assert!(
        stderr.contains("kubectl label namespace kai-scheduler pod-security.kubernetes.io/enforce=privileged"),
        "{stderr}"
    );
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(cluster.count("jobs.batch"), 0, "the Job is removed");
}

#[test]
fn a_node_or_an_installation_that_does_not_exist_is_told_before_a_job_is_created() {
    let cluster = cluster();
    for (arguments, words) in [
        (
            &["doctor", "jetson-2"][..],
            "error: the cluster has no node jetson-2; `kubectl get nodes` lists the names",
        ),
        (
            &["doctor", "jetson-1", "--namespace", "default"],
            "error: kai is not installed in namespace default, so the doctor's image is not known; name it with --job-image",
        ),
        (
            &["doctor", "jetson-1", "--node-name", "jetson-2"],
            "error: the node is jetson-1, but --node-name",
        ),
        (
            &["doctor", "jetson-1", "--host-root", "/host"],
            "error: --host-root names a directory of this machine",
        ),
        (
            &["doctor", "jetson-1", "--context", "home"],
            "error: finding the kubernetes api: ",
        ),
    ] {
        let output = cluster.kai(arguments);
        let (stdout, stderr) = texts(&output);
        assert_eq!((output.status.code(), stdout), (Some(2), ""), "{arguments:?} {stderr}");
        assert!(stderr.starts_with(words), "{stderr}");
    }
    assert_eq!(cluster.count("jobs.batch"), 0);
}

/// A node that does not answer: nothing happens, and the deadline ends the wait.
#[test]
fn a_pod_that_nothing_starts_ends_with_the_deadline() {
    let cluster = cluster();
    cluster.start_controllers();
    let output = cluster.kai(&["doctor", "jetson-1", "--timeout", "1"]);
    let (_, stderr) = texts(&output);
    assert!(
        stderr.starts_with("error: the doctor did not report from node jetson-1 within 1 s: "),
        "{stderr}"
    );
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(cluster.count("jobs.batch"), 0, "the Job is removed");
}

#[test]
fn the_job_can_be_printed_and_applied() {
    let printed = command(
        ".",
        &["doctor", "jetson-1", "--print-job", "--job-image", "registry/kai:1"],
    );
    let output = { printed }.output().unwrap();
    let (stdout, stderr) = texts(&output);
    assert_eq!((output.status.code(), stderr), (Some(0), ""), "needs no cluster");
    let job: Value = serde_saphyr::from_str(stdout).unwrap();
    let created = cluster().store().create(job).unwrap();
    assert_eq!(created["metadata"]["name"], "kai-doctor-jetson-1");
}
