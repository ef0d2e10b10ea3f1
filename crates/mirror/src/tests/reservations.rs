//! Reservation pods that are unused, missing or not seen yet, and the invariant that no node promises more GPUs than it has.

use super::*;

/// Applies node `n` with `gpus` GPUs, `failed` of them unhealthy.
fn node(world: &mut World, gpus: u32, failed: u32) {
    world.mirror.apply_node(&slim(json!({
        "metadata": { "name": "n", "uid": "uid-n", "labels": { "nvidia.com/gpu.memory": "80000" } },
        "status": {
            "capacity": { "nvidia.com/gpu": gpus.to_string() },
            "allocatable": { "cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": (gpus - failed).to_string() },
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    })));
}

fn world(gpus: u32) -> World {
    let mut world = World::new();
    node(&mut world, gpus, 0);
    world.group("g", json!({}));
    world
}

/// The reservation pod of group `x`, which has reported this GPU.
fn reserving(gpu: &str) -> Arc<kai_api::Pod> {
    let mut pod = (*reservation("x")).clone();
    pod.metadata.annotations = slim::<kai_api::Pod>(json!({
        "metadata": { "annotations": { "run.ai/reserve_for_gpu_index": gpu } },
    }))
    .metadata
    .annotations;
    Arc::new(pod)
}

fn apply(world: &mut World, pod: &Arc<kai_api::Pod>) {
    world.mirror.apply_pod(&ObjectKey::of(&**pod), pod);
}

fn running(more: Value) -> Value {
    merged(
        json!({ "spec": { "nodeName": "n" }, "status": { "phase": "Running" } }),
        more,
    )
}

/// A running member of GPU group `x` with half of `GPU-a`.
fn half(world: &mut World) {
    let annotations = json!({ "gpu-fraction": "0.5", "kai.scheduler/received-gpus": "GPU-a" });
    let labels = json!({ "runai-gpu-group": "x" });
    let share = json!({
        "metadata": { "annotations": annotations, "labels": labels }, "spec": { "containers": [{}] },
    });
    world.pod("half", running(share));
}

/// The number of nodes that promise more GPUs than they have.
fn overcommitted_nodes(world: &mut World) -> usize {
    world.sync();
    let nodes = world.engine.nodes();
    nodes.iter().filter(|node| world.mirror.overcommits_gpus(node)).count()
}

#[test]
fn no_gpu_is_given_on_a_node_that_has_lost_a_reservation() {
    let mut world = world(2);
    half(&mut world);
    apply(&mut world, &reserving("GPU-a"));
    world.sync();
    world.mirror.remove_pod(&ObjectKey::of(&*reserving("GPU-a")));
    world.pod("next", json!({}));
    assert!(world.decide().is_empty(), "the node may give it the GPU that is shared");
    assert_eq!(
        world.status("uid-next"),
        Some(Status::Pipelined),
        "it waits for that node"
    );
    assert_eq!(overcommitted_nodes(&mut world), 0);
    apply(&mut world, &reservation("x"));
    assert!(
        world.decide().is_empty(),
        "nobody knows which GPU this reservation gets"
    );
    apply(&mut world, &reserving("GPU-b"));
    assert!(world.decide().is_empty(), "it has another GPU");
    apply(&mut world, &reserving("GPU-a"));
    assert_eq!(world.decide(), ["bind uid-next n"]);
    assert_eq!(overcommitted_nodes(&mut world), 0);
}

#[test]
fn a_reservation_that_stays_with_another_gpu_does_not_hold_the_node_up_for_ever() {
    let mut world = world(2);
    half(&mut world);
    apply(&mut world, &reserving("GPU-b"));
    world.pod("next", json!({}));
    assert!(world.decide().is_empty(), "the binder is about to remove it");
    assert!(world.after(59).is_empty());
    assert_eq!(world.after(1), ["bind uid-next n"], "somebody else has the group's GPU");
}

#[test]
fn a_node_whose_lost_group_has_no_pods_any_more_gives_all_its_gpus() {
    let mut world = world(1);
    half(&mut world);
    world.pod("next", json!({}));
    assert!(world.decide().is_empty());
    world.mirror.remove_pod(&ObjectKey::new("a", "half"));
    assert_eq!(world.decide(), ["bind uid-next n"]);
}

#[test]
fn a_group_label_on_a_pod_without_a_part_of_a_gpu_holds_nothing_up() {
    let mut world = world(1);
    let labelled = json!({ "metadata": { "labels": { "runai-gpu-group": "x" } }, "spec": { "containers": [{}] } });
    world.pod("plain", running(labelled));
    world.pod("next", json!({}));
    assert_eq!(world.decide(), ["bind uid-next n"]);
}

#[test]
fn a_reservation_that_leaves_under_running_pods_counts_as_lost() {
    let mut world = world(2);
    half(&mut world);
    let mut leaving = (*reserving("GPU-a")).clone();
    leaving.metadata.deletion_timestamp = slim::<kai_api::Pod>(json!({
        "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" },
    }))
    .metadata
    .deletion_timestamp;
    apply(&mut world, &Arc::new(leaving));
    world.pod("next", json!({}));
    assert!(world.decide().is_empty(), "its GPU is free before the pod is there");
}

