//! ConfigMaps of pending pods.

use super::*;

fn a_pod_with_a_config_map(rest: Value) -> World {
    with_list(ObjectList::Complete, rest)
}

fn with_list(config_map_list: ObjectList, rest: Value) -> World {
    let mut world = World::with(&MirrorSettings {
        config_map_list,
        ..MirrorSettings::default()
    });
    world.node("n1", json!({}));
    world.group("g", json!({}));
    let container = json!({
        "resources": { "limits": { "nvidia.com/gpu": "1" }, "requests": { "cpu": "1" } },
        "envFrom": [{ "configMapRef": { "name": "settings" } }],
    });
    world.pod("p", merged(json!({ "spec": { "containers": [container] } }), rest));
    world
}

#[test]
fn a_pod_waits_for_a_config_map_that_does_not_exist() {
    let mut world = a_pod_with_a_config_map(json!({}));
    world.mirror.config_maps_synced();
    world.mirror.apply_config_map(&ObjectKey::new("b", "settings"));
    assert_eq!(world.decide(), [""; 0], "another namespace's does not count");
    assert_eq!(
        world.reason("uid-p"),
        "Missing required configmaps: settings; create them in namespace a, or mark them as optional in the pod"
    );
    world.mirror.apply_config_map(&ObjectKey::new("a", "settings"));
    assert_eq!(world.decide(), ["bind uid-p n1"]);
}

#[test]
fn a_config_map_that_goes_keeps_waiting_pods_only() {
    let mut world = a_pod_with_a_config_map(json!({}));
    let map = ObjectKey::new("a", "settings");
    world.mirror.apply_config_map(&map);
    world.mirror.config_maps_synced();
    world.mirror.remove_config_map(&map);
    assert_eq!(world.decide(), [""; 0]);
    world.mirror.apply_config_map(&map);
    assert_eq!(world.decide(), ["bind uid-p n1"]);
    let mut world = a_pod_with_a_config_map(json!({ "spec": { "nodeName": "n1" }, "status": { "phase": "Running" } }));
    world.mirror.config_maps_synced();
    assert_eq!(world.status("uid-p"), Some(Status::Running));
}

#[test]
fn without_the_right_to_see_config_maps_nobody_waits_for_one() {
    let mut world = a_pod_with_a_config_map(json!({}));
    assert_eq!(world.decide(), ["bind uid-p n1"]);
}

#[test]
fn without_config_maps_a_pod_that_names_one_keeps_the_schedulers_words() {
    let condition = json!({ "type": "PodScheduled", "status": "False", "message": "as the scheduler wrote" });
    let told = json!({ "status": { "conditions": [condition] } });
    let mut world = with_list(ObjectList::ByCondition, told);
    // An informer without the right to list anything is synced.
    world.mirror.config_maps_synced();
    assert_eq!(world.decide(), [""; 0]);
    assert_eq!(world.reason("uid-p"), "as the scheduler wrote");
    let mut world = with_list(ObjectList::ByCondition, json!({}));
    assert_eq!(world.decide(), ["bind uid-p n1"], "the scheduler wrote nothing");
}

#[test]
fn a_pod_that_shares_a_gpu_does_not_wait_for_what_the_binder_makes() {
    let mut world = World::new();
    world.node("n1", json!({}));
    world.group("g", json!({}));
    world.mirror.config_maps_synced();
    let container = json!({ "name": "main", "envFrom": [{ "configMapRef": { "name": "mine-0-evar" } }] });
    let annotations = json!({ "gpu-fraction": "0.5", "runai/shared-gpu-configmap": "mine" });
    world.pod(
        "p",
        json!({ "metadata": { "annotations": annotations }, "spec": { "containers": [container] } }),
    );
    assert_eq!(world.decide(), ["bind uid-p n1"]);
}
