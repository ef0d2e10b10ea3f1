//! The messages of roles at start.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use kai_embedded::server::{Options, Server};
use support::command;

/// A process that is killed at the end of the test.
struct Process(std::process::Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts kai with these arguments on an API server in the test, and reads its log until it contains all of these texts.
#[track_caller]
fn check_log(arguments: &[&str], words: &[&str]) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = Server::new(Options::default());
    let listening = runtime.block_on(server.listen("127.0.0.1:0".parse().unwrap())).unwrap();
    kai_cli::embedded::install(&server).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    std::fs::write(&kubeconfig, listening.kubeconfig(None)).unwrap();
    let mut child = command(".", arguments)
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = BufReader::new(child.stderr.take().unwrap());
    let _process = Process(child);
    let address = listening.url();
    let mut missing: Vec<&str> = words.iter().copied().chain([&*address]).collect();
    let mut seen = String::new();
    for line in log.lines() {
        let line = line.unwrap();
        missing.retain(|word| !line.contains(word));
        seen.push_str(&line);
        seen.push('\n');
        if missing.is_empty() {
            return;
        }
    }
    panic!("kai ended without saying {missing:?}\n{seen}");
}

#[test]
fn all_roles_say_version_ports_leader_server_and_what_they_watch() {
    check_log(
        &[
            "all",
            "--no-admission",
            "--leader-elect",
            "--listen-address=127.0.0.1:0",
            "--plugin-server-port=0",
        ],
        &[
            concat!("version=\"", env!("CARGO_PKG_VERSION"), "\""),
            "roles=\"scheduler, binder, controllers\"",
            "metrics_and_health=\"127.0.0.1:",
            "probes=\"none\"",
            "2ad35f9c.kai.scheduler",
            "identity=",
            "schedulerName kai-scheduler in all namespaces",
            "reservation pods in namespace kai-resource-reservation",
            "the API server answers",
            "leading",
        ],
    );
}

#[test]
fn one_role_says_what_it_does_without_an_election() {
    check_log(
        &["binder", "--listen-address=127.0.0.1:0"],
        &["roles=\"binder\"", "leader election is off", "watches bind requests"],
    );
}

#[test]
fn without_a_cluster_the_error_names_the_ways_to_one() {
    let run = command(".", &["all"]).output().unwrap();
    let text = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(2), "{text}");
    assert!(
        text.contains("--kubeconfig") && text.contains("kai playground"),
        "{text}"
    );
}

/// The cause is in the message once, and the remedy is the flag.
#[track_caller]
fn check_port_in_use(arguments: &[&str], purpose: &str, flag: &str) {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = Server::new(Options::default());
    let listening = runtime.block_on(server.listen("127.0.0.1:0".parse().unwrap())).unwrap();
    kai_cli::embedded::install(&server).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    std::fs::write(&kubeconfig, listening.kubeconfig(None)).unwrap();
    let in_use = |argument: &&str| {
        let argument = argument.replace("ADDRESS", &address.to_string());
        argument.replace("PORT", &address.port().to_string())
    };
    let arguments: Vec<String> = arguments.iter().map(in_use).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let run = command(".", &arguments)
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(2), "{text}");
    let error = text.lines().find(|line| line.starts_with("error: ")).unwrap();
    for words in [purpose, flag, &address.to_string()] {
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(error.matches("Address already in use").count(), 1, "{error}");
}

#[test]
fn a_port_in_use_is_told_with_its_cause_and_the_flag_that_chooses_another() {
    check_port_in_use(
        &[
            "all",
            "--no-admission",
            "--listen-address=127.0.0.1:0",
            "--plugin-server-port=PORT",
        ],
        "scheduler: listening on",
        "--plugin-server-port",
    );
    check_port_in_use(
        &["binder", "--listen-address=ADDRESS"],
        "for metrics and health",
        "--listen-address",
    );
    check_port_in_use(&["playground", "--listen=ADDRESS"], "can't listen on", "--listen");
}

#[test]
fn a_server_that_does_not_answer_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    // No process listens on the port of a closed listener.
    let address = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}], \
         users: [{{name: c, user: {{}}}}], contexts: [{{name: c, context: {{cluster: c, user: c}}}}]}}"
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let mut child = command(".", &["binder", "--listen-address=127.0.0.1:0", "--kubeconfig"])
        .arg(&kubeconfig)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let _process = Process(child);
    let told = lines.find(|line| line.as_ref().unwrap().contains("does not answer"));
    let told = told.expect("the log goes on").unwrap();
    assert!(
        told.contains(&address.to_string()) && told.contains("kai playground"),
        "{told}"
    );
}
