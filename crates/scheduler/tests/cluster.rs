//! The scheduler against an embedded API server: its writes, and its reactions to failures.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http_body_util::BodyExt;
use kai_embedded::server::{Fault, RequestInfo};
use kai_scheduler::{BindRequests, Partition, Settings};
use serde_json::{Value, json};
use support::World;
use tower::ServiceExt;

const GROUPS: &str = "podgroups.scheduling.run.ai";
const REQUESTS: &str = "bindrequests.scheduling.run.ai";

#[tokio::test(start_paused = true)]
async fn a_plain_pod_is_bound_at_once() {
    let world = World::new();
    world.node("n1", 2);
    world.group("g", json!({}));
    world.pod("p", "g", 1);
    world
        .until("bound", |world| world.node_of("p").as_deref() == Some("n1"))
        .await;
    assert!(world.get(REQUESTS, "p").is_none());
    world
        .until("told", |world| {
            world.events("p").iter().any(|(reason, _)| reason == "Scheduled")
        })
        .await;
    let start = |world: &World| {
        world.get(GROUPS, "g").unwrap()["metadata"]["annotations"]["kai.scheduler/last-start-timestamp"].clone()
    };
    world.until("start noted", |world| start(world).is_string()).await;
}

#[tokio::test(start_paused = true)]
async fn part_of_a_gpu_goes_by_a_bind_request() {
    let world = World::new();
    world.node("n1", 1);
    world.group("g", json!({ "minMember": 2 }));
    world.fraction("p1", "g", "0.5");
    world.fraction("p2", "g", "0.5");
    world.until("requested", |world| world.all(REQUESTS).len() == 2).await;
    let requests = world.all(REQUESTS);
    let spec = &requests[0]["spec"];
    assert_eq!(spec["selectedNode"], "n1");
    assert_eq!(spec["receivedResourceType"], "Fraction");
    assert_eq!(spec["receivedGPU"], json!({ "count": 1, "portion": "0.50" }));
    assert_eq!(
        spec["selectedGPUGroups"], requests[1]["spec"]["selectedGPUGroups"],
        "both are on the one GPU"
    );
    let owner = &requests[0]["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], world.get("pods", "p1").unwrap()["metadata"]["uid"]);
    world.pass(30).await;
    assert_eq!(world.node_of("p1"), None, "binding is the binder's work");
    assert_eq!(world.all(REQUESTS).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn everything_goes_by_bind_requests_if_so_wanted() {
    let world = World::with(Settings {
        bind_requests: BindRequests::Always,
        ..Settings::default()
    });
    world.node("n1", 1);
    world.group("g", json!({}));
    world.pod("p", "g", 1);
    world
        .until("requested", |world| world.get(REQUESTS, "p").is_some())
        .await;
    let request = world.get(REQUESTS, "p").unwrap();
    assert_eq!(request["spec"]["receivedResourceType"], "Regular");
    assert_eq!(request["metadata"]["labels"]["selected-node"], "n1");
    assert_eq!(world.node_of("p"), None);
}

#[tokio::test(start_paused = true)]
async fn a_failed_bind_request_is_removed_and_planned_anew() {
    let world = World::new();
    world.node("n1", 1);
    world.group("g", json!({}));
    world.fraction("p", "g", "0.5");
    world
        .until("requested", |world| world.get(REQUESTS, "p").is_some())
        .await;
    let first = world.get(REQUESTS, "p").unwrap()["metadata"]["uid"].clone();
    let failed =
        kai_embedded::server::Patch::Merge(json!({ "status": { "phase": "Failed", "reason": "no reservation" } }));
    world.store.patch_status(REQUESTS, "a", "p", &failed).unwrap();
    let again = |world: &World| {
        world
            .get(REQUESTS, "p")
            .is_some_and(|request| request["metadata"]["uid"] != first)
    };
    world.until("requested anew", again).await;
}

#[tokio::test(start_paused = true)]
async fn a_leftover_of_an_earlier_pod_does_not_stand_in_the_way() {
    let world = World::new();
    world.put(json!({
        "apiVersion": "scheduling.run.ai/v1alpha2", "kind": "BindRequest",
        "metadata": { "name": "p", "namespace": "a" },
        "spec": { "podName": "p", "selectedNode": "gone" },
    }));
    world.pass(3).await;
    world.node("n1", 1);
    world.group("g", json!({}));
    world.fraction("p", "g", "0.5");
    let right = |world: &World| {
        world
            .get(REQUESTS, "p")
            .is_some_and(|request| request["spec"]["selectedNode"] == "n1")
    };
    world.until("requested", right).await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_told_why_and_it_ends_with_the_waiting() {
    let world = World::new();
    world.group("g", json!({}));
    world.pod("p", "g", 4);
    world.node("n1", 1);
    let condition = |world: &World| -> Value {
        let pod = world.get("pods", "p").unwrap();
        let all = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter()
            .find(|condition| condition["type"] == "PodScheduled")
            .unwrap_or_default()
    };
    let said = "no nodes with enough resources were found: 1 node(s) didn't have enough resources: GPUs";
    world
        .until("pod told", |world| condition(world)["message"] == said)
        .await;
    assert_eq!(
        (&condition(&world)["status"], &condition(&world)["reason"]),
        (&json!("False"), &json!("Unschedulable"))
    );
    let group = |world: &World| world.get(GROUPS, "g").unwrap()["status"]["schedulingConditions"].clone();
    world
        .until("group told", |world| {
            group(world)[0]["message"] == format!("PodSchedulingErrors: {said}")
        })
        .await;
    let told = &group(&world)[0];
    assert_eq!(
        (&told["type"], &told["status"]),
        (&json!("UnschedulableOnNodePool"), &json!("True"))
    );
    assert_eq!(
        (&told["nodePool"], &told["reasons"][0]["reason"]),
        (&json!("default"), &json!("PodSchedulingErrors"))
    );
    let told = |world: &World, name: &str| world.events(name).iter().any(|(reason, _)| reason == "Unschedulable");
    world
        .until("events", |world| told(world, "p") && told(world, "g"))
        .await;
    let writes = world.store.revision();
    world.pass(120).await;
    assert_eq!(world.store.revision(), writes, "nothing new is nothing to write");

    world.node("n2", 4);
    world
        .until("bound", |world| world.node_of("p").as_deref() == Some("n2"))
        .await;
    world
        .until("nothing to say", |world| {
            group(world).as_array().is_none_or(Vec::is_empty)
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_gang_that_lacks_pods_is_told_so_in_words_that_are_known_from_kai() {
    let world = World::new();
    world.node("n1", 1);
    world.group("g", json!({ "minMember": 2 }));
    world.pod("p", "g", 1);
    let told = |world: &World| {
        let events = world.events("g").into_iter();
        let mut told = events.filter(|(reason, _)| reason == "NotReady");
        told.next().map(|(_, message)| message)
    };
    world.until("the event", |world| told(world).is_some()).await;
    assert_eq!(
        told(&world).as_deref(),
        Some(
            "Job is not ready for scheduling. Waiting for 2 pods, currently 1 exist, 0 are gated. (the gang has 1 pods ready to start, \
             2 are required)"
        )
    );
}

#[tokio::test(start_paused = true)]
async fn a_conflict_does_not_silence_why_a_pod_waits() {
    let world = World::new();
    world.faults(failing("status", Fault::Fail(409), 4));
    world.group("g", json!({}));
    world.pod("p", "g", 4);
    let told = |world: &World| {
        let pod = world.get("pods", "p").unwrap();
        let all = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.iter()
            .any(|condition| condition["type"] == "PodScheduled" && condition["status"] == "False")
    };
    world.until("told", told).await;
}

#[tokio::test(start_paused = true)]
async fn a_gang_that_does_not_want_it_has_no_marks_on_its_pods() {
    let world = World::new();
    world.group("g", json!({ "markUnschedulable": false }));
    world.pod("p", "g", 1);
    let group = |world: &World| world.get(GROUPS, "g").unwrap()["status"]["schedulingConditions"].clone();
    world
        .until("group told", |world| group(world)[0]["message"].is_string())
        .await;
    world.pass(30).await;
    let conditions = world.get("pods", "p").unwrap()["status"]["conditions"].clone();
    assert!(conditions.as_array().is_none_or(Vec::is_empty), "{conditions}");
}

/// Pod `victim` runs on the only GPU until `winner` is created, which has a higher priority.
async fn a_victim_has_to_leave(world: &World) {
    world.node("n1", 1);
    for (name, value) in [("low", 50), ("high", 90)] {
        world.put(
            json!({ "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": name }, "value": value }),
        );
        world.group(name, json!({ "priorityClassName": name }));
    }
    world.pod("victim", "low", 1);
    world.until("bound", |world| world.node_of("victim").is_some()).await;
    world.runs("victim");
    world.pod("winner", "high", 1);
    let leaving = |world: &World| {
        let victim = world.get("pods", "victim");
        victim.is_none_or(|victim| victim["metadata"]["deletionTimestamp"].is_string())
    };
    world.until("evicted", leaving).await;
}

#[tokio::test(start_paused = true)]
async fn higher_priority_evicts_and_gets_the_place() {
    let world = World::with(Settings {
        update_pod_eviction_condition: true,
        ..Settings::default()
    });
    a_victim_has_to_leave(&world).await;
    let victim = world.get("pods", "victim").expect("it has its grace period");
    let conditions = victim["status"]["conditions"].as_array().unwrap();
    let target = conditions
        .iter()
        .find(|condition| condition["type"] == "DisruptionTarget")
        .unwrap();
    assert_eq!(target["reason"], "PreemptionByScheduler");
    world
        .until("told", |world| {
            world.events("low").iter().any(|(reason, _)| reason == "Evict")
        })
        .await;
    let event = world
        .all("events")
        .into_iter()
        .find(|event| event["reason"] == "Evict")
        .unwrap();
    let annotations = &event["metadata"]["annotations"];
    assert_eq!(annotations["evictor-pod-group-name"], "high");
    assert_eq!(annotations["evictor-pod-group-namespace"], "a");
    assert_eq!(annotations["evictor-action-type"], "preempt");
    assert_eq!(annotations["num-evicted-pods"], "1");
    assert_eq!(annotations["kai.scheduler/evicted-pods"], "victim");
    let fairness: serde_json::Value =
        serde_json::from_str(annotations["kai.scheduler/fairness"].as_str().unwrap()).unwrap();
    assert_eq!(fairness["rule"], "priority");
    assert_eq!(annotations["kai.scheduler/evicted-workload"], "pod group a/low");
    assert_eq!(annotations["kai.scheduler/evictor-workload"], "pod group a/high");
    world
        .until("promised", |world| {
            world.events("winner").iter().any(|(reason, _)| reason == "Pipelined")
        })
        .await;
    assert_eq!(world.node_of("winner"), None, "the place is not free yet");
    let noted =
        world.get(GROUPS, "low").unwrap()["metadata"]["annotations"]["kai.scheduler/last-eviction-timestamp"].clone();
    assert!(noted.is_string(), "{noted}");
    world.remove("pods", "victim");
    world
        .until("bound", |world| world.node_of("winner").as_deref() == Some("n1"))
        .await;
}

/// Fails the first calls of a subresource with this fault.
fn failing(
    subresource: &'static str,
    fault: Fault,
    times: u32,
) -> impl Fn(&RequestInfo) -> Fault + Send + Sync + 'static {
    let left = AtomicU32::new(times);
    move |request: &RequestInfo| {
        let fails = request.subresource == subresource
            && left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                .is_ok();
        if fails { fault.clone() } else { Fault::Pass }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_binding_is_told_and_tried_again() {
    let world = World::new();
    world.faults(failing("binding", Fault::Fail(500), 3));
    world.node("n1", 1);
    world.group("g", json!({}));
    world.pod("p", "g", 1);
    world
        .until("told", |world| {
            world.events("p").iter().any(|(reason, _)| reason == "FailedBinding")
        })
        .await;
    world.until("bound", |world| world.node_of("p").is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn a_binding_whose_answer_is_lost_happened_once() {
    let world = World::new();
    world.faults(failing("binding", Fault::DropResponse, 1));
    world.node("n1", 1);
    world.group("g", json!({}));
    world.pod("p", "g", 1);
    world.until("bound", |world| world.node_of("p").is_some()).await;
    world.group("h", json!({}));
    world.pod("late", "h", 1);
    world.pass(100).await;
    assert_eq!(world.node_of("late"), None, "the GPU is taken");
    world.runs("p");
    world.pass(10).await;
    assert_eq!(world.node_of("late"), None);
}

#[tokio::test(start_paused = true)]
async fn without_credentials_it_ends() {
    let world = World::new();
    world.faults(failing("binding", Fault::Fail(401), 1));
    world.node("n1", 1);
    world.group("g", json!({}));
    world.pod("p", "g", 1);
    let error = world.task.await.unwrap();
    assert!(matches!(error, kai_scheduler::Error::Unauthorized(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_partition_labels_what_it_binds() {
    let world = World::with(Settings {
        partition: Partition::new("kai.scheduler/node-pool", "big"),
        ..Settings::default()
    });
    let label =
        kai_embedded::server::Patch::Merge(json!({ "metadata": { "labels": { "kai.scheduler/node-pool": "big" } } }));
    world.node("n1", 1);
    world.group("g", json!({}));
    world.pod("p", "g", 1);
    world.pass(20).await;
    assert_eq!(world.node_of("p"), None, "nothing is in the partition");
    assert!(world.events("p").is_empty(), "and nothing is ours to tell");
    for (resource, namespace, name) in [
        ("nodes", "", "n1"),
        (GROUPS, "a", "g"),
        ("queues.scheduling.run.ai", "", "q"),
    ] {
        world.store.patch(resource, namespace, name, &label).unwrap();
    }
    world
        .store
        .patch("queues.scheduling.run.ai", "", "top", &label)
        .unwrap();
    world.until("bound", |world| world.node_of("p").is_some()).await;
    assert_eq!(
        world.get("pods", "p").unwrap()["metadata"]["labels"]["kai.scheduler/node-pool"],
        "big"
    );
}

#[tokio::test(start_paused = true)]
async fn questions_are_answered() {
    let world = World::new();
    world.node("n1", 1);
    world.group("g", json!({}));
    world.pod("p", "g", 4);
    let ask = async |path: &str| {
        let request = axum::http::Request::get(path).body(axum::body::Body::empty()).unwrap();
        let response = world.scheduler.router().oneshot(request).await.unwrap();
        (
            response.status().as_u16(),
            response.into_body().collect().await.unwrap().to_bytes(),
        )
    };
    let (status, body) = ask("/explain?pod=a/p").await;
    assert_eq!(status, 200);
    let answer: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        answer["reason"],
        "no nodes with enough resources were found: 1 node(s) didn't have enough resources: GPUs"
    );
    assert_eq!((&answer["queue"], &answer["status"]), (&json!("q"), &json!("Pending")));
    assert_eq!(answer.get("remedies"), None, "remedies are made on request only");
    let (status, body) = ask("/explain?pod=a/p&remedies=true").await;
    assert_eq!(status, 200);
    let with_remedies: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(with_remedies["reason"], answer["reason"]);
    assert_eq!(
        with_remedies["remedies"],
        json!([{
            "text": "ask for at most 1 GPU for each pod",
            "tried": true,
            "steps": [{ "kind": "askAtMost", "text": "ask for at most 1 GPU for each pod" }],
        }])
    );
    assert_eq!(with_remedies["needs"], "4 GPUs on one node; n1 has 1 free");
    assert_eq!(ask("/explain?pod=a/nobody&remedies=true").await.0, 404);
    assert_eq!(ask("/explain?pod=a/nobody").await.0, 404);
    assert_eq!(ask("/explain?pod=nobody").await.0, 400);
    world.put(json!({ "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": "high" }, "value": 90 }));
    world.group("urgent", json!({ "priorityClassName": "high" }));
    world.pod("u", "urgent", 4);
    world.pass(3).await;
    let order: Value = serde_json::from_slice(&ask("/get-job-order").await.1).unwrap();
    let job = |id: &str, priority: i32| json!({ "id": id, "priority": priority, "namespace": "a" });
    let jobs = [job("urgent", 90), job("g", 50)];
    assert_eq!(order, json!({ "global_order": jobs, "queue_order": { "q": jobs } }));
    // An object of every kind that the scheduler watches.
    let in_a = |name: &str| json!({ "name": name, "namespace": "a" });
    for object in [
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": in_a("settings"), "data": { "k": "v" } }),
        json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "v" },
                "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "hostPath": { "path": "/v" } } }),
        json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": in_a("c"),
                "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } }),
        json!({ "apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology", "metadata": { "name": "t" },
                "spec": { "levels": [{ "nodeLabel": "rack" }] } }),
        json!({ "apiVersion": "scheduling.run.ai/v1alpha2", "kind": "BindRequest", "metadata": in_a("elsewhere"),
                "spec": { "podName": "elsewhere", "selectedNode": "n1" } }),
    ] {
        world.put(object);
    }
    let (status, zip) = ask("/get-snapshot").await;
    assert_eq!(status, 200);
    let mut zip = zip::ZipArchive::new(std::io::Cursor::new(zip)).unwrap();
    let snapshot: Value = serde_json::from_reader(zip.by_name("snapshot.json").unwrap()).unwrap();
    assert_eq!(snapshot["rawObjects"]["pods"][0]["metadata"]["name"], "p");
    assert_eq!(snapshot["schedulerParams"]["schedulerName"], "kai-scheduler");
    for kind in [
        "pods",
        "nodes",
        "queues",
        "podGroups",
        "bindRequests",
        "priorityClasses",
        "topologies",
        "persistentVolumes",
        "persistentVolumeClaims",
        "configMaps",
    ] {
        let objects = snapshot["rawObjects"][kind].as_array();
        assert!(
            objects.is_some_and(|objects| !objects.is_empty()),
            "{kind}: {}",
            snapshot["rawObjects"]
        );
    }
    assert_eq!(
        snapshot["rawObjects"]["configMaps"][0]["data"],
        Value::Null,
        "names only"
    );
    assert!(
        snapshot["config"]["actions"]
            .as_str()
            .is_some_and(|actions| actions.starts_with("allocate"))
    );
}

#[tokio::test(start_paused = true)]
async fn metrics_have_the_names_that_dashboards_know() {
    let world = World::new();
    world.node("n1", 1);
    world.group("g", json!({}));
    world.pod("p", "g", 1);
    world.until("bound", |world| world.node_of("p").is_some()).await;
    world.pass(10).await;
    let text = world.context.metrics.text();
    for line in [
        "kai_e2e_scheduling_latency_milliseconds ",
        "kai_action_scheduling_latency_milliseconds{action=\"allocate\"} ",
        "kai_podgroups_scheduled_by_action{action=\"allocate\"} 1",
        "kai_queue_fair_share_gpu{queue_name=\"q\",queue_metadata_name=\"q\",queue_display_name=\"\"} ",
        "kai_queue_gpu_usage{queue_name=\"q\",queue_metadata_name=\"q\",queue_display_name=\"\"} 0",
        "kai_task_bind_latency_milliseconds_count 1",
        "kai_decisions_total{kind=\"bind\"} 1",
        "kai_broken_invariants_total{law=\"no node beyond its GPUs\"} 0",
        "kai_queue_requested_gpus{queue_name=\"q\",queue_metadata_name=\"q\",queue_display_name=\"\"} 1.0",
        "kai_queue_waiting_pod_groups{queue_name=\"q\",queue_metadata_name=\"q\",queue_display_name=\"\"} 0.0",
        "kai_node_gpus{node=\"n1\"} 1.0",
        "kai_node_allocated_gpus{node=\"n1\"} 1.0",
        "kai_node_idle_gpus{node=\"n1\"} 0.0",
    ] {
        assert!(text.contains(&format!("\n{line}")), "{line} is not in\n{text}");
    }
    let broken = text
        .lines()
        .filter(|line| line.starts_with("kai_broken_invariants_total{"));
    assert!(
        broken.clone().count() == 3 && broken.clone().all(|line| line.ends_with(" 0")),
        "{text}"
    );
    assert!(world.context.health.not_ready().is_empty() && world.context.health.stuck().is_empty());
}

#[tokio::test(start_paused = true)]
async fn metrics_show_how_many_pod_groups_of_a_queue_wait_and_how_long() {
    let world = World::new();
    world.node("n1", 1);
    for name in ["runs", "waits", "waits-too"] {
        world.group(name, json!({}));
        world.pod(name, name, 1);
        world.pass(10).await;
    }
    world.pass(60).await;
    let text = world.context.metrics.text();
    let value = |name: &str| -> f64 {
        let start = format!("{name}{{queue_name=\"q\",");
        let line = text.lines().find(|line| line.starts_with(&start));
        line.and_then(|line| line.rsplit(' ').next()).unwrap().parse().unwrap()
    };
    assert_eq!(value("kai_queue_waiting_pod_groups"), 2.0);
    assert_eq!(value("kai_queue_requested_gpus"), 3.0);
    // Created 80 seconds before the end; the gauges are set every five seconds.
    let longest = value("kai_queue_longest_wait_seconds");
    assert!((70.0..=85.0).contains(&longest), "{longest}");
}

/// Every metric of KAI's scheduler that has a meaning here, with its labels; docs/differences.md lists the others.
#[tokio::test(start_paused = true)]
async fn all_metrics_of_kai_are_there_with_their_labels() {
    let world = World::new();
    a_victim_has_to_leave(&world).await;
    world.pass(10).await;
    let text = world.context.metrics.text();
    let queue = "queue_name=\"q\",queue_metadata_name=\"q\",queue_display_name=\"\"";
    for (name, labels) in [
        ("e2e_scheduling_latency_milliseconds", ""),
        ("open_session_latency_milliseconds", ""),
        ("close_session_latency_milliseconds", ""),
        ("action_scheduling_latency_milliseconds", "action=\"stalegangeviction\""),
        ("task_scheduling_latency_milliseconds_bucket", "le=\"2560.0\""),
        ("task_bind_latency_milliseconds_bucket", "le=\"5.0\""),
        ("podgroups_scheduled_by_action", "action=\"preempt\""),
        ("podgroups_acted_on_by_action", "action=\"reclaim\""),
        ("scenarios_simulation_by_action", "action=\"preempt\""),
        ("scenarios_filtered_by_action", "action=\"consolidation\""),
        ("total_preemption_attempts", ""),
        ("queue_fair_share_cpu_cores", queue),
        ("queue_fair_share_memory_gb", queue),
        ("queue_fair_share_gpu", queue),
        ("queue_cpu_usage", queue),
        ("queue_memory_usage", queue),
        ("queue_gpu_usage", queue),
        (
            "pod_group_evicted_pods_total",
            "podgroup=\"low\",namespace=\"a\",uid=\"",
        ),
        (
            "scenario_search_jobs_total",
            "action=\"preempt\",result=\"solved\",reduced_budget=\"false\"",
        ),
        (
            "scenario_search_scenarios_total",
            "action=\"preempt\",generator=\"NodeLocalGreedy\",state=\"simulated\"",
        ),
        (
            "scenario_search_duration_seconds_count",
            "action=\"preempt\",generator=\"NodeLocalGreedy\",result=\"solved\"",
        ),
        ("scenario_search_action_budget_exhausted_total", "action=\"reclaim\""),
    ] {
        let line = match labels {
            "" => format!("\nkai_{name} "),
            labels => format!("\nkai_{name}{{{labels}"),
        };
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
    assert!(text.contains("nodepool=\"default\",action=\"preempt\"} 1"), "{text}");
    assert!(text.contains("\nkai_total_preemption_attempts 1\n"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_burst_ends_with_every_pod_placed_once() {
    let world = World::new();
    let bindings = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&bindings);
    world.faults(move |request: &RequestInfo| {
        if request.subresource == "binding" {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        Fault::Pass
    });
    (0..10).for_each(|at| world.node(&format!("n{at}"), 8));
    for at in 0..80 {
        world.group(&format!("g{at}"), json!({}));
        world.pod(&format!("p{at}"), &format!("g{at}"), 1);
    }
    let placed = |world: &World| (0..80).all(|at| world.node_of(&format!("p{at}")).is_some());
    world.until("all bound", placed).await;
    assert_eq!(bindings.load(Ordering::Relaxed), 80);
    for at in 0..10 {
        let node = format!("n{at}");
        let there = world
            .all("pods")
            .iter()
            .filter(|pod| pod["spec"]["nodeName"] == node.as_str())
            .count();
        assert_eq!(there, 8);
    }
}
