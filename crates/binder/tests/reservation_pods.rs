//! The requests and the priority class of reservation pods, which make nodes under pressure and other schedulers evict other pods first.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

mod support;

use serde_json::json;
use support::TestCluster;

const CLASS: &str = "kai-resource-reservation";

fn class(cluster: &TestCluster) {
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": CLASS },
        "value": 1_000_000_000, "preemptionPolicy": "Never",
    });
    cluster.store.create(class).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_reservation_pod_is_guaranteed_and_has_a_high_priority() {
    let mut cluster = TestCluster::new();
    class(&cluster);
    cluster.node("n", 1);
    cluster.share("p", "n", &["g"], 50);
    cluster.start(&[]);
    cluster.until("bound", |cluster| cluster.is_bound("p")).await;
    let reservation = cluster.reservation("n", "g").unwrap();
    assert_eq!(reservation["status"]["qosClass"], "Guaranteed");
    assert_eq!(reservation["spec"]["priority"], 1_000_000_000);
    // A kubelet evicts other pods in favour of a critical pod, whose priority is at least twice this value.
    assert_eq!(reservation["spec"]["preemptionPolicy"], "Never");
}

#[tokio::test(start_paused = true)]
async fn where_the_priority_class_is_missing_reservations_have_none() {
    let mut cluster = TestCluster::new();
    cluster.node("n", 1);
    cluster.share("p", "n", &["g"], 50);
    cluster.start(&[]);
    cluster.until("bound", |cluster| cluster.is_bound("p")).await;
    let reservation = cluster.reservation("n", "g").unwrap();
    assert!(reservation["spec"]["priorityClassName"].is_null());
    assert_eq!(reservation["status"]["qosClass"], "Guaranteed");
}

#[tokio::test(start_paused = true)]
async fn a_node_without_cpu_for_a_reservation_still_gives_its_gpu() {
    let mut cluster = TestCluster::new();
    class(&cluster);
    cluster.node("n", 2);
    cluster.kubelets.lock().out_of_cpu.insert("n".to_owned());
    cluster.share("p", "n", &["g"], 50);
    cluster.start(&[]);
    cluster.until("bound", |cluster| cluster.is_bound("p")).await;
    cluster.share("q", "n", &["h"], 50);
    cluster.until("bound", |cluster| cluster.is_bound("q")).await;
    assert_eq!(cluster.kubelets.lock().refused, 1, "it is asked for CPU once");
    for group in ["g", "h"] {
        let reservation = cluster.reservation("n", group).unwrap();
        let resources = &reservation["spec"]["containers"][0]["resources"];
        assert_eq!(resources["requests"], json!({ "nvidia.com/gpu": "1" }), "{group}");
    }
    cluster.assert_no_violations();
}
