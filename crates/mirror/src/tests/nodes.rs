//! Partitions and worker nodes.

use super::*;

#[test]
fn only_the_partition_is_scheduled() {
    let settings = MirrorSettings {
        partition: Partition::new("kai.scheduler/node-pool", "big"),
        ..MirrorSettings::default()
    };
    let mut world = World::with(&settings);
    let label = json!({ "kai.scheduler/node-pool": "big" });
    world.node("small", json!({}));
    let free = json!({ "quota": -1, "limit": -1 });
    world
        .mirror
        .apply_queue(&slim(json!({ "metadata": { "name": "q", "uid": "q", "labels": label },
                                          "spec": { "resources": { "gpu": free, "cpu": free, "memory": free } } })));
    world.group("g", json!({ "metadata": { "labels": label } }));
    world.group("h", json!({}));
    world.pod("p", json!({}));
    world.pod(
        "foreign",
        json!({ "metadata": { "annotations": { "pod-group-name": "h" } } }),
    );
    assert_eq!(world.decide(), [""; 0]);
    world.node("n1", label);
    assert_eq!(world.decide(), ["bind uid-p n1"]);
    let foreign = pod("foreign", json!({}));
    assert!(
        !world
            .mirror
            .reports_missing_gang(&foreign, Some(&ObjectKey::new("a", "h"))),
        "its pod group is another partition's"
    );
}

#[test]
fn a_node_that_leaves_the_partition_is_gone() {
    let mut world = a_node_a_gang_and_a_pod();
    world.node("n1", json!({ "kai.scheduler/node-pool": "other" }));
    assert_eq!(world.decide(), [""; 0]);
    assert!(world.engine.nodes().is_empty());
}

#[test]
fn gpu_pods_stay_on_gpu_workers() {
    let settings = MirrorSettings {
        restrict_nodes: Some(WorkerLabels {
            gpu: "gpu-worker".to_owned(),
            cpu: "cpu-worker".to_owned(),
        }),
        ..MirrorSettings::default()
    };
    let mut world = World::with(&settings);
    world.node("neither", json!({}));
    world.node("for-cpu", json!({ "cpu-worker": "" }));
    world.group("g", json!({}));
    world.pod("p", json!({}));
    assert_eq!(world.decide(), [""; 0]);
    world.node("for-gpu", json!({ "gpu-worker": "" }));
    assert_eq!(world.decide(), ["bind uid-p for-gpu"]);
}
