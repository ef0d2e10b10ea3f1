//! What reservation pods ask for: CPU and memory, so that a node under pressure ends others first, and a priority class, so that other
//! schedulers do.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

mod support;

use serde_json::json;
use support::World;

const CLASS: &str = "kai-resource-reservation";

fn class(world: &World) {
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": CLASS },
        "value": 1_000_000_000, "preemptionPolicy": "Never",
    });
    world.store.create(class).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_reservation_pod_is_guaranteed_and_has_a_high_priority() {
    let mut world = World::new();
    class(&world);
    world.node("n", 1);
    world.share("p", "n", &["g"], 50);
    world.start(&[]);
    world.until("bound", |world| world.is_bound("p")).await;
    let reservation = world.reservation("n", "g").unwrap();
    assert_eq!(reservation["status"]["qosClass"], "Guaranteed");
    assert_eq!(reservation["spec"]["priority"], 1_000_000_000);
    // The kubelet ends other pods for one that is critical; that begins at twice this value.
    assert_eq!(reservation["spec"]["preemptionPolicy"], "Never");
}

#[tokio::test(start_paused = true)]
async fn where_the_priority_class_is_missing_reservations_have_none() {
    let mut world = World::new();
    world.node("n", 1);
    world.share("p", "n", &["g"], 50);
    world.start(&[]);
    world.until("bound", |world| world.is_bound("p")).await;
    let reservation = world.reservation("n", "g").unwrap();
    assert!(reservation["spec"]["priorityClassName"].is_null());
    assert_eq!(reservation["status"]["qosClass"], "Guaranteed");
}

#[tokio::test(start_paused = true)]
async fn a_node_without_cpu_for_a_reservation_still_gives_its_gpu() {
    let mut world = World::new();
    class(&world);
    world.node("n", 2);
    world.kubelets.lock().unwrap().full.insert("n".to_owned());
    world.share("p", "n", &["g"], 50);
    world.start(&[]);
    world.until("bound", |world| world.is_bound("p")).await;
    world.share("q", "n", &["h"], 50);
    world.until("bound", |world| world.is_bound("q")).await;
    assert_eq!(world.kubelets.lock().unwrap().refused, 1, "it is asked for CPU once");
    for group in ["g", "h"] {
        let reservation = world.reservation("n", group).unwrap();
        let resources = &reservation["spec"]["containers"][0]["resources"];
        assert_eq!(resources["requests"], json!({ "nvidia.com/gpu": "1" }), "{group}");
    }
    world.assert_sound();
}
