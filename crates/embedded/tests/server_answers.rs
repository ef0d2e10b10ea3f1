//! Compares the embedded API server with a real kube-apiserver: the requests in `requests/` must get the responses in `answers/`,
//! which were recorded from a real server. `.ci/kube` sends the requests to a real server again; there `KAI_ANSWERS=record` records
//! its responses.
//!
//! A request has `does` (its name), `send` (method and path), and may have `body` (sent as JSON) or `raw` (sent as it is),
//! `type` and `accept` (headers), `before` (values that are read first, by path and pointer), `keep` (values that the answer
//! has for later requests), `fill` and `repeat` (sizes), `await` (a path that has to answer before the next request),
//! `managers` (compare `managedFields` too), `says` (why the embedded server has another message) and `differs` (why it
//! answers otherwise).

#![allow(clippy::unwrap_used)] // Helpers of tests: a panic is the failure.

mod answers_normal;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::BodyExt;
use kai_embedded::server::{Options, Server};
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use serde_json::{Value, json};

use answers_normal::normal;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TestRequest {
    does: String,
    send: String,
    #[serde(default)]
    body: Option<Value>,
    #[serde(default)]
    raw: Option<String>,
    #[serde(default, rename = "type")]
    content_type: Option<String>,
    #[serde(default)]
    accept: Option<String>,
    #[serde(default)]
    before: BTreeMap<String, (String, String)>,
    #[serde(default)]
    keep: BTreeMap<String, String>,
    #[serde(default)]
    fill: Option<usize>,
    #[serde(default)]
    repeat: Option<usize>,
    #[serde(default, rename = "await")]
    awaited: Option<String>,
    #[serde(default)]
    managers: bool,
    #[serde(default)]
    says: Option<String>,
    #[serde(default)]
    differs: Option<String>,
}

/// A response of the server.
struct TestResponse {
    code: u16,
    warnings: Vec<String>,
    text: String,
}

impl TestResponse {
    fn value(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }
}

/// Responses by the name of the request, in the order of the requests.
type Responses = Vec<(String, Value)>;

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// All files of requests, by name.
fn requests() -> Vec<(String, Vec<TestRequest>)> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory("requests"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        let asked: Vec<TestRequest> =
            serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        (path.file_stem().unwrap().to_string_lossy().into_owned(), asked)
    };
    files.iter().map(read).collect()
}

