//! The page of the playground and of `kai all`, read by a plain HTTP client; and the scheduler's own view by the commands.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use kai_cluster::{Client, ClientConfig};
use serde_json::{Value, json};
use support::{Playground, command};

/// Sends a request and returns status and body.
fn ask(address: SocketAddr, method: &str, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: 0\r\n{headers}\r\n"
    )
    .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn get(address: SocketAddr, path: &str) -> String {
    let (status, body) = ask(address, "GET", path, "");
    assert_eq!(status, 200, "{path}: {body}");
    body
}

/// Asks until the page answers with this text.
fn until(address: SocketAddr, path: &str, text: &str) -> String {
    for _ in 0..600 {
        let (_, body) = ask(address, "GET", path, "");
        if body.contains(text) {
            return body;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{path} never has {text:?}: {}", get(address, path));
}

fn pod(name: &str, gpus: &str) -> Value {
    json!({
        "metadata": { "name": name, "labels": { "kai.scheduler/queue": "default-queue" } },
        "spec": {
            "schedulerName": "kai-scheduler",
            "containers": [{ "name": "main", "image": "none", "resources": { "limits": { "nvidia.com/gpu": gpus } } }],
        },
    })
}

async fn create(kubeconfig: &Path, pod: Value) {
    let config = ClientConfig::Kubeconfig(kubeconfig.to_owned());
    let client = Client::connect(&config).await.unwrap();
    // The webhooks may not answer yet.
    for _ in 0..600 {
        let resource = client.resource_of("v1", "Pod").await.unwrap().unwrap();
        match client.create(&resource, "default", pod.clone()).await {
            Ok(_) => return,
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    panic!("the pod is never accepted");
}

#[tokio::test]
async fn the_page_of_a_playground_is_live_and_submits_the_story() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let mut playground = Playground::start(&["--empty"], &kubeconfig);
    let page = playground.page;
    assert!(page.ip().is_loopback());
    until(page, "/gpus", "h100-0");
    let view: Value = serde_json::from_str(&get(page, "/view.json")).unwrap();
    assert_eq!(view["version"], "v1");
    assert_eq!(view["decisions"], json!([]));

    // A pod that is created through the API appears on an open page.
    let mut events = TcpStream::connect(page).unwrap();
    events.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(events, "GET /events?view=%2Fdecisions HTTP/1.1\r\nhost: {page}\r\n\r\n").unwrap();
    let mut events = BufReader::new(events).lines().map(Result::unwrap);
    assert!(events.next().unwrap().contains("200"));
    create(&kubeconfig, pod("live-one", "1")).await;
    assert!(events.any(|line| line.starts_with("data:") && line.contains("live-one")));
    // The terminal tells the same.
    let told = playground.line(|line| line.contains("live-one"));
    assert!(told.contains("bind") && told.contains("live-one to "), "{told}");

    // The story's steps, in order and once, from this page only.
    let submit = |step: u32, headers: &str| ask(page, "POST", &format!("/story/{step}"), headers);
    let own = "sec-fetch-site: same-origin\r\n";
    assert_eq!(submit(0, "").0, 403);
    let (status, text) = submit(1, own);
    assert!(
        status >= 400 && text.contains("submit the steps before it first"),
        "{status} {text}"
    );
    let (status, text) = submit(0, own);
    assert!(status < 400, "{status} {text}");
    until(page, "/decisions", "notebook-7");
    let (_, text) = submit(0, own);
    assert!(text.contains("already"), "{text}");

    // Nobody is led here by the name of another site.
    let mut stream = TcpStream::connect(page).unwrap();
    write!(
        stream,
        "GET /view.json HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

/// The steps up to the reclaim, by the buttons of the page: each one once the work of the last one has its place.
#[test]
fn the_buttons_of_the_story_lead_to_a_reclaim() {
    let directory = tempfile::tempdir().unwrap();
    let playground = Playground::start(&["--empty"], &directory.path().join("kubeconfig"));
    let page = playground.page;
    let overview = until(page, "/", "action=\"/story/3\"");
    assert!(overview.contains("team red gets its quota back"), "{overview}");
    let running = |pods: usize| {
        for _ in 0..600 {
            let view: Value = serde_json::from_str(&get(page, "/view.json")).unwrap();
            let all = view["pods"].as_array().unwrap();
            if all.iter().filter(|pod| pod["status"] == "Running").count() >= pods {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{pods} pods never run: {}", get(page, "/view.json"));
    };
    // Eight notebooks, a gang of four, and four pods of team blue run before team red asks for its quota.
    for (step, pods) in [8, 12, 16, 0].into_iter().enumerate() {
        let (status, text) = ask(
            page,
            "POST",
            &format!("/story/{step}"),
            "sec-fetch-site: same-origin\r\n",
        );
        assert!(status < 400, "{step}: {status} {text}");
        running(pods);
    }
    until(page, "/decisions?kind=evict", "reclaimed for ");
    let view: Value = serde_json::from_str(&get(page, "/view.json")).unwrap();
    let decisions = view["decisions"].as_array().unwrap();
    let eviction = decisions.iter().find(|decision| decision["kind"] == "evict").unwrap();
    assert_eq!(
        (
            &eviction["action"],
            &eviction["queue"],
            &eviction["beneficiary"]["queue"]
        ),
        (&json!("reclaim"), &json!("blue"), &json!("red"))
    );
    // What would help is answered as JSON, too.
    let waiting = "/remedies/default/no-such-pod?json";
    assert_eq!(ask(page, "GET", waiting, "").0, 404);
}

/// `kai all` in a process of its own, with the account of the roles.
struct Roles(Child);

impl Drop for Roles {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test]
async fn the_scheduler_serves_the_page_and_its_own_view() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let playground = Playground::start(&["--empty", "--without-roles"], &kubeconfig);
    let account = directory.path().join("roles");
    let with_token = std::fs::read_to_string(&kubeconfig).unwrap().replace(
        "user: {}",
        "user: {token: 'system:serviceaccount:kai-scheduler:kai-all'}",
    );
    std::fs::write(&account, with_token).unwrap();
    let (debug, ui) = (free_port(), free_port());
    let roles = command(
        ".",
        &["all", "--listen-address=", "--no-admission", "--leader-elect=false"],
    )
    .arg("--kubeconfig")
    .arg(&account)
    .arg(format!("--plugin-server-port={debug}"))
    .arg(format!("--ui-address=0.0.0.0:{ui}"))
    .stderr(Stdio::null())
    .stdout(Stdio::null())
    .spawn()
    .unwrap();
    let _roles = Roles(roles);
    let page: SocketAddr = ([127, 0, 0, 1], ui).into();
    while TcpStream::connect(page).is_err() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    until(page, "/gpus", "h100-0");
    create(&kubeconfig, pod("train", "8")).await;
    until(page, "/decisions", "train");
    // The playground has no scheduler: its page follows the API server, and the decisions are from Events.
    until(playground.page, "/decisions", "train");

    let scheduler = format!("http://127.0.0.1:{debug}");
    let run = |arguments: &[&str]| {
        let output = command(".", arguments)
            .args(["--scheduler", &scheduler])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{arguments:?} {text} {}",
            String::from_utf8_lossy(&output.stderr)
        );
        text
    };
    assert!(run(&["gpus"]).contains("default/train"));
    // `kai ui` serves the same view: the action of a decision is known to the scheduler only.
    let mut page_of_scheduler = command(".", &["ui", "--port", "0", "--scheduler", &scheduler])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(page_of_scheduler.stdout.take().unwrap()).lines();
    let _page = Roles(page_of_scheduler);
    let first = lines.next().unwrap().unwrap();
    let address = first.rsplit_once("http://").unwrap().1.trim_end_matches('/');
    until(address.parse().unwrap(), "/view.json", "\"action\":\"allocate\"");
    assert!(run(&["queues"]).contains("default-queue"));
    let decisions: Value = serde_json::from_str(&run(&["decisions", "-o", "json"])).unwrap();
    assert_eq!(decisions["decisions"][0]["pod"], "train");
    assert_eq!(decisions["decisions"][0]["action"], "allocate");
    create(&kubeconfig, pod("large", "200")).await;
    let mut pending = String::new();
    for _ in 0..100 {
        pending = run(&["pending"]);
        if pending.contains("Pod default/large") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(pending.contains("Pod default/large"), "{pending}");
    let explained = run(&["explain", "pod", "large", "-n", "default"]);
    assert!(
        explained.contains("needs") || explained.contains("remedy"),
        "{explained}"
    );

    // From another machine it takes a token.
    if let Some(address) = own_address() {
        let remote = SocketAddr::new(address, ui);
        let (status, text) = ask(remote, "GET", "/view.json", "");
        assert_eq!(status, 401, "{text}");
        assert!(!text.contains("train"), "{text}");
    }
}

/// The scheduler alone has the page, too: the flag is one of this role.
#[tokio::test]
async fn kai_scheduler_serves_the_page() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let _playground = Playground::start(&["--empty", "--without-roles"], &kubeconfig);
    let ui = free_port();
    let role = command(".", &["scheduler", "--listen-address=", "--leader-elect=false"])
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .arg("--plugin-server-port=0")
        .arg(format!("--ui-address=127.0.0.1:{ui}"))
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let _role = Roles(role);
    let page: SocketAddr = ([127, 0, 0, 1], ui).into();
    while TcpStream::connect(page).is_err() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    until(page, "/gpus", "h100-0");
    let view: Value = serde_json::from_str(&get(page, "/view.json")).unwrap();
    // Its own view: only the scheduler has decisions without Events.
    assert_eq!((&view["decisions"], &view["missing"]), (&json!([]), &json!([])));
}

/// An address of this machine other than loopback, if it has one.
fn own_address() -> Option<std::net::IpAddr> {
    // Nothing is sent: the system only chooses the address.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

#[test]
fn a_scheduler_that_does_not_answer_is_named_with_a_remedy() {
    let output = command(".", &["decisions", "--scheduler", "http://127.0.0.1:1"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text.contains("the scheduler at http://127.0.0.1:1 does not answer"),
        "{text}"
    );
    assert!(text.contains("kubectl port-forward"), "{text}");
}

#[tokio::test]
async fn kai_ui_shows_a_cluster_of_a_kubeconfig() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let _playground = Playground::start(&["--empty"], &kubeconfig);
    let mut ui = command(".", &["ui", "--port", "0", "--kubeconfig"])
        .arg(&kubeconfig)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(ui.stdout.take().unwrap()).lines();
    let _ui = Roles(ui);
    let first = lines.next().unwrap().unwrap();
    let address = first.rsplit_once("http://").unwrap().1.trim_end_matches('/');
    let page: SocketAddr = address.parse().unwrap();
    create(&kubeconfig, pod("train", "1")).await;
    until(page, "/decisions", "train");
    until(page, "/gpus", "h100-0");
}
