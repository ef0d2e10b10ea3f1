//! A cluster of processes: the playground's API server and nodes, `kai all`, and a node agent with fake GPUs. All of them serve metrics as in
//! production.

use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::command;

/// How long the cluster may take for each step.
const PATIENCE: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(200);
/// The embedded API server takes a token that begins with `system:` as the name of its user.
pub(crate) const TOKEN: &str = "system:serviceaccount:kai-scheduler:kai-all";

/// A process that ends with its owner.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) struct Cluster {
    pub(crate) roles: SocketAddr,
    pub(crate) agent: SocketAddr,
    /// Where Prometheus is to listen: the scheduler asks it for past usage.
    pub(crate) prometheus: SocketAddr,
    /// The API server.
    server: SocketAddr,
    directory: tempfile::TempDir,
    story: Lines<BufReader<ChildStdout>>,
    _processes: Vec<Process>,
}

impl Cluster {
    /// Starts the cluster. The playground's story begins as soon as the roles work.
    pub(crate) fn start() -> Cluster {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let kubeconfig = path("kubeconfig");
        let mut playground = command(".", &["playground", "--without-roles", "--kubeconfig", &kubeconfig])
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let story = BufReader::new(playground.stdout.take().unwrap()).lines();
        let playground = Process(playground);
        let server = await_until("the playground writes its kubeconfig", || {
            let text = std::fs::read_to_string(&kubeconfig).ok()?;
            let (_, server) = text.split_once("server: http://")?;
            server.lines().next()?.trim_end().parse().ok()
        });
        let with_token = std::fs::read_to_string(&kubeconfig)
            .unwrap()
            .replace("user: {}", &format!("user: {{token: '{TOKEN}'}}"));
        let kubeconfig = path("kubeconfig-of-roles");
        std::fs::write(&kubeconfig, with_token).unwrap();

        let [roles, agent, webhooks, prometheus] = free_ports();
        let prometheus = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), prometheus);
        std::fs::write(path("scheduler.yaml"), usage_db(prometheus).to_string()).unwrap();
        let scheduler_conf = format!("--role=scheduler=--scheduler-conf={}", path("scheduler.yaml"));
        let webhook_port = format!("--role=admission=--webhook-addr={webhooks}");
        let webhook_url = format!("--role=admission=--webhook-url=https://127.0.0.1:{webhooks}");
        let listen = format!("0.0.0.0:{roles}");
        let flags = [
            "all",
            "--leader-elect",
            "--namespace=kai-scheduler",
            "--plugin-server-port=0",
        ];
        let more = ["--kubeconfig", &kubeconfig, "--listen-address", &listen];
        let all = start(
            &[&flags[..], &more, &[&webhook_port, &webhook_url, &scheduler_conf]].concat(),
            &path("all.log"),
        );

        std::fs::create_dir(path("plugins")).unwrap();
        let metrics = format!("0.0.0.0:{agent}");
        let flags = ["node-agent", "--driver", "fake:h100:8", "--node-name", "h100-0"];
        let more = ["--kubeconfig", &kubeconfig, "--metrics-address", &metrics];
        let directories = [
            ("--plugin-dir", path("plugins")),
            ("--cdi-dir", path("cdi")),
            ("--state-dir", path("state")),
            ("--pod-resources-socket", path("pod-resources.sock")),
        ];
        let directories: Vec<&str> = directories.iter().flat_map(|(flag, value)| [*flag, value]).collect();
        let agent_process = start(&[&flags[..], &more, &directories].concat(), &path("agent.log"));

        Cluster {
            roles: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), roles),
            agent: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), agent),
            prometheus,
            server,
            story,
            _processes: vec![playground, all, agent_process],
            directory,
        }
    }

    /// Waits for the end of the story.
    pub(crate) fn await_story(&mut self) {
        let mut lines = self.story.by_ref().map_while(Result::ok);
        let ended = lines
            .by_ref()
            .inspect(|line| println!("{line}"))
            .any(|line| line.starts_with("The cluster is yours"));
        drop(lines);
        assert!(ended, "the story did not end:\n{}", self.log());
    }

    /// Gives a GPU of the story to a pod that shares it: the scheduler decides, and the binder waits for a reservation pod.
    pub(crate) fn share_a_gpu(&self) {
        let pods = "/api/v1/namespaces/default/pods";
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "late", "labels": { "kai.scheduler/queue": "red" }, "annotations": { "gpu-fraction": "0.5" },
            },
            "spec": { "schedulerName": "kai-scheduler", "containers": [{ "name": "main", "image": "busybox" }] },
        });
        for (method, path, body) in [
            ("DELETE", format!("{pods}/red-0"), String::new()),
            ("POST", pods.to_owned(), pod.to_string()),
        ] {
            let (status, answer) = call(self.server, method, &path, None, &body).unwrap();
            assert!((200..300).contains(&status), "{method} {path}: {answer}");
        }
        await_until("the pod that shares a GPU runs", || {
            let (_, pod) = get(self.server, &format!("{pods}/late"), None).ok()?;
            pod.contains("\"phase\":\"Running\"").then_some(())
        });
    }

    /// A directory for further files.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The last lines of the roles' log.
    pub(crate) fn log(&self) -> String {
        let text = std::fs::read_to_string(self.directory().join("all.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

/// The scheduler's configuration with Prometheus as its source of past usage. Its window is short: nothing is older than the test. The capacity
/// comes from kai's own metrics, since no kube-state-metrics runs here.
fn usage_db(prometheus: SocketAddr) -> serde_json::Value {
    json!({ "usageDBConfig": {
        "clientType": "prometheus", "connectionString": format!("http://{prometheus}"),
        "usageParams": { "windowSize": "10m", "halfLifePeriod": "5m", "fetchInterval": "1s", "extraParams": usage_metrics() },
    } })
}

/// `extraParams` for a cluster that is scraped every second.
pub(crate) fn usage_metrics() -> serde_json::Value {
    json!({ "queryResolution": "1s", "gpuCapacityMetric": "sum(kai_node_gpus)" })
}

fn start(flags: &[&str], log: &str) -> Process {
    let log = File::create(log).unwrap();
    let process = command(".", flags)
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    Process(process)
}

/// Ports without a listener.
pub(crate) fn free_ports<const N: usize>() -> [u16; N] {
    // All of them are taken before the first is released: the ports differ.
    let listeners: [TcpListener; N] = std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// An address of this machine that is not loopback, so that metrics need a token; loopback if there is none.
pub(crate) fn own_address() -> IpAddr {
    // No packet is sent: the kernel chooses the address by its routes.
    let chosen = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("203.0.113.1:9")?;
        socket.local_addr()
    });
    chosen.map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip())
}

/// Waits until `ready` has a value.
#[track_caller]
pub(crate) fn await_until<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(GLANCE);
    }
}

/// The status and the body of `GET path`.
pub(crate) fn get(address: SocketAddr, path: &str, token: Option<&str>) -> std::io::Result<(u16, String)> {
    call(address, "GET", path, token, "")
}

fn call(
    address: SocketAddr,
    method: &str,
    path: &str,
    token: Option<&str>,
    body: &str,
) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    let token = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
    let content = match body {
        "" => String::new(),
        body => format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()),
    };
    // HTTP/1.0: the body ends with the connection.
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\n{token}{content}\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    Ok((status, body.to_owned()))
}

/// A file of the repository.
pub(crate) fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(root(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}