fn recorded(file: &str) -> BTreeMap<String, Value> {
    let path = directory("answers").join(format!("{file}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

fn record(file: &str, answers: &Responses) {
    let lines: Vec<String> = answers
        .iter()
        .map(|(does, answer)| format!("{}: {answer}", json!(does)))
        .collect();
    let text = format!("{{\n{}\n}}\n", lines.join(",\n"));
    std::fs::write(directory("answers").join(format!("{file}.json")), text).unwrap();
}

async fn send(client: &Client, method: &str, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> TestResponse {
    let mut request = http::Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = client.send(request.body(Body::from(body)).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let warning = |value: &http::HeaderValue| {
        let text = value.to_str().unwrap_or("").trim_start_matches("299 - ");
        let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        inner.unwrap_or(text).replace("\\\"", "\"")
    };
    let warnings = response.headers().get_all("warning").iter().map(warning).collect();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    TestResponse { code, warnings, text }
}

async fn get(client: &Client, path: &str) -> TestResponse {
    send(client, "GET", path, &[("accept", "application/json")], Vec::new()).await
}

/// Sends all requests of a file in order. `kept` has the values for later requests.
async fn ask(client: &Client, asked: &[TestRequest], kept: &mut BTreeMap<String, String>) -> Responses {
    let mut answers = Vec::new();
    for one in asked {
        for (name, (path, pointer)) in &one.before {
            let value = get(client, path).await.value();
            kept.insert(
                name.clone(),
                value.pointer(pointer).unwrap().as_str().unwrap().to_owned(),
            );
        }
        let filled = |text: &str| {
            let mut text = text.to_owned();
            for (name, value) in kept.iter() {
                text = text.replace(&format!("${{{name}}}"), value);
            }
            text.replace("${fill}", &"x".repeat(one.fill.unwrap_or(0)))
        };
        eprintln!("{}", one.does);
        let (method, path) = one.send.split_once(' ').unwrap();
        let body = match (&one.body, &one.raw) {
            (Some(Value::Array(items)), _) if one.repeat.is_some() => {
                json!(vec![&items[0]; one.repeat.unwrap()]).to_string()
            }
            (Some(body), _) => filled(&body.to_string()),
            (None, Some(raw)) => raw.clone(),
            (None, None) => String::new(),
        };
        let content_type = one.content_type.as_deref().unwrap_or("application/json");
        let accept = one.accept.as_deref().unwrap_or("application/json");
        let headers = [
            ("accept", accept),
            ("content-type", content_type),
            ("user-agent", "compare/1"),
        ];
        let answered = send(client, method, &filled(path), &headers, body.into_bytes()).await;
        for (name, pointer) in &one.keep {
            let value = answered.value();
            let text = value.pointer(pointer).and_then(Value::as_str).unwrap_or("");
            kept.insert(name.clone(), text.to_owned());
        }
        if let Some(path) = one.awaited.as_ref().filter(|_| answered.code < 300) {
            while get(client, path).await.code != 200 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        let normal = normal(answered.code, &answered.warnings, &answered.text, one.managers);
        answers.push((one.does.clone(), normal));
    }
    answers
}

/// The differences from the recorded responses, as text.
fn differences(file: &str, asked: &[TestRequest], answers: &Responses) -> Vec<String> {
    let recorded = recorded(file);
    let mut found = Vec::new();
    for (one, (does, answer)) in asked.iter().zip(answers) {
        let Some(expect) = recorded.get(does) else {
            found.push(format!("{file}: {does}: no answer is recorded; see .ci/kube"));
            continue;
        };
        let (mut expect, mut answer) = (expect.clone(), answer.clone());
        if one.says.is_some() {
            without_messages(&mut expect);
            without_messages(&mut answer);
        }
        if expect != answer && one.differs.is_none() {
            found.push(format!(
                "{file}: {does}: {}\n  real: {expect}\n  ours: {answer}\n  at:   {}",
                one.send,
                first_difference(&expect, &answer, "")
            ));
        }
    }
    found
}

fn without_messages(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("message");
            fields.values_mut().for_each(without_messages);
        }
        Value::Array(items) => items.iter_mut().for_each(without_messages),
        _ => {}
    }
}

fn first_difference(expect: &Value, answer: &Value, path: &str) -> String {
    let keys = |value: &Value| -> Vec<String> {
        match value {
            Value::Object(fields) => fields.keys().cloned().collect(),
            Value::Array(items) => (0..items.len()).map(|at| at.to_string()).collect(),
            _ => Vec::new(),
        }
    };
    let at = |value: &Value, key: &str| match value {
        Value::Array(items) => key.parse::<usize>().ok().and_then(|at| items.get(at).cloned()),
        other => other.get(key).cloned(),
    };
    let mut all: Vec<String> = keys(expect).into_iter().chain(keys(answer)).collect();
    all.sort();
    all.dedup();
    let below: Vec<String> = all
        .iter()
        .filter(|key| at(expect, key) != at(answer, key))
        .map(|key| match (at(expect, key), at(answer, key)) {
            (Some(expect), Some(answer)) => first_difference(&expect, &answer, &format!("{path}/{key}")),
            (Some(expect), None) => format!("{path}/{key} missing: {expect}"),
            (_, answer) => format!("{path}/{key} too much: {}", answer.unwrap_or_default()),
        })
        .collect();
    if below.is_empty() {
        return format!("{path}: {expect} <> {answer}");
    }
    below.join("; ")
}

#[tokio::test(start_paused = true)]
async fn the_embedded_server_answers_as_a_real_one() {
    let server = Server::new(Options::default());
    let client = Client::new(server.service(), "default");
    let mut kept = BTreeMap::new();
    let mut found = Vec::new();
    let mut count = 0;
    for (file, asked) in requests() {
        let answers = ask(&client, &asked, &mut kept).await;
        count += asked.len();
        found.extend(differences(&file, &asked, &answers));
    }
    assert!(count >= 200, "{count} requests");
    assert!(found.is_empty(), "{} of {count}:\n{}", found.len(), found.join("\n"));
}

/// Checks or records the responses of the server in `KAI_E2E_KUBECONFIG`.
#[tokio::test]
async fn a_real_server_answers_as_recorded() {
    let Some(path) = std::env::var_os("KAI_E2E_KUBECONFIG") else {
        eprintln!("skipped: no real server in $KAI_E2E_KUBECONFIG");
        return;
    };
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = kube::config::Kubeconfig::read_from(path).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let client = Client::try_from(config.unwrap()).unwrap();
    clear(&client).await;
    let recording = std::env::var("KAI_ANSWERS").is_ok_and(|what| what == "record");
    let mut kept = BTreeMap::new();
    let mut found = Vec::new();
    for (file, asked) in requests() {
        let answers = ask(&client, &asked, &mut kept).await;
        if recording {
            record(&file, &answers);
            continue;
        }
        let as_recorded = |one| TestRequest {
            differs: None,
            says: None,
            ..one
        };
        let asked: Vec<TestRequest> = asked.into_iter().map(as_recorded).collect();
        found.extend(differences(&file, &asked, &answers));
    }
    clear(&client).await;
    assert!(found.is_empty(), "{}:\n{}", found.len(), found.join("\n"));
}

/// Removes the objects of an earlier run.
async fn clear(client: &Client) {
    for path in [
        "/api/v1/namespaces/compare",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.compare.example",
        "/apis/scheduling.k8s.io/v1/priorityclasses/compare-high",
        "/apis/storage.k8s.io/v1/storageclasses/compare-disk",
        "/apis/node.k8s.io/v1/runtimeclasses/compare-runtime",
        "/api/v1/nodes/compare-node",
    ] {
        send(client, "DELETE", path, &[], Vec::new()).await;
        // A pod on a missing node waits for its kubelet, and a claim waits for the controller of its finalizer.
        let (pods, claim) = (
            "/api/v1/namespaces/compare/pods?gracePeriodSeconds=0",
            "/api/v1/namespaces/compare/persistentvolumeclaims/disk",
        );
        while get(client, path).await.code != 404 {
            send(client, "DELETE", pods, &[], Vec::new()).await;
            let merge = [("content-type", "application/merge-patch+json")];
            let released = json!({"metadata": {"finalizers": null}}).to_string();
            send(client, "PATCH", claim, &merge, released.into_bytes()).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}
