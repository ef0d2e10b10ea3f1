//! ConfigMaps of other owners under the names that the binder needs: a tenant chooses the name by an annotation.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use kai_embedded::server::{Fault, Patch, RequestInfo};
use serde_json::{Value, json};

use support::{NS, TestCluster};

const MARKER_LABEL: &str = "kai.scheduler/shared-gpu";

fn map(name: &str, metadata: &Value) -> Value {
    let mut map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": NS },
        "data": { "NVIDIA_VISIBLE_DEVICES": "all", "settings": "of an application" },
    });
    for (field, value) in metadata.as_object().unwrap() {
        map["metadata"][field] = value.clone();
    }
    map
}

fn owned_by(pod: &Value) -> Value {
    json!([{ "apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"] }])
}

/// A pod whose annotation names its ConfigMaps `app-config-0` and `app-config-0-evar`.
fn pod(cluster: &TestCluster, name: &str) -> Value {
    cluster.pod(
        name,
        json!({ "gpu-fraction": "0.5", "runai/shared-gpu-configmap": "app-config" }),
    )
}

fn request(cluster: &TestCluster, pod: &Value) {
    let share = json!({
        "receivedResourceType": "Fraction", "selectedGPUGroups": ["g"], "receivedGPU": { "count": 1, "portion": "0.50" },
    });
    cluster.request(pod, "n", share);
}

