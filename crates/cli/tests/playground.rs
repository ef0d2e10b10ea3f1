//! The playground as a user meets it: the program itself, and a stock kubectl.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use support::command;

#[test]
fn the_story_comes_true() {
    let directory = tempfile::tempdir().unwrap();
    let run = command(".", &["playground", "--once"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{text}\n{}", String::from_utf8_lossy(&run.stderr));
    assert!(text.contains("everything went as it should"), "{text}");
    assert!(!directory.path().join("kai-playground.kubeconfig").exists());
}

/// A playground that runs until dropped.
struct Playground {
    process: Child,
    /// Kept open: a program that nobody listens to may end.
    _output: Lines<BufReader<ChildStdout>>,
}

impl Drop for Playground {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Playground {
    fn start(kubeconfig: &Path) -> Playground {
        let mut child = command(".", &["playground", "--empty", "--kubeconfig"])
            .arg(kubeconfig)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.any(|line| line.unwrap().contains("The cluster is yours"));
        let playground = Playground {
            process: child,
            _output: lines,
        };
        assert!(ready, "the playground ended before it was ready");
        playground
    }
}

struct Kubectl<'a> {
    program: String,
    kubeconfig: &'a Path,
}

impl Kubectl<'_> {
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

#[test]
fn a_stock_kubectl_runs_two_pods_on_one_gpu() {
    let program = std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".to_owned());
    if Command::new(&program).arg("version").arg("--client").output().is_err() {
        eprintln!("skipped: there is no kubectl; name one with KUBECTL");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let _playground = Playground::start(&kubeconfig);
    let kubectl = Kubectl {
        program,
        kubeconfig: &kubeconfig,
    };
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