#[test]
fn a_gpu_that_was_promised_to_a_pod_that_waits_for_it_is_held_once() {
    let mut world = world(1);
    world.pod(
        "old",
        running(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } })),
    );
    world.pod("next", json!({}));
    world.decide();
    assert_eq!(world.status("uid-next"), Some(Status::Pipelined));
    assert_eq!(overcommitted_nodes(&mut world), 0);
}

#[test]
fn a_gpu_that_fails_under_its_pod_was_not_promised_too_often() {
    let mut world = world(2);
    world.pod("a", running(json!({})));
    world.pod("b", running(json!({})));
    assert_eq!(overcommitted_nodes(&mut world), 0);
    node(&mut world, 2, 1);
    assert_eq!(overcommitted_nodes(&mut world), 0);
}

#[test]
fn a_reservation_that_is_only_presumed_holds_no_gpu_in_the_law() {
    let mut world = world(1);
    world.pod(
        "half",
        json!({ "metadata": { "annotations": { "gpu-fraction": "0.5" } }, "spec": { "containers": [{}] } }),
    );
    world.share_request("half", "uid-half", ("n", &["x"]), json!({}));
    world.sync();
    // Another scheduler took the GPU; the node refused the reservation, and the bind failed.
    let failed = json!({ "phase": "Failed", "reason": "the node has no free GPU" });
    world.share_request("half", "uid-half", ("n", &["x"]), failed);
    world.pod(
        "other",
        running(json!({ "spec": { "schedulerName": "default-scheduler" } })),
    );
    assert_eq!(overcommitted_nodes(&mut world), 0);
    // Nor does a reservation pod that the kubelet has not admitted.
    apply(&mut world, &reservation("x"));
    assert_eq!(overcommitted_nodes(&mut world), 0);
    apply(&mut world, &reserving("GPU-a"));
    assert_eq!(overcommitted_nodes(&mut world), 1, "the node gave one GPU twice");
}

#[test]
fn pods_beyond_the_gpus_of_their_node_break_the_law() {
    let mut world = world(2);
    half(&mut world);
    for name in ["a", "b"] {
        world.pod(name, running(json!({})));
    }
    assert_eq!(
        overcommitted_nodes(&mut world),
        1,
        "what is left of the shared GPU is no GPU"
    );
    world.mirror.remove_pod(&ObjectKey::new("a", "b"));
    assert_eq!(overcommitted_nodes(&mut world), 0);
}

#[test]
fn a_gpu_is_free_when_its_reservation_pod_is_gone() {
    let mut world = World::new();
    world.node("n", json!({ "nvidia.com/gpu.memory": "80000" }));
    world.group("g", json!({}));
    let on_gpu = |more: Value| {
        merged(
            json!({ "spec": { "nodeName": "n" }, "status": { "phase": "Running" } }),
            more,
        )
    };
    world.pod(
        "half",
        on_gpu(
            json!({ "metadata": { "annotations": { "gpu-fraction": "0.5" }, "labels": { "runai-gpu-group": "x" } } }),
        ),
    );
    let reservation = reservation("x");
    let held = ObjectKey::of(&*reservation);
    world.mirror.apply_pod(&held, &reservation);
    world.pod("next", json!({}));
    assert!(world.decide().is_empty(), "the GPU is shared");
    world.mirror.remove_pod(&ObjectKey::new("a", "half"));
    assert!(world.decide().is_empty(), "the reservation pod still has it");
    assert_eq!(world.status("uid-next"), Some(Status::Pipelined));
    world.mirror.remove_pod(&held);
    assert_eq!(world.decide(), ["bind uid-next n"]);
}

