//! The view and the decisions that a running scheduler shows.

// A test fails by a panic.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use http_body_util::BodyExt;
use kai_embedded::server::DeleteOptions;
use kai_scheduler::{Scheduler, Settings};
use kai_view::{ClusterView, Decision, DecisionKind, PodStatus};
use serde_json::json;
use support::World;
use tower::ServiceExt;

/// A queue with a quota of GPUs.
fn queue(world: &World, name: &str, gpus: i64) {
    let quota = |amount: i64| json!({ "quota": amount, "limit": -1, "overQuotaWeight": 1 });
    let resources = json!({ "gpu": quota(gpus), "cpu": quota(-1), "memory": quota(-1) });
    world.put(
        json!({ "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": { "name": name },
                      "spec": { "parentQueue": "top", "resources": resources } }),
    );
}

async fn get(world: &World, path: &str) -> (u16, Vec<u8>) {
    let request = axum::http::Request::get(path).body(axum::body::Body::empty()).unwrap();
    let response = world.scheduler.router().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    (
        status,
        response.into_body().collect().await.unwrap().to_bytes().to_vec(),
    )
}

async fn decisions(world: &World, after: u64) -> Vec<Arc<Decision>> {
    let (status, body) = get(world, &format!("/decisions?after={after}")).await;
    assert_eq!(status, 200);
    serde_json::from_slice(&body).unwrap()
}

fn kinds(decisions: &[Arc<Decision>]) -> Vec<(DecisionKind, &str)> {
    let kinds = decisions.iter().map(|decision| (decision.kind, decision.pod.as_str()));
    kinds.collect()
}

#[tokio::test(start_paused = true)]
async fn decisions_tell_who_gave_way_to_whom() {
    let world = World::new();
    queue(&world, "lender", 0);
    queue(&world, "owner", 1);
    world.node("n1", 1);
    world.group("notebook", json!({ "queue": "lender" }));
    world.pod("notebook", "notebook", 1);
    world.until("bound", |world| world.node_of("notebook").is_some()).await;
    world.runs("notebook");
    let first = decisions(&world, 0).await;
    assert_eq!(kinds(&first), [(DecisionKind::Bind, "notebook")]);
    assert_eq!(
        (first[0].action.as_deref(), first[0].queue.as_deref()),
        (Some("allocate"), Some("lender"))
    );

    world.group("train", json!({ "queue": "owner" }));
    world.pod("train", "train", 1);
    world
        .until("evicted", |world| {
            world.get("pods", "notebook").unwrap()["metadata"]["deletionTimestamp"].is_string()
        })
        .await;
    // In these seconds each cycle makes the same promise.
    world.pass(10).await;
    world.remove("pods", "notebook");
    world.until("bound", |world| world.node_of("train").is_some()).await;
    let later = decisions(&world, first[0].number).await;
    assert_eq!(
        kinds(&later),
        [
            (DecisionKind::Evict, "notebook"),
            (DecisionKind::Promise, "train"),
            (DecisionKind::Bind, "train"),
        ]
    );
    let beneficiary = later[0].beneficiary.as_ref().unwrap();
    assert_eq!(
        (beneficiary.pod_group.as_str(), beneficiary.queue.as_deref()),
        ("train", Some("owner"))
    );
    assert_eq!(later[0].action.as_deref(), Some("reclaim"));

    let (status, body) = get(&world, "/view").await;
    assert_eq!(status, 200);
    let view: ClusterView = serde_json::from_slice(&body).unwrap();
    let mut newest_first: Vec<Arc<Decision>> = first.into_iter().chain(later).collect();
    newest_first.reverse();
    assert_eq!(view.decisions, Some(newest_first));
    assert_eq!(view.missing, []);
    assert_eq!(get(&world, "/decisions?after=x").await.0, 400);
}

#[tokio::test(start_paused = true)]
async fn looking_shows_promises_and_makes_no_cycle_run() {
    let world = World::with(Settings {
        schedule_period: std::time::Duration::from_secs(3_600),
        ..Settings::default()
    });
    world.node("n1", 1);
    world.group("old", json!({}));
    world.pod("old", "old", 1);
    world.until("bound", |world| world.node_of("old").is_some()).await;
    world.runs("old");
    // The pod takes its time to leave.
    let slowly = DeleteOptions {
        grace_seconds: Some(3_600),
        ..DeleteOptions::default()
    };
    world.store.delete("pods", "a", "old", &slowly).unwrap();
    world.group("new", json!({}));
    world.pod("new", "new", 1);
    world.pass(60).await;

    let watcher = world.scheduler.watcher();
    let first = watcher.view().await.unwrap();
    let pod = |view: &ClusterView, name: &str| {
        let pods = view.pods.as_ref().unwrap();
        pods.iter().find(|pod| pod.name == name).unwrap().clone()
    };
    assert_eq!(
        (pod(&first, "new").status, pod(&first, "new").node.as_deref()),
        (PodStatus::Pipelined, Some("n1"))
    );
    assert_eq!(pod(&first, "old").status, PodStatus::Releasing);
    assert_eq!(
        kinds(first.decisions.as_ref().unwrap())[0],
        (DecisionKind::Promise, "new")
    );

    // No cycle has run since: it is the same view, at any time.
    assert!(Arc::ptr_eq(&first, &watcher.view().await.unwrap()));
    world.pass(60).await;
    assert!(
        Arc::ptr_eq(&first, &watcher.view().await.unwrap()),
        "to look makes no cycle run"
    );

    // A change makes a cycle run, and the view shows its result.
    world.group("other", json!({}));
    world.pod("other", "other", 1);
    world.pass(60).await;
    let second = watcher.view().await.unwrap();
    assert_ne!(first.time, second.time);
    assert_eq!(pod(&second, "other").status, PodStatus::Pending);
    assert_eq!(pod(&second, "new").status, PodStatus::Pipelined);

    // The order of gangs is read from the engine without the promises: a view waits for the next cycle.
    assert_eq!(get(&world, "/get-job-order").await.0, 200);
    world.pass(60).await;
    let view = watcher.view();
    world.group("third", json!({}));
    assert_eq!(pod(&view.await.unwrap(), "new").status, PodStatus::Pipelined);

    let explanation = watcher.explain("a", "other").await.unwrap();
    assert!(explanation.needs.is_some(), "{explanation:?}");
    let running = watcher.explain("a", "old").await.unwrap();
    assert_eq!(running.no_remedy.as_deref(), Some("the pod does not wait"));
    assert_eq!(watcher.explain("a", "nobody").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_scheduler_that_does_not_run_shows_nothing_at_once() {
    let world = World::new();
    let idle = Scheduler::prepare(&world.context, Settings::default());
    let asked = tokio::time::Instant::now();
    assert_eq!(idle.watcher().view().await, None);
    assert_eq!(idle.watcher().explain("a", "p").await, None);
    assert_eq!(asked.elapsed(), std::time::Duration::ZERO);

    world.node("n1", 1);
    world.group("g", json!({}));
    world.pod("p", "g", 1);
    world.until("bound", |world| world.node_of("p").is_some()).await;
    let watcher = world.scheduler.watcher();
    assert!(watcher.view().await.is_some());
    world.task.abort();
    world.pass(1).await;
    assert_eq!(watcher.view().await, None);
}