/// Asserts that the bind fails with a reason, keeps the ConfigMap unchanged, and reserves no GPU.
async fn assert_refused(cluster: &TestCluster, name: &str, before: &Value) {
    cluster.until("refused", |cluster| cluster.failed("p")).await;
    let reason = cluster.status("p")["reason"].as_str().unwrap().to_owned();
    let expect = format!("ConfigMap {NS}/{name} exists, and the scheduler did not make it for this pod");
    assert!(
        reason.starts_with(&expect) && reason.contains("runai/shared-gpu-configmap"),
        "{reason}"
    );
    assert_eq!(cluster.get("configmaps", NS, name).as_ref(), Some(before));
    let pod = cluster.get("pods", NS, "p").unwrap();
    assert!(pod["spec"]["nodeName"].is_null());
    let labels = pod["metadata"]["labels"].as_object();
    assert!(labels.is_none_or(serde_json::Map::is_empty), "{}", pod["metadata"]);
    assert!(pod["metadata"]["annotations"]["kai.scheduler/received-gpus"].is_null());
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    let condition = conditions.iter().find(|one| one["type"] == "PodBound").unwrap();
    assert_eq!(condition["status"], "False");
    assert!(condition["message"].as_str().unwrap().contains(&expect));
    cluster
        .until("an event says so", |cluster| {
            let events = cluster.events("BindingError");
            events
                .iter()
                .any(|event| event["message"].as_str().unwrap().contains(&expect))
        })
        .await;
    cluster
        .until("no GPU is held for it", |cluster| cluster.reservations().is_empty())
        .await;
    let others = ["app-config-0", "app-config-0-evar"].into_iter();
    for other in others.filter(|other| *other != name) {
        assert_eq!(
            cluster.get("configmaps", NS, other),
            None,
            "nothing of the attempt is left"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_config_map_that_is_not_ours_is_left_alone_and_the_bind_fails() {
    for name in ["app-config-0", "app-config-0-evar"] {
        for case in [
            "no mark",
            "mark of another pod",
            "mark without owner",
            "owner without mark",
        ] {
            let mut cluster = TestCluster::new();
            cluster.node("n", 1);
            let pod = pod(&cluster, "p");
            let other = cluster.pod("other", json!({}));
            let marked = json!({ MARKER_LABEL: "true" });
            let metadata = match case {
                "no mark" => json!({ "labels": { "app": "shop" } }),
                "mark of another pod" => json!({ "labels": marked, "ownerReferences": owned_by(&other) }),
                "mark without owner" => json!({ "labels": marked }),
                _ => json!({ "ownerReferences": owned_by(&pod) }),
            };
            let before = cluster.store.create(map(name, &metadata)).unwrap().to_value();
            request(&cluster, &pod);
            cluster.start(&[]);
            assert_refused(&cluster, name, &before).await;
            cluster.assert_no_violations();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_config_map_that_appears_between_check_and_write_is_left_alone() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 1);
    let pod = pod(&cluster, "p");
    let (store, tries) = (cluster.store.clone(), Arc::new(AtomicU32::new(0)));
    let seen = Arc::clone(&tries);
    cluster.server.set_faults(Arc::new(move |request: &RequestInfo| {
        let first = request.verb == "create"
            && request.resource == "configmaps"
            && request.namespace == NS
            && seen.fetch_add(1, Ordering::Relaxed) == 0;
        if first {
            store.create(map("app-config-0", &json!({}))).unwrap();
        }
        Fault::Pass
    }));
    request(&cluster, &pod);
    cluster.start(&[]);
    cluster.until("refused", |cluster| cluster.failed("p")).await;
    assert_eq!(tries.load(Ordering::Relaxed), 1, "it came between");
    let before = cluster.get("configmaps", NS, "app-config-0").unwrap();
    assert_eq!(before["data"]["settings"], "of an application");
    assert_refused(&cluster, "app-config-0", &before).await;
}

#[tokio::test(start_paused = true)]
async fn a_config_map_that_changes_hands_before_its_deletion_is_left_alone() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 1);
    let pod = pod(&cluster, "p");
    let left = json!({ "labels": { MARKER_LABEL: "true" }, "ownerReferences": owned_by(&pod) });
    cluster.store.create(map("app-config-0", &left)).unwrap();
    let store = cluster.store.clone();
    cluster.server.set_faults(Arc::new(move |request: &RequestInfo| {
        if request.verb == "delete" && request.resource == "configmaps" {
            let taken = json!({ "metadata": { "labels": { MARKER_LABEL: null } }, "data": { "settings": "new" } });
            store
                .patch("configmaps", NS, "app-config-0", &Patch::Merge(taken))
                .unwrap();
        }
        Fault::Pass
    }));
    request(&cluster, &pod);
    cluster.start(&[]);
    cluster.until("refused", |cluster| cluster.failed("p")).await;
    let map = cluster.get("configmaps", NS, "app-config-0").unwrap();
    assert_eq!(map["data"]["settings"], "new");
    assert_refused(&cluster, "app-config-0", &map).await;
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_attempt_left_is_replaced() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 1);
    let pod = pod(&cluster, "p");
    let left = json!({ "labels": { MARKER_LABEL: "true" }, "ownerReferences": owned_by(&pod) });
    cluster.store.create(map("app-config-0", &left)).unwrap();
    request(&cluster, &pod);
    cluster.start(&[]);
    cluster.until("bound", |cluster| cluster.is_bound("p")).await;
    let map = cluster.get("configmaps", NS, "app-config-0").unwrap();
    assert_eq!(map["data"]["NVIDIA_VISIBLE_DEVICES"], "kai.scheduler/gpu=GPU-n-0");
    assert_eq!(
        (&map["immutable"], &map["data"]["settings"]),
        (&json!(true), &Value::Null)
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_does_not_take_the_config_map_of_another_live_pod() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 1);
    let first = pod(&cluster, "first");
    request(&cluster, &first);
    cluster.start(&[]);
    cluster.until("bound", |cluster| cluster.is_bound("first")).await;
    let before = cluster.get("configmaps", NS, "app-config-0").unwrap();
    let thief = pod(&cluster, "thief");
    request(&cluster, &thief);
    cluster.until("refused", |cluster| cluster.failed("thief")).await;
    assert_eq!(cluster.get("configmaps", NS, "app-config-0"), Some(before));
    assert!(!cluster.is_bound("thief"));
    // The ConfigMap is deleted with its owner; then the name is free.
    cluster.delete("pods", NS, "first");
    let second = pod(&cluster, "second");
    request(&cluster, &second);
    cluster.until("bound", |cluster| cluster.is_bound("second")).await;
}