/// A pod with half of the only GPU is being bound, and pod `next` is pending with a whole GPU.
fn a_share_on_its_way() -> World {
    let mut world = World::new();
    world.node("n", json!({ "nvidia.com/gpu.memory": "80000" }));
    world.group("g", json!({}));
    let share = json!({ "metadata": { "annotations": { "gpu-fraction": "0.5" } }, "spec": { "containers": [{}] } });
    world.pod("half", share);
    world.share_request("half", "uid-half", ("n", &["x"]), json!({}));
    world.pod("next", json!({}));
    assert_eq!(world.decide(), [""; 0], "the GPU is promised");
    world
}

#[test]
fn a_reservation_that_a_lagging_watch_does_not_show_yet_has_its_gpu() {
    let mut world = a_share_on_its_way();
    let failed = json!({ "phase": "Failed", "reason": "refused" });
    world.share_request("half", "uid-half", ("n", &["x"]), failed);
    assert_eq!(world.decide(), [""; 0], "the bind may have reserved it");
    world.mirror.remove_bind_request(&ObjectKey::new("a", "half"));
    let reservation = reservation("x");
    let held = ObjectKey::of(&*reservation);
    world.mirror.apply_pod(&held, &reservation);
    world.pod(
        "half",
        json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
    );
    assert_eq!(world.after(60), [""; 0], "it has");
    world.mirror.remove_pod(&held);
    assert_eq!(world.decide(), ["bind uid-next n"]);
}

#[test]
fn a_bind_that_was_cut_short_may_have_reserved_its_gpu() {
    for pod_goes_first in [true, false] {
        let mut world = a_share_on_its_way();
        let (pod, request) = (ObjectKey::new("a", "half"), ObjectKey::new("a", "half"));
        if pod_goes_first {
            world.mirror.remove_pod(&pod);
            assert_eq!(world.decide(), [""; 0], "it may have");
        }
        world.mirror.remove_bind_request(&request);
        world.mirror.remove_pod(&pod);
        assert_eq!(world.decide(), [""; 0], "still");
        assert_eq!(world.after(10), ["bind uid-next n"], "no reservation came of it");
    }
}

#[test]
fn without_a_list_of_reservation_pods_every_group_counts_as_reserved() {
    let mut world = World::with(&MirrorSettings {
        reservation_pod_list: ObjectList::Unknown,
        ..MirrorSettings::default()
    });
    node(&mut world, 2, 0);
    world.group("g", json!({}));
    half(&mut world);
    world.pod("next", json!({}));
    assert_eq!(world.decide(), ["bind uid-next n"]);
}

#[test]
fn the_binder_learns_which_reservation_pods_to_create_and_delete() {
    let mut world = world(2);
    half(&mut world);
    let unreserved = UnreservedGroup {
        node: "n".to_owned(),
        gpu_group: "x".to_owned(),
        gpu: Some("GPU-a".to_owned()),
    };
    assert_eq!(world.mirror.groups_without_reservation(), [unreserved]);
    apply(&mut world, &reserving("GPU-a"));
    assert_eq!(world.mirror.groups_without_reservation(), []);
    assert_eq!(world.mirror.unused_reservation_pods(), []);
    world.mirror.remove_pod(&ObjectKey::new("a", "half"));
    assert_eq!(
        world.mirror.unused_reservation_pods(),
        [ObjectKey::of(&*reserving("GPU-a"))]
    );
}

#[test]
fn a_member_that_has_succeeded_uses_no_reservation() {
    let mut world = world(1);
    half(&mut world);
    apply(&mut world, &reserving("GPU-a"));
    let share = json!({ "annotations": { "gpu-fraction": "0.5" }, "labels": { "runai-gpu-group": "x" } });
    world.pod(
        "half",
        json!({ "metadata": share, "spec": { "nodeName": "n", "containers": [{}] }, "status": { "phase": "Succeeded" } }),
    );
    assert_eq!(
        world.mirror.unused_reservation_pods(),
        [ObjectKey::of(&*reserving("GPU-a"))]
    );
}
