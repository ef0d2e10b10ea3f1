//! The limits of pods that share GPUs: what the binder promises, refuses and takes back, against the embedded API server.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kai_embedded::server::{Fault, Patch, RequestInfo};
use serde_json::{Value, json};
use support::{NS, TestCluster};

const REQUEST: &str = "nvidia.com/container.main.gpu-memory.request";
const LIMIT: &str = "nvidia.com/container.main.gpu-memory.limit";
const DEVICES: &str = "nvidia.com/container.main.gpus.devices";
const MODE: &str = "nvidia.com/container.main.gpu-compute.mode";
const LIMITS: &str = "kai.scheduler/gpu-limits";
const TIER: &str = "kai.scheduler/gpu-enforcement-tier";
const REQUIRED: &str = "kai.scheduler/gpu-enforcement";

/// Creates a pod with these annotations and a BindRequest to group `g` on node `n`.
fn share(cluster: &TestCluster, name: &str, annotations: Value, change: Value) {
    share_of(cluster, name, annotations, json!({}), change);
}

/// The same with a change of the pod's spec.
fn share_of(cluster: &TestCluster, name: &str, annotations: Value, of_pod: Value, change: Value) {
    let pod = cluster.pod_with(name, annotations, of_pod);
    let mut spec = json!({
        "receivedResourceType": "Fraction", "selectedGPUGroups": ["g"], "receivedGPU": { "count": 1, "portion": "0.50" },
    });
    spec.as_object_mut()
        .unwrap()
        .extend(change.as_object().unwrap().clone());
    cluster.request(&pod, "n", spec);
}

fn sm_sharing() -> Value {
    json!({ "selectedFractionalGpuGroups": [{ "id": "g", "computeSharingMode": "sm-sharing" }] })
}

fn label_node(cluster: &TestCluster, key: &str, value: Value) {
    let label = json!({ "metadata": { "labels": { key: value } } });
    cluster.store.patch("nodes", "", "n", &Patch::Merge(label)).unwrap();
}

fn annotations(cluster: &TestCluster, pod: &str) -> Value {
    cluster.get("pods", NS, pod).unwrap()["metadata"]["annotations"].clone()
}

