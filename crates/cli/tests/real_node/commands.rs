//! kubectl and helm, with the rights of the cluster's administrator.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::machine::{Machine, set};

/// The output of a command that succeeded.
pub(crate) struct Done {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Machine {
    /// Runs kubectl and returns what it prints. Fails the test if kubectl fails.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        self.kubectl_with("", arguments)
    }

    /// As `kubectl`, with an input.
    pub(crate) fn kubectl_with(&self, input: &str, arguments: &[&str]) -> String {
        let mut command = self.command(&format!("{}/kubectl", set("KAI_KUBE_BIN")));
        command.args(arguments);
        output(&mut command, input)
            .unwrap_or_else(|error| panic!("{error}"))
            .stdout
    }

    /// Runs the helm of this run. Fails the test if helm fails, and tells the state of the pods.
    pub(crate) fn helm(&self, arguments: &[&str]) -> Done {
        let mut command = self.command(&set("KAI_NODE_HELM"));
        command.args(arguments);
        output(&mut command, "").unwrap_or_else(|error| panic!("{error}\n{}", self.pods_and_events()))
    }

    pub(crate) fn has_helm_3(&self) -> bool {
        set("KAI_NODE_HELM").ends_with("helm3")
    }

    /// All pods, and what happened to them, for the messages of failed tests.
    pub(crate) fn pods_and_events(&self) -> String {
        self.kubectl(&["get", "pods,events", "-A", "-o", "wide"])
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("KUBECONFIG", self.directory.join("kubeconfig"));
        command.current_dir(&self.directory);
        command
    }
}

fn output(command: &mut Command, input: &str) -> Result<Done, String> {
    let piped = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    let [stdout, stderr] = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if done.status.success() {
        Ok(Done { stdout, stderr })
    } else {
        Err(format!("{command:?}: {stdout}{stderr}"))
    }
}
