//! Usage over time in the scheduler: its own history, kept across restarts, and Prometheus, which may be away.

#![allow(clippy::unwrap_used)] // The helpers are test code too.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::extract::{Query, State};
use axum::routing::get;
use kai_scheduler::Settings;
use kai_usage::UsageSettings;
use serde_json::{Value, json};
use support::World;

/// A shard's `usageDBConfig`, as settings.
fn settings(config: Value) -> Settings {
    Settings {
        usage: Some(kai_usage::settings::read(&serde_json::from_value(config).unwrap()).unwrap()),
        ..Settings::default()
    }
}

/// Two queues without a quota, which share four GPUs by weight.
fn two_teams(world: &World) {
    for team in ["red", "blue"] {
        let share = json!({ "quota": 0, "limit": -1, "overQuotaWeight": 1 });
        let free = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
        let spec = json!({ "parentQueue": "top", "resources": { "gpu": share, "cpu": free, "memory": free } });
        world.put(json!({ "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": { "name": team }, "spec": spec }));
    }
    world.node("n1", 4);
}

/// Pods of one GPU each, as gangs of one.
fn submit(world: &World, team: &str, names: &[String]) {
    for name in names {
        world.group(name, json!({ "queue": team }));
        world.pod(name, name, 1);
    }
}

fn names(prefix: &str) -> Vec<String> {
    (0..4).map(|number| format!("{prefix}-{number}")).collect()
}

fn bound(world: &World, names: &[String]) -> usize {
    names.iter().filter(|name| world.node_of(name).is_some()).count()
}

/// Red uses all GPUs for a time, and its pods end.
async fn red_uses_all(world: &World, seconds: u64) {
    let early = names("early");
    submit(world, "red", &early);
    world.until("red has all", |world| bound(world, &early) == 4).await;
    early.iter().for_each(|pod| world.runs(pod));
    world.pass(seconds).await;
    for pod in &early {
        world.remove("pods", pod);
        world.remove("podgroups.scheduling.run.ai", pod);
    }
    world.pass(2).await;
}

/// How many GPUs each team gets if both want all at once.
async fn contest(world: &World) -> (usize, usize) {
    let (red, blue) = (names("red"), names("blue"));
    submit(world, "red", &red);
    submit(world, "blue", &blue);
    world
        .until("all GPUs are in use", |world| {
            bound(world, &red) + bound(world, &blue) == 4
        })
        .await;
    world.pass(5).await;
    (bound(world, &red), bound(world, &blue))
}

fn metric(world: &World, line: &str) -> f64 {
    let text = world.context.metrics.text();
    let found = text.lines().find(|text| text.starts_with(line));
    let found = found.unwrap_or_else(|| panic!("no {line} in:\n{text}"));
    found.rsplit(' ').next().unwrap().parse().unwrap()
}

fn saved(world: &World) -> Option<Value> {
    let map = world
        .store
        .get("configmaps", "kai-scheduler", "kai-usage")
        .ok()?
        .to_value();
    Some(serde_json::from_str(map["data"]["default"].as_str()?).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_used_much_yields_to_one_that_did_not() {
    let world = World::with(settings(json!({ "clientType": "embedded" })));
    two_teams(&world);
    red_uses_all(&world, 600).await;
    let usage = metric(&world, "kai_queue_gpu_usage{queue_name=\"red\"");
    assert!(usage > 0.9, "{usage}");
    assert_eq!(contest(&world).await, (0, 4));
}

#[tokio::test(start_paused = true)]
async fn without_settings_the_past_does_not_count() {
    let world = World::new();
    two_teams(&world);
    red_uses_all(&world, 600).await;
    assert_eq!(contest(&world).await, (2, 2));
    assert_eq!(saved(&world), None);
}

#[tokio::test(start_paused = true)]
async fn the_next_process_knows_the_past() {
    let embedded = || settings(json!({ "clientType": "embedded", "usageParams": { "halfLifePeriod": "24h" } }));
    let world = World::with(embedded());
    two_teams(&world);
    red_uses_all(&world, 700).await;
    world.until("saved", |world| saved(world).is_some()).await;
    world.pass(300).await;
    let text = saved(&world).unwrap();
    assert!(
        text["spans"][0]["queues"]["red"][2].as_i64().unwrap() > 500_000,
        "{text}"
    );
    world.task.abort();
    let world = world.restarted(embedded());
    world.pass(5).await;
    assert!(metric(&world, "kai_queue_gpu_usage{queue_name=\"red\"") > 0.5);
    assert_eq!(contest(&world).await, (1, 3));
}

#[tokio::test(start_paused = true)]
async fn a_saved_history_that_can_not_be_read_is_replaced() {
    let world = World::with(Settings {
        usage: Some(UsageSettings::default()),
        ..Settings::default()
    });
    world.task.abort();
    let broken = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "kai-usage", "namespace": "kai-scheduler" },
        "data": { "default": "{", "a100": "kept" } });
    world.put(broken);
    let world = world.restarted(settings(json!({ "clientType": "embedded" })));
    two_teams(&world);
    world.pass(400).await;
    let map = world
        .store
        .get("configmaps", "kai-scheduler", "kai-usage")
        .unwrap()
        .to_value();
    assert!(
        map["data"]["default"].as_str().unwrap().starts_with("{\"version\":1"),
        "{map}"
    );
    assert_eq!(map["data"]["a100"], "kept", "the history of another node pool");
}

