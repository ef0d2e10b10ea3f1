//! Runs the commands of docs/tour.md against a playground, with a stock kubectl.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::process::Command;

use support::Playground;

/// Blocks of commands after this line are run.
const MARK: &str = "<!-- run by crates/cli/tests/tour.rs -->\n```sh\n";

#[test]
fn the_commands_of_the_tour_work() {
    let kubectl = std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".to_owned());
    let has_kubectl = Command::new(&kubectl).args(["version", "--client"]).output();
    if !has_kubectl.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: there is no kubectl on the path or in $KUBECTL; .ci/page runs this test with one");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    if kubectl.starts_with('/') {
        std::os::unix::fs::symlink(&kubectl, directory.path().join("kubectl")).unwrap();
    }
    let mut playground = Playground::start(&[], &directory.path().join("kai-playground.kubeconfig"));
    let page = include_str!("../../../docs/tour.md");
    let blocks: Vec<&str> = page
        .split(MARK)
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert_eq!(blocks.len(), 4);
    let program = Path::new(env!("CARGO_BIN_EXE_kai")).parent().unwrap();
    let path = std::env::join_paths(
        [program.to_owned(), directory.path().to_owned()]
            .into_iter()
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let run = Command::new("bash")
        .args(["-euxo", "pipefail", "-c", &blocks.concat()])
        .env("PATH", path.unwrap())
        .current_dir(directory.path())
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr),
    );
    assert!(run.status.success(), "{out}\n{err}");
    for text in [
        // The story has run, and its eviction is among the decisions.
        "reclaimed for Pod default/red-",
        "WHAT WOULD HELP",
        // The what-if.
        "default/big    ",
        "reclaimed for Pod default/big (4 pods in all)",
        "pod/big condition met",
    ] {
        assert!(out.contains(text), "{text}: {out}\n{err}");
    }
    playground.line(|line| line.contains("evict") && line.contains("reclaimed for Pod default/big"));
}