fn reason(cluster: &TestCluster, request: &str) -> String {
    cluster.status(request)["reason"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn cluster() -> TestCluster {
    let cluster = TestCluster::new();
    cluster.node("n", 2);
    cluster
}

#[tokio::test(start_paused = true)]
async fn a_bound_pod_has_its_limits_in_the_announcement() {
    let mut cluster = cluster();
    label_node(&cluster, "kai.scheduler/gpu-enforcement", json!("driver"));
    share(
        &cluster,
        "half",
        json!({ "gpu-fraction": "0.5", "gpu-fraction.limit": "0.75" }),
        json!({}),
    );
    // The patch with the GPUs has the limits, too: no reader sees one without the other.
    let apart = Arc::new(AtomicBool::new(false));
    let (store, seen) = (cluster.store.clone(), Arc::clone(&apart));
    cluster.server.set_faults(Arc::new(move |_: &RequestInfo| {
        let pod = store.get("pods", NS, "half").unwrap().to_value();
        let annotations = &pod["metadata"]["annotations"];
        if annotations["kai.scheduler/received-gpus"].is_null() != annotations[LIMITS].is_null() {
            seen.store(true, Ordering::Relaxed);
        }
        Fault::Pass
    }));
    cluster.start(&[]);
    cluster.until("bound", |cluster| cluster.is_bound("half")).await;
    assert!(!apart.load(Ordering::Relaxed));
    let found = annotations(&cluster, "half");
    let limits: Value = serde_json::from_str(found[LIMITS].as_str().unwrap()).unwrap();
    assert_eq!(
        limits,
        json!({ "container": "main", "memoryMiB": 7500, "computeMode": "time-slicing" })
    );
    assert_eq!((&found[REQUEST], &found[LIMIT]), (&json!("5000Mi"), &json!("7500Mi")));
    assert_eq!(
        (&found[TIER], &found[DEVICES]),
        (&json!("driver"), &found["kai.scheduler/received-gpus"])
    );
    let reservation = cluster.reservation("n", "g").unwrap();
    assert_eq!(
        reservation["metadata"]["annotations"]["kai.scheduler/gpu-compute-mode"],
        "time-slicing"
    );
}

#[tokio::test(start_paused = true)]
async fn memory_of_a_container_counts_like_gpu_memory() {
    let mut cluster = cluster();
    let portion = json!({ "receivedGPU": { "count": 1, "portion": "0.60" } });
    share(
        &cluster,
        "a",
        json!({ REQUEST: "6000Mi", LIMIT: "9000Mi" }),
        portion.clone(),
    );
    share(&cluster, "b", json!({ LIMIT: "6000Mi" }), portion);
    cluster.start(&[]);
    let settled = |cluster: &TestCluster| ["a", "b"].iter().all(|name| !cluster.status(name)["phase"].is_null());
    cluster.until("settled", settled).await;
    assert!(cluster.is_bound("a") != cluster.is_bound("b"), "12,000 MiB do not fit");
    let (bound, failed) = if cluster.is_bound("a") { ("a", "b") } else { ("b", "a") };
    assert!(reason(&cluster, failed).contains("6000 of 10000 MiB are promised, 6000 MiB are asked for"));
    let found = annotations(&cluster, bound);
    let memory_mib = if bound == "a" { 9000 } else { 6000 };
    assert!(
        found[LIMITS]
            .as_str()
            .unwrap()
            .contains(&format!("\"memoryMiB\":{memory_mib}"))
    );
    assert_eq!(found[TIER], Value::Null, "the node has no label");
}

#[tokio::test(start_paused = true)]
async fn a_failed_bind_takes_the_limits_back_and_keeps_the_users_request() {
    let mut cluster = cluster();
    share(&cluster, "half", json!({ "gpu-fraction": "0.5" }), json!({}));
    share(&cluster, "memory", json!({ REQUEST: "1Gi", LIMIT: "2Gi" }), json!({}));
    cluster.server.set_faults(Arc::new(|request: &RequestInfo| {
        match request.verb == "create" && request.subresource == "binding" {
            true => Fault::Fail(422),
            false => Fault::Pass,
        }
    }));
    cluster.start(&[]);
    cluster
        .until("both failed", |cluster| {
            cluster.failed("half") && cluster.failed("memory")
        })
        .await;
    let half = annotations(&cluster, "half");
    let memory = annotations(&cluster, "memory");
    for key in [LIMITS, TIER, DEVICES, "kai.scheduler/received-gpus"] {
        assert!(half[key].is_null() && memory[key].is_null(), "{key}: {half} {memory}");
    }
    assert!(half[REQUEST].is_null() && half[LIMIT].is_null(), "{half}");
    assert_eq!((&memory[REQUEST], &memory[LIMIT]), (&json!("1Gi"), &json!("2Gi")));
}

#[tokio::test(start_paused = true)]
async fn forged_limits_do_not_survive_a_bind() {
    let mut cluster = cluster();
    label_node(&cluster, "nvidia.com/gpu.memory", Value::Null);
    // Also what an attempt left on another node, of which a restarted binder knows nothing.
    let forged = json!({
        "gpu-fraction": "0.5", LIMITS: "{}", TIER: "driver", DEVICES: "GPU-x", "kai.scheduler/received-gpus": "GPU-x",
        REQUEST: "9Mi", LIMIT: "9Mi",
    });
    share(&cluster, "p", forged.clone(), json!({}));
    let whole = cluster.pod("whole", forged);
    cluster.request(&whole, "n", json!({}));
    cluster.start(&[]);
    cluster
        .until("bound", |cluster| cluster.is_bound("p") && cluster.is_bound("whole"))
        .await;
    let found = annotations(&cluster, "p");
    assert!(found[LIMITS].is_null() && found[TIER].is_null(), "{found}");
    assert_eq!(found[DEVICES], found["kai.scheduler/received-gpus"]);
    assert_eq!(found[DEVICES], "GPU-n-0");
    assert!(found[REQUEST].is_null() && found[LIMIT].is_null(), "{found}");
    let whole = annotations(&cluster, "whole");
    assert!(whole[LIMITS].is_null() && whole[DEVICES].is_null(), "{whole}");
}

#[tokio::test(start_paused = true)]
async fn without_the_label_of_the_memory_no_limit_is_promised_and_some_modes_refuse() {
    for (flags, tier, bound) in [
        (&[][..], Value::Null, true),
        (&[], json!("watch"), true),
        (&[], json!("driver"), false),
        (&["--gpu-sharing-mode=NvFractions"], Value::Null, false),
        (&["--gpu-sharing-mode=HamiCore"], Value::Null, false),
        (&[r#"--plugins={"hamicore":{"enabled":true}}"#], Value::Null, false),
    ] {
        let mut cluster = cluster();
        label_node(&cluster, "nvidia.com/gpu.memory", Value::Null);
        label_node(&cluster, "kai.scheduler/gpu-enforcement", tier.clone());
        share(&cluster, "p", json!({ "gpu-fraction": "0.5" }), json!({}));
        cluster.start(flags);
        let settled = |cluster: &TestCluster| !cluster.status("p")["phase"].is_null();
        cluster.until("settled", settled).await;
        assert_eq!(cluster.is_bound("p"), bound, "{flags:?} {tier}");
        let found = annotations(&cluster, "p");
        assert!(found[TIER].is_null(), "a tier without limits: {found}");
        if !bound {
            let reason = reason(&cluster, "p");
            assert!(reason.contains("node n has no label nvidia.com/gpu.memory"), "{reason}");
            assert!(cluster.reservations().is_empty(), "no GPU is reserved for nothing");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_lost_its_tier_takes_no_pod_that_requires_it() {
    let mut cluster = cluster();
    label_node(&cluster, "kai.scheduler/gpu-enforcement", json!("watch"));
    share(
        &cluster,
        "p",
        json!({ "gpu-fraction": "0.5", REQUIRED: "required" }),
        json!({}),
    );
    cluster.start(&[]);
    cluster.until("refused", |cluster| cluster.failed("p")).await;
    let text = reason(&cluster, "p");
    assert!(
        text.contains(
            "node n does not limit GPU memory (label kai.scheduler/gpu-enforcement: watch), and the pod requires it"
        ),
        "{text}"
    );
    label_node(&cluster, "kai.scheduler/gpu-enforcement", json!("driver"));
    share(
        &cluster,
        "q",
        json!({ "gpu-fraction": "0.5", REQUIRED: "required" }),
        json!({}),
    );
    cluster.until("bound", |cluster| cluster.is_bound("q")).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_prefers_a_limit_is_told_that_it_has_none() {
    let mut cluster = cluster();
    label_node(&cluster, "kai.scheduler/gpu-enforcement", json!("watch"));
    share(&cluster, "silent", json!({ "gpu-fraction": "0.3" }), json!({}));
    let prefers = json!({ "gpu-fraction": "0.3", REQUIRED: "preferred" });
    share(&cluster, "prefers", prefers, json!({}));
    cluster.start(&[]);
    cluster
        .until("told", |cluster| {
            cluster.is_bound("silent") && !cluster.events("GPULimitNotEnforced").is_empty()
        })
        .await;
    let events = cluster.events("GPULimitNotEnforced");
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["involvedObject"]["name"], "prefers");
    let note = events[0]["message"].as_str().unwrap();
    assert!(note.contains("(label kai.scheduler/gpu-enforcement: watch)"), "{note}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_a_share_device_gets_no_limit_and_may_not_require_one() {
    let mut cluster = cluster();
    label_node(&cluster, "kai.scheduler/gpu-enforcement", json!("driver"));
    let half = json!({ "gpu-fraction": "0.5", "gpu-fraction-container-name": "prepare" });
    let mut required = half.clone();
    required[REQUIRED] = json!("required");
    for (name, annotations) in [("half", half), ("required", required)] {
        let init = json!([{ "name": "prepare", "image": "x" }]);
        share_of(
            &cluster,
            name,
            annotations,
            json!({ "initContainers": init }),
            json!({ "backoffLimit": 3 }),
        );
    }
    cluster.start(&[]);
    let settled = |cluster: &TestCluster| cluster.is_bound("half") && cluster.failed("required");
    cluster.until("settled", settled).await;
    let told = |cluster: &TestCluster| cluster.events("GPULimitNotEnforced");
    cluster.until("told", |cluster| told(cluster).len() == 1).await;
    assert_eq!(told(&cluster)[0]["involvedObject"]["name"], "half");
    let found = annotations(&cluster, "half");
    assert!(found[LIMITS].is_null() && found[TIER].is_null(), "{found}");
    assert_eq!(found["nvidia.com/container.prepare.gpu-memory.limit"], "5000Mi");
    let text = reason(&cluster, "required");
    assert!(
        text.contains("its container \"prepare\" requests no kai.scheduler/gpu-share"),
        "{text}"
    );
    assert_eq!(cluster.status("required")["failedAttempts"], 3, "it is not tried again");
}

#[tokio::test(start_paused = true)]
async fn pods_of_different_compute_modes_do_not_share_a_gpu() {
    let mut cluster = cluster();
    let sm = json!({ "gpu-fraction": "0.25", MODE: "sm-sharing" });
    label_node(&cluster, "kai.scheduler/gpu-enforcement", json!("driver"));
    share(&cluster, "early", sm.clone(), sm_sharing());
    cluster.start(&[]);
    cluster.until("refused", |cluster| cluster.failed("early")).await;
    let text = reason(&cluster, "early");
    assert!(text.contains("node n does not offer compute mode sm-sharing"), "{text}");
    label_node(&cluster, "kai.scheduler/gpu-enforcement", json!("mps"));
    share(&cluster, "sm", sm.clone(), sm_sharing());
    cluster.until("bound", |cluster| cluster.is_bound("sm")).await;
    let reservation = cluster.reservation("n", "g").unwrap();
    assert_eq!(
        reservation["metadata"]["annotations"]["kai.scheduler/gpu-compute-mode"],
        "sm-sharing"
    );
    let limits = annotations(&cluster, "sm")[LIMITS].as_str().unwrap().to_owned();
    assert!(
        limits.contains(r#""computeMode":"sm-sharing","computePercent":25"#),
        "{limits}"
    );
    // While the server is started again, the node has another tier.
    label_node(&cluster, "kai.scheduler/gpu-enforcement", json!("watch"));
    share(&cluster, "slices", json!({ "gpu-fraction": "0.25" }), json!({}));
    cluster.until("refused", |cluster| cluster.failed("slices")).await;
    let text = reason(&cluster, "slices");
    assert!(
        text.contains("GPU group g of node n has compute mode sm-sharing, and the pod has time-slicing"),
        "{text}"
    );
    label_node(&cluster, "kai.scheduler/gpu-enforcement", json!("mps"));
    share(&cluster, "slices-2", json!({ "gpu-fraction": "0.25" }), json!({}));
    cluster.until("refused", |cluster| cluster.failed("slices-2")).await;
    let text = reason(&cluster, "slices-2");
    assert!(
        text.contains("node n does not offer compute mode time-slicing"),
        "{text}"
    );
    // A scheduler that does not know modes asks for time-slicing.
    share(&cluster, "old-scheduler", sm.clone(), json!({ "backoffLimit": 3 }));
    cluster
        .until("refused", |cluster| cluster.failed("old-scheduler"))
        .await;
    let text = reason(&cluster, "old-scheduler");
    assert!(
        text.contains("the request has compute mode time-slicing, and the pod has sm-sharing"),
        "{text}"
    );
    assert_eq!(
        cluster.status("old-scheduler")["failedAttempts"],
        3,
        "it is not tried again"
    );
    share(&cluster, "too", sm, sm_sharing());
    cluster.until("bound", |cluster| cluster.is_bound("too")).await;
}

/// KAI's binder writes no compute mode on reservation pods.
#[tokio::test(start_paused = true)]
async fn a_reservation_pod_without_a_compute_mode_has_that_of_its_pods() {
    let mut cluster = cluster();
    label_node(&cluster, "kai.scheduler/gpu-enforcement", json!("mps"));
    let sm = || json!({ "gpu-fraction": "0.25", MODE: "sm-sharing" });
    share(&cluster, "kais", sm(), sm_sharing());
    cluster.start(&[]);
    cluster.until("bound", |cluster| cluster.is_bound("kais")).await;
    let reservation = cluster.reservation("n", "g").unwrap();
    let name = reservation["metadata"]["name"].as_str().unwrap();
    let without = json!({ "metadata": { "annotations": { "kai.scheduler/gpu-compute-mode": null } } });
    cluster
        .store
        .patch("pods", support::RESERVATIONS, name, &Patch::Merge(without))
        .unwrap();
    share(&cluster, "ours", sm(), sm_sharing());
    cluster.until("bound", |cluster| cluster.is_bound("ours")).await;
    label_node(&cluster, "kai.scheduler/gpu-enforcement", json!("watch"));
    share(&cluster, "slices", json!({ "gpu-fraction": "0.25" }), json!({}));
    cluster.until("refused", |cluster| cluster.failed("slices")).await;
    let text = reason(&cluster, "slices");
    assert!(
        text.contains("has compute mode sm-sharing, and the pod has time-slicing"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_reservation_keeps_its_compute_mode() {
    let mut cluster = cluster();
    label_node(&cluster, "kai.scheduler/gpu-enforcement", json!("mps"));
    share(
        &cluster,
        "sm",
        json!({ "gpu-fraction": "0.25", MODE: "sm-sharing" }),
        sm_sharing(),
    );
    cluster.start(&[]);
    cluster.until("bound", |cluster| cluster.is_bound("sm")).await;
    let lost = cluster.reservation("n", "g").unwrap();
    cluster.delete(
        "pods",
        support::RESERVATIONS,
        lost["metadata"]["name"].as_str().unwrap(),
    );
    cluster
        .until("restored", |cluster| {
            let found = cluster.reservation("n", "g");
            found.is_some_and(|found| {
                found["metadata"]["uid"] != lost["metadata"]["uid"]
                    && found["metadata"]["annotations"]["kai.scheduler/gpu-compute-mode"] == "sm-sharing"
            })
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn lists_of_a_request_that_differ_are_refused_for_good() {
    let mut cluster = cluster();
    let other = json!({ "selectedFractionalGpuGroups": [{ "id": "h" }], "backoffLimit": 5 });
    share(&cluster, "p", json!({ "gpu-fraction": "0.5" }), other);
    cluster.start(&[]);
    cluster.until("refused", |cluster| cluster.failed("p")).await;
    let text = reason(&cluster, "p");
    assert!(
        text.contains(
            "spec.selectedGPUGroups names [g], but spec.selectedFractionalGpuGroups names [h]; name the same groups"
        ),
        "{text}"
    );
    assert_eq!(cluster.status("p")["failedAttempts"], 5);
    let new_list = json!({ "selectedGPUGroups": null, "selectedFractionalGpuGroups": [{ "id": "g" }] });
    share(&cluster, "q", json!({ "gpu-fraction": "0.5" }), new_list);
    cluster.until("bound", |cluster| cluster.is_bound("q")).await;
    assert!(cluster.reservation("n", "g").is_some());
}

#[tokio::test(start_paused = true)]
async fn hamis_limit_is_the_limit_of_the_pod() {
    let mut cluster = cluster();
    share(&cluster, "half", json!({ "gpu-fraction": "0.5" }), json!({}));
    let limited = json!({ "gpu-fraction": "0.5", "gpu-fraction.limit": "0.8" });
    share(&cluster, "limited", limited, json!({}));
    cluster.start(&["--gpu-sharing-mode=HamiCore"]);
    cluster
        .until("bound", |cluster| {
            cluster.is_bound("half") && cluster.is_bound("limited")
        })
        .await;
    let limit = |pod: &str| {
        let map = cluster.get("configmaps", NS, &format!("{pod}-shared-gpu-0")).unwrap();
        map["data"]["CUDA_DEVICE_MEMORY_LIMIT"].clone()
    };
    assert_eq!((limit("half"), limit("limited")), (json!("5000m"), json!("8000m")));
    label_node(&cluster, "nvidia.com/gpu.memory", Value::Null);
    share(
        &cluster,
        "memory",
        json!({ "gpu-memory": "40" }),
        json!({ "selectedGPUGroups": ["h"] }),
    );
    cluster.until("bound", |cluster| cluster.is_bound("memory")).await;
    assert_eq!(limit("memory"), "40m", "an amount in MiB needs no label");
}

#[tokio::test(start_paused = true)]
async fn config_maps_are_for_pods_that_refer_to_them_in_every_mode() {
    for mode in ["NvFractions", "NonMemoryEnforced"] {
        let mut cluster = cluster();
        let quarter = || json!({ "gpu-fraction": "0.25" });
        let portion = || json!({ "receivedGPU": { "count": 1, "portion": "0.25" } });
        share(&cluster, "refers", quarter(), portion());
        share(&cluster, "plain", quarter(), portion());
        let deviceless = json!({ "containers": [{ "name": "main", "image": "x" }] });
        share_of(&cluster, "deviceless", quarter(), deviceless, portion());
        for name in ["plain", "deviceless"] {
            let without = json!({ "metadata": { "annotations": { "runai/shared-gpu-configmap": null } } });
            cluster.store.patch("pods", NS, name, &Patch::Merge(without)).unwrap();
        }
        cluster.start(&[&format!("--gpu-sharing-mode={mode}")]);
        let settled = |cluster: &TestCluster| {
            cluster.is_bound("refers") && cluster.is_bound("plain") && cluster.failed("deviceless")
        };
        cluster.until("settled", settled).await;
        let text = reason(&cluster, "deviceless");
        assert!(
            text.contains("lacks the annotation runai/shared-gpu-configmap"),
            "{text}"
        );
        let maps = cluster.all("configmaps");
        let names: Vec<&str> = maps
            .iter()
            .filter(|map| map["metadata"]["namespace"] == NS)
            .filter_map(|map| map["metadata"]["name"].as_str())
            .collect();
        assert_eq!(names, ["refers-shared-gpu-0", "refers-shared-gpu-0-evar"], "{mode}");
    }
}