/// A server with the answers of Prometheus. It fails while `fails` is 1.
#[derive(Clone, Default)]
struct Prometheus {
    fails: Arc<AtomicU32>,
}

impl Prometheus {
    async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let router = axum::Router::new()
            .route("/api/v1/query", get(answer))
            .with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }
}

async fn answer(
    State(server): State<Prometheus>,
    Query(query): Query<std::collections::BTreeMap<String, String>>,
) -> (axum::http::StatusCode, String) {
    if server.fails.load(Ordering::SeqCst) == 1 {
        return (axum::http::StatusCode::SERVICE_UNAVAILABLE, "starting".to_owned());
    }
    let sample = |queue: &str, value: &str| json!({ "metric": { "queue_name": queue }, "value": [0, value] });
    let result = match query["query"].contains("kai_queue_allocated") {
        true => json!([sample("red", "90"), sample("blue", "10")]),
        false => json!([{ "metric": {}, "value": [0, "100"] }]),
    };
    let answer = json!({ "status": "success", "data": { "resultType": "vector", "result": result } });
    (axum::http::StatusCode::OK, answer.to_string())
}

fn of_prometheus(address: &str) -> Settings {
    settings(json!({ "clientType": "prometheus", "connectionString": address,
        "usageParams": { "fetchInterval": "1s", "stalenessPeriod": "2s" } }))
}

#[tokio::test]
async fn prometheus_knows_the_past_and_may_be_away() {
    let prometheus = Prometheus::default();
    let address = prometheus.start().await;
    let world = World::with(of_prometheus(&address));
    two_teams(&world);
    world
        .until("usage is known", |world| {
            let text = world.context.metrics.text();
            text.contains("kai_queue_gpu_usage{queue_name=\"red\"")
                && metric(world, "kai_queue_gpu_usage{queue_name=\"red\"") == 0.9
        })
        .await;
    assert!(metric(&world, "kai_usage_query_latency_milliseconds_count") >= 1.0);
    assert_eq!(metric(&world, "kai_usage_stale"), 0.0);
    prometheus.fails.store(1, Ordering::SeqCst);
    world
        .until("stale", |world| metric(world, "kai_usage_stale") == 1.0)
        .await;
    assert_eq!(
        metric(&world, "kai_queue_gpu_usage{queue_name=\"red\""),
        0.9,
        "the last known usage"
    );
    assert!(metric(&world, "kai_usage_failures_total") >= 1.0);
    assert_eq!(contest(&world).await, (0, 4));
    prometheus.fails.store(0, Ordering::SeqCst);
    world
        .until("up to date", |world| metric(world, "kai_usage_stale") == 0.0)
        .await;
}

#[tokio::test]
async fn a_server_that_is_not_there_delays_no_pod() {
    // Nothing listens on the port of a listener that was closed.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let world = World::with(of_prometheus(&address));
    two_teams(&world);
    assert_eq!(contest(&world).await, (2, 2));
}
