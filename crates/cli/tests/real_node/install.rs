//! kai as `kai manifests` installs it: the same objects as those of the Helm chart. This cluster has neither a controller of Deployments
//! and DaemonSets nor a scheduler for their pods, so the tests create the pods of their templates on the node.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::machine::{Machine, NAME, driver_flags};

/// Further flags of `kai all`. The API server reaches the webhooks at the pod's address, because this cluster has no service proxy, and
/// the node has no software of NVIDIA.
const ALL_FLAGS: [&str; 2] = [
    "--role=admission=--webhook-url=https://$(POD_IP):9443",
    "--role=admission=--gpu-fraction-runtime-class-name=",
];

/// Applies the objects of an installation, and returns the pods of kai and of its agent.
pub(crate) fn apply(machine: &Machine) -> [Value; 2] {
    let list = manifests(&machine.mode);
    let objects = list["items"].as_array().unwrap();
    let template = |kind: &str| {
        let found = objects.iter().find(|object| object["kind"] == kind).unwrap();
        found["spec"]["template"].clone()
    };
    let has_pods = |object: &&Value| matches!(object["kind"].as_str(), Some("Deployment" | "DaemonSet"));
    let others: Vec<&Value> = objects.iter().filter(|object| !has_pods(object)).collect();
    let others = json!({ "apiVersion": "v1", "kind": "List", "items": others });
    kubectl(
        machine,
        "apply --server-side --force-conflicts -f -",
        &others.to_string(),
    );

    let mut all = pod("kai-all", template("Deployment"), &ALL_FLAGS.map(str::to_owned));
    let address = json!({ "name": "POD_IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } });
    let environment = &mut all["spec"]["containers"][0]["env"];
    environment.as_array_mut().unwrap().push(address);
    let agent = pod("kai-node-agent", template("DaemonSet"), &driver_flags());
    [all, agent]
}

/// The pod of the Job of `kai doctor NODE`.
pub(crate) fn doctor_pod() -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kai"));
    command.args(["doctor", NAME, "--print-job", "--job-image", "localhost/kai:test"]);
    command.args(["--driver", &driver_flags()[1]]);
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let job: Value = serde_saphyr::from_slice(&done.stdout).unwrap();
    let mut pod = job["spec"]["template"].clone();
    pod["metadata"]["name"] = "kai-doctor".into();
    pod
}

/// Deletes kai's pods, and the object that owns everything which kai created at run time, as an uninstallation does.
pub(crate) fn delete_pods_and_anchor(machine: &Machine) {
    kubectl(machine, "-n kai-scheduler delete pod kai-all kai-node-agent", "");
    kubectl(machine, "delete clusterrole kai-installation", "");
}

/// The names of kai's webhook configurations and admission policies.
pub(crate) fn registrations(machine: &Machine) -> String {
    let kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations,validatingadmissionpolicies";
    kubectl(machine, &format!("get {kinds} -l app=admission -o name"), "")
}

fn manifests(mode: &str) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kai"));
    command.args(["manifests", "-o", "json", "--image", "localhost/kai:test"]);
    command.args([
        "--image-pull-policy",
        "Never",
        "--gpu-sharing",
        "--node-agent-mode",
        mode,
    ]);
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).unwrap()
}

/// The pod of a template, on the node, with further flags.
fn pod(name: &str, mut template: Value, flags: &[String]) -> Value {
    template["metadata"]["name"] = name.into();
    template["spec"]["nodeName"] = NAME.into();
    template["spec"]["terminationGracePeriodSeconds"] = 5.into();
    let container = &mut template["spec"]["containers"][0];
    let args = container["args"].as_array_mut().unwrap();
    // The flag of the chart comes first, and clap takes each flag once.
    let is_given = |arg: &Value| arg.as_str().is_some_and(|arg| arg.starts_with("--driver="));
    args.retain(|arg| !is_given(arg));
    args.extend(flags.iter().map(|flag| Value::from(flag.as_str())));
    template
}

fn kubectl(machine: &Machine, arguments: &str, input: &str) -> String {
    let mut command = machine.shell(&format!(
        "exec kubectl --kubeconfig $KAI_NODE_DIR/kubeconfig {arguments}"
    ));
    let piped = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "kubectl {arguments}: {error}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}
