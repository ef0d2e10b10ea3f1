//! Fuzz test: sends mutated AdmissionReviews to every webhook. Each is answered with a verdict or with a status that names the problem;
//! none ends the server. `KAI_FUZZ_SECONDS=600 cargo test -p kai-controllers --test fuzz -- --ignored` runs for ten minutes.
#![allow(clippy::unwrap_used)] // It is all test.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use kai_controllers::admission::{self, Feature, Settings, State};
use kai_fuzz::Fuzz;
use serde_json::{Value, json};
use tower::ServiceExt;

const PATHS: [&str; 6] = [
    admission::MUTATE_POD,
    admission::VALIDATE_POD,
    admission::VALIDATE_POD_RESIZE,
    admission::VALIDATE_QUEUE,
    admission::VALIDATE_POD_GROUP,
    admission::VALIDATE_TOPOLOGY,
];
const ANSWER_BYTES_MAX: usize = 64 << 20;

fn review(operation: &str, resource: &str, object: Value, old_object: Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "operation": operation, "namespace": "ns", "name": "x",
            "resource": { "group": "", "version": "v1", "resource": resource },
            "userInfo": { "username": "tenant", "groups": ["system:authenticated"] },
            "object": object, "oldObject": old_object,
        },
    })
}

/// A review of each kind, with every kind of GPU request.
fn seeds() -> Vec<Value> {
    let pod = |annotations: Value, resources: Value| {
        json!({
            "metadata": { "name": "p", "namespace": "ns", "labels": { "kai.scheduler/queue": "team", "app": "x" }, "annotations": annotations },
            "spec": {
                "schedulerName": "kai-scheduler", "runtimeClassName": "nvidia",
                "containers": [{ "name": "main", "image": "i", "resources": resources,
                    "env": [{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" }], "envFrom": [{ "configMapRef": { "name": "c" } }] }],
                "initContainers": [{ "name": "first", "restartPolicy": "Always" }],
                "volumes": [{ "name": "v", "emptyDir": {} }],
            },
        })
    };
    let fraction = pod(
        json!({ "gpu-fraction": "0.5", "gpu-fraction-num-devices": "2", "gpu-fraction-container-name": "main" }),
        json!({}),
    );
    let memory = pod(
        json!({ "gpu-memory": "1000", "runai/shared-gpu-configmap": "c" }),
        json!({}),
    );
    let whole = pod(
        json!({ "pod-group-name": "gang" }),
        json!({ "limits": { "nvidia.com/gpu": "1" }, "requests": { "nvidia.com/gpu": "1", "cpu": "100m" } }),
    );
    let share = json!({ "quota": 1, "limit": -1, "overQuotaWeight": 1 });
    let queue = json!({
        "metadata": { "name": "team", "annotations": { "kai.scheduler/allowed-namespaces": "ns,other" } },
        "spec": { "parentQueue": "root", "priority": 1, "preemptMinRuntime": "1m",
                  "resources": { "gpu": share, "cpu": share, "memory": share } },
    });
    let group = json!({
        "metadata": { "name": "gang", "namespace": "ns", "annotations": { "kai.scheduler/last-start-timestamp": "2026-01-01T00:00:00Z" } },
        "spec": {
            "queue": "team", "minMember": 2, "priorityClassName": "train", "preemptibility": "preemptible", "minSubGroup": 1,
            "topologyConstraint": { "topology": "t", "requiredTopologyLevel": "rack", "preferredTopologyLevel": "host" },
            "subGroups": [
                { "name": "a", "minSubGroup": 1 },
                { "name": "b", "parent": "a", "minMember": 1, "topologyConstraint": { "topology": "t", "requiredTopologyLevel": "rack" } },
                { "name": "c", "parent": "a", "minMember": 1 },
            ],
        },
    });
    let topology = json!({ "metadata": { "name": "t" }, "spec": { "levels": [{ "nodeLabel": "rack" }, { "nodeLabel": "host" }] } });
    vec![
        review("CREATE", "pods", fraction.clone(), Value::Null),
        review("UPDATE", "pods", memory, fraction),
        review("CREATE", "pods", whole, Value::Null),
        review("CREATE", "queues", queue.clone(), Value::Null),
        review("DELETE", "queues", Value::Null, queue),
        review("CREATE", "podgroups", group.clone(), Value::Null),
        review("UPDATE", "podgroups", group.clone(), group),
        review("CREATE", "topologies", topology.clone(), Value::Null),
        review("UPDATE", "topologies", topology.clone(), topology),
    ]
}

/// Sends the body to every webhook.
fn ask_all(body: &[u8]) {
    let settings = Settings {
        block_visible_devices: Feature::On,
        hami_core: Feature::On,
        quota_validation: Feature::On,
        ..Settings::default()
    };
    let root = json!({ "metadata": { "name": "root" }, "spec": {} });
    let team = json!({ "metadata": { "name": "team" }, "spec": { "parentQueue": "root" } });
    let queues: Vec<Arc<kai_api::Queue>> = [root, team]
        .map(|queue| Arc::new(serde_json::from_value(queue).unwrap()))
        .to_vec();
    let router = admission::router(State::new(settings, queues, |_| true, &kai_cluster::Metrics::default()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for path in PATHS {
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(Body::from(body.to_vec())).unwrap();
        runtime.block_on(async {
            let answer = router.clone().oneshot(request).await.unwrap();
            let status = answer.status();
            let text = to_bytes(answer.into_body(), ANSWER_BYTES_MAX).await.unwrap();
            assert!(
                [StatusCode::OK, StatusCode::BAD_REQUEST].contains(&status),
                "{path}: {status}: {}",
                text.escape_ascii()
            );
            if status == StatusCode::OK {
                let answer: Value = serde_json::from_slice(&text).unwrap();
                assert!(answer["response"]["allowed"].is_boolean(), "{path}: {answer}");
            }
        });
    }
}

fn reviews(fuzz: Fuzz) {
    fuzz.json(&seeds(), |review| ask_all(review.to_string().as_bytes()));
}

fn bodies(fuzz: Fuzz) {
    let seeds: Vec<Vec<u8>> = seeds().iter().map(|seed| seed.to_string().into_bytes()).collect();
    let words: [&[u8]; 6] = [b"null", b"\\u0000", b"1e400", b"[[[[[[[[[[", b"{\"request\":", b"\xff"];
    fuzz.bytes(&seeds, &words, ask_all);
}

#[test]
fn the_seeds_are_answered() {
    for seed in seeds() {
        ask_all(seed.to_string().as_bytes());
    }
}

#[test]
fn mutated_reviews_are_answered() {
    reviews(Fuzz::short("admission reviews").at_most(300));
}

#[test]
fn mutated_bodies_are_answered() {
    bodies(Fuzz::short("admission bodies").at_most(300));
}

#[test]
#[ignore = "runs for KAI_FUZZ_SECONDS"]
fn long_run_of_reviews() {
    reviews(Fuzz::long("admission reviews"));
}

#[test]
#[ignore = "runs for KAI_FUZZ_SECONDS"]
fn long_run_of_bodies() {
    bodies(Fuzz::long("admission bodies"));
}
