//! Starts the program for all tests of this crate. Each test program uses a part of this module.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// The command `kai` in a folder of this crate, without the user's environment: no kubeconfig, no colours, no log filter.
pub(crate) fn command(folder: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kai"));
    command
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
        .env_clear()
        .env("HOME", "/nonexistent");
    command
}

/// Runs kai in the folder and returns its whole output.
pub(crate) fn kai_in(folder: &str, arguments: &[&str]) -> String {
    let output = command(folder, arguments).output().expect("kai starts");
    let stdout = String::from_utf8(output.stdout).expect("text");
    let stderr = String::from_utf8(output.stderr).expect("text");
    let code = output.status.code().expect("no signal");
    format!(
        "$ kai {}\n{stdout}--- stderr\n{stderr}--- exit code {code}\n",
        arguments.join(" ")
    )
}

/// A playground that runs until dropped.
pub(crate) struct Playground {
    pub(crate) process: Child,
    /// The address of its page.
    pub(crate) page: SocketAddr,
    /// Kept open: a program may end when its output is closed.
    output: Lines<BufReader<ChildStdout>>,
}

impl Drop for Playground {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Playground {
    pub(crate) fn start(arguments: &[&str], kubeconfig: &Path) -> Playground {
        let mut child = command(".", &["playground"])
            .args(arguments)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the playground starts");
        let mut lines = BufReader::new(child.stdout.take().expect("the playground starts")).lines();
        let first = lines.next().expect("the playground starts").expect("text");
        let page = first
            .strip_prefix("The page of the cluster: http://")
            .map(|rest| rest.trim_end_matches('/'));
        let page = page.and_then(|address| address.parse().ok());
        let ready = lines.any(|line| line.expect("the playground starts").contains("The cluster is yours"));
        let playground = Playground {
            process: child,
            page: page.unwrap_or_else(|| panic!("the first line is the address of the page: {first}")),
            output: lines,
        };
        assert!(ready, "the playground ended before it was ready");
        playground
    }

    /// Waits for a line of its output.
    pub(crate) fn line(&mut self, is_meant: impl Fn(&str) -> bool) -> String {
        let mut lines = self.output.by_ref().map(|line| line.expect("text"));
        lines.find(|line| is_meant(line)).expect("the playground runs on")
    }
}
