//! The messages of roles at start.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

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

/// An API server without kai, and `kai` as its client.
struct BareCluster {
    runtime: tokio::runtime::Runtime,
    client: kai_cluster::Client,
    directory: tempfile::TempDir,
    _listening: kai_embedded::server::Listening,
}

impl BareCluster {
    fn start() -> BareCluster {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let server = Server::new(Options::default());
        let listening = runtime.block_on(server.listen("127.0.0.1:0".parse().unwrap())).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("kubeconfig"), listening.kubeconfig(None)).unwrap();
        for name in ["kai-scheduler", "kai-resource-reservation"] {
            let namespace =
                serde_json::json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
            server.store().put(namespace).unwrap();
        }
        let client = runtime.block_on(async { kai_cluster::Client::in_process(server.service()) });
        BareCluster {
            runtime,
            client,
            directory,
            _listening: listening,
        }
    }

    fn kai(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = command(".", arguments);
        command
            .arg("--kubeconfig")
            .arg(self.directory.path().join("kubeconfig"));
        command
    }

    /// Starts `kai all` with further arguments. Returns the process, its address of metrics and health, and the rest of its log.
    fn start_all(&self, arguments: &[&str]) -> (Process, SocketAddr, impl Iterator<Item = String> + use<>) {
        let fixed = [
            "all",
            "--no-admission",
            "--leader-elect",
            "--listen-address=127.0.0.1:0",
            "--plugin-server-port=0",
        ];
        let all: Vec<&str> = fixed.iter().chain(arguments).copied().collect();
        let mut child = self.kai(&all).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let line = log.find(|line| line.contains("metrics_and_health=")).unwrap();
        let (_, address) = line.split_once("metrics_and_health=\"").unwrap();
        let address = address.split('"').next().unwrap().parse().unwrap();
        (Process(child), address, log)
    }

    fn queues(&self) -> Vec<String> {
        let all = kai_cluster::Selection::default();
        let listed = self.client.list::<kai_api::Queue>(&all);
        let queues = self.runtime.block_on(listed).unwrap().into_iter();
        queues.map(|queue| queue.metadata.plain_name().to_owned()).collect()
    }
}

/// Status code and text of `/readyz`.
fn readiness(address: SocketAddr) -> (u16, String) {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET /readyz HTTP/1.1\r\nHost: kai\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

fn wait_until_ready(address: SocketAddr) {
    let patience = std::time::Instant::now() + Duration::from_secs(120);
    loop {
        match readiness(address) {
            (200, _) => return,
            (_, answer) => assert!(std::time::Instant::now() < patience, "{answer}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn all_roles_install_definitions_and_objects_before_they_are_ready() {
    let cluster = BareCluster::start();
    let objects = cluster.directory.path().join("objects");
    std::fs::create_dir(&objects).unwrap();
    let queue = "apiVersion: scheduling.run.ai/v2\nkind: Queue\nmetadata: {name: team}\nspec: {}\n";
    std::fs::write(objects.join("create-queue.yaml"), queue).unwrap();
    let flag = format!("--installation={}", objects.display());
    let (_process, address, _log) = cluster.start_all(&["--apply-crds", &flag]);
    wait_until_ready(address);
    assert_eq!(cluster.queues(), ["team"], "the directory says which queues there are");
    std::fs::write(objects.join("queue.yaml"), queue).unwrap();
    let refused = cluster
        .kai(&["all", "--no-admission", "--listen-address=127.0.0.1:0", &flag])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(
        refused.status.code() == Some(2) && text.contains("queue.yaml") && text.contains("create-NAME.yaml"),
        "{text}"
    );
}

#[test]
fn a_missing_definition_is_named_and_waited_for() {
    let cluster = BareCluster::start();
    let (_process, address, mut log) = cluster.start_all(&[]);
    let line = log.find(|line| line.contains("the CustomResourceDefinition queues.scheduling.run.ai does not exist"));
    assert!(line.is_some_and(|line| line.contains("kai crds apply")));
    // The process must be able to write its log.
    std::thread::spawn(move || log.for_each(drop));
    assert_eq!(readiness(address).0, 503);
    let applied = cluster.kai(&["crds", "apply"]).output().unwrap();
    let text = String::from_utf8_lossy(&applied.stdout);
    assert!(
        applied.status.success() && text.contains("queues.scheduling.run.ai applied"),
        "{text}"
    );
    wait_until_ready(address);
    let patience = std::time::Instant::now() + Duration::from_secs(60);
    while cluster.queues() != ["default-parent-queue", "default-queue"] {
        assert!(std::time::Instant::now() < patience, "{:?}", cluster.queues());
        std::thread::sleep(Duration::from_millis(100));
    }
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
