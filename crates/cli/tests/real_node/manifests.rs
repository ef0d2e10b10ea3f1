//! kai as plain processes with the objects of `deploy/`: each process has the account of its manifests, and can be killed and restarted
//! by a test.

use std::path::{Path, PathBuf};

use crate::machine::{Machine, NAME};

const NAMESPACES: [&str; 2] = ["kai-scheduler", "kai-resource-reservation"];

/// Applies the objects of `deploy/`, and writes a kubeconfig file for each account.
pub(crate) fn apply(machine: &Machine) {
    for namespace in NAMESPACES {
        // An earlier release of the chart leaves the reservation namespace.
        let object = format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}}}}}");
        machine.kubectl_with(&object, &["apply", "--server-side", "-f", "-"]);
    }
    machine.kubectl(&arguments(&["apply", "--server-side", "--force-conflicts"], &files()));
    write_account(machine, "kai-all", &[]);
    // The agent's account may only write the node in its token. A pod's token has its node; that of a process is bound to the node here.
    write_account(
        machine,
        "kai-node-agent",
        &["--bound-object-kind=Node", &format!("--bound-object-name={NAME}")],
    );
}

/// Deletes the objects, and with their owner everything that kai created.
pub(crate) fn delete(machine: &Machine) {
    machine.kubectl(&arguments(&["delete", "--ignore-not-found"], &files()));
    machine.kubectl(&["delete", "namespace", NAMESPACES[0], NAMESPACES[1]]);
}

fn files() -> [String; 3] {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    ["crds", "rbac.yaml", "admission-policies.yaml"].map(|file| deploy.join(file).display().to_string())
}

fn arguments<'a>(first: &[&'a str], files: &'a [String]) -> Vec<&'a str> {
    let files = files.iter().flat_map(|file| ["-f", file.as_str()]);
    first.iter().copied().chain(files).collect()
}

/// The kubeconfig file of an account.
pub(crate) fn account_file(directory: &Path, account: &str) -> PathBuf {
    directory.join(format!("{account}.kubeconfig"))
}

fn write_account(machine: &Machine, account: &str, bound: &[&str]) {
    let create = ["-n", "kai-scheduler", "create", "token", account, "--duration=2h"];
    let token = machine.kubectl(&[&create[..], bound].concat());
    let file = account_file(&machine.directory, account);
    std::fs::copy(machine.directory.join("kubeconfig"), &file).unwrap();
    let (config, token) = (file.display().to_string(), token.trim());
    machine.kubectl(&[
        "--kubeconfig",
        &config,
        "config",
        "set-credentials",
        "admin",
        "--token",
        token,
    ]);
}
