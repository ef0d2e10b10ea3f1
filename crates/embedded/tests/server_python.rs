//! The embedded API server through the Python client of Kubernetes. Uses `$KAI_PYTHON`, a Python that has the package
//! `kubernetes`; else makes a virtual environment and installs it; skipped where that does not work.

#![allow(clippy::unwrap_used)] // Helpers of tests: a panic is the failure.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kai_embedded::server::{Options, Server};

const SESSION: &str = r#"
import sys, threading
from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException
config.load_kube_config(config_file=sys.argv[1])
core, apps, custom = client.CoreV1Api(), client.AppsV1Api(), client.CustomObjectsApi()

pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"app": "a"}},
       "spec": {"containers": [{"name": "c", "image": "busybox"}]}}
made = core.create_namespaced_pod("default", pod)
assert made.status.phase == "Pending" and made.metadata.uid, made
try:
    core.create_namespaced_pod("default", pod)
    raise SystemExit("created twice")
except ApiException as e:
    assert e.status == 409, e
assert [p.metadata.name for p in core.list_pod_for_all_namespaces(label_selector="app in (a)").items] == ["a"]
core.patch_namespaced_pod("a", "default", {"metadata": {"annotations": {"x": "y"}}})
core.create_namespaced_binding("default", client.V1Binding(
    metadata=client.V1ObjectMeta(name="a"), target=client.V1ObjectReference(kind="Node", name="n1")), _preload_content=False)
assert core.read_namespaced_pod("a", "default").spec.node_name == "n1"

seen = []
def later():
    core.patch_namespaced_pod_status("a", "default", {"status": {"phase": "Running"}})
    core.delete_namespaced_pod("a", "default", grace_period_seconds=0)
threading.Timer(0.2, later).start()
for event in watch.Watch().stream(core.list_namespaced_pod, "default", timeout_seconds=20):
    seen.append((event["type"], event["object"].status.phase))
    if event["type"] == "DELETED":
        break
assert seen == [("ADDED", "Pending"), ("MODIFIED", "Running"), ("DELETED", "Running")], seen

template = {"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
apps.create_namespaced_deployment("default", {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w"},
    "spec": {"selector": {"matchLabels": {"app": "w"}}, "template": template}})
apps.patch_namespaced_deployment_scale("w", "default", {"spec": {"replicas": 4}})
assert apps.read_namespaced_deployment_scale("w", "default").spec.replicas == 4
first = core.list_namespace(limit=1)
rest = core.list_namespace(_continue=first.metadata._continue)
assert len(first.items) == 1 and len(rest.items) == 3
print("all good")
"#;

/// A Python with the client, or the reason why there is none.
fn python(folder: &Path) -> Result<PathBuf, String> {
    if let Some(python) = std::env::var_os("KAI_PYTHON") {
        return Ok(python.into());
    }
    let run = |command: &mut Command| {
        let status = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map_err(|e| e.to_string())?;
        status
            .success()
            .then_some(())
            .ok_or_else(|| format!("{command:?} failed"))
    };
    run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    let python = folder.join("bin/python");
    // One attempt with a short timeout, for machines without a network.
    let options = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--retries",
        "0",
        "--timeout",
        "5",
        "kubernetes",
    ];
    run(Command::new(&python).args(options))?;
    Ok(python)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_in_python() {
    let folder = tempfile::tempdir().unwrap();
    let python = match python(&folder.path().join("venv")) {
        Ok(python) => python,
        Err(why) => return eprintln!("skipped: no Python with the Kubernetes client: {why}"),
    };
    let server = Server::new(Options::default());
    let listening = server.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, listening.kubeconfig(None)).unwrap();
    let output = Command::new(python)
        .args(["-c", SESSION])
        .arg(&kubeconfig)
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success() && out.contains("all good"), "{out}{err}");
}
