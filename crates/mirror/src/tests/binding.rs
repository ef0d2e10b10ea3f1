//! Bindings and evictions: assumed, confirmed, failed.

use super::*;

#[test]
fn a_pod_is_placed_once() {
    let mut world = a_node_a_gang_and_a_pod();
    assert_eq!(world.decide(), ["bind uid-p n1"]);
    assert_eq!(world.decide(), [""; 0]);
    // Something about the pod changes before the binding is to be seen.
    world.pod("p", json!({ "metadata": { "labels": { "touched": "yes" } } }));
    assert_eq!(world.decide(), [""; 0], "it is still assumed bound");
    assert_eq!(world.status("uid-p"), Some(Status::Binding));
    world.pod("p", json!({ "spec": { "nodeName": "n1" } }));
    assert_eq!(world.status("uid-p"), Some(Status::Bound));
    assert_eq!(world.mirror.assumed_count(), 0);
}

#[test]
fn a_binding_that_is_never_seen_is_undone() {
    let mut world = a_node_a_gang_and_a_pod();
    world.decide();
    world.mirror.write_succeeded("uid-p");
    assert_eq!(world.after(59), [""; 0]);
    assert_eq!(world.after(1), [""; 0], "held back for a moment");
    assert!(
        world.reason("uid-p").starts_with("binding to node n1 failed"),
        "{}",
        world.reason("uid-p")
    );
    assert_eq!(world.after(1), [""; 0], "the node is left out for as long again");
    assert_eq!(world.after(1), ["bind uid-p n1"]);
}

#[test]
fn a_doomed_pod_makes_room_for_others() {
    let mut world = a_node_a_gang_and_a_pod();
    world.group("h", json!({}));
    world.pod(
        "other",
        json!({ "metadata": { "annotations": { "pod-group-name": "h" } } }),
    );
    assert_eq!(world.decide(), ["bind uid-p n1"]);
    world.mirror.write_failed("uid-p", Some(("n1", "no".to_owned())));
    assert_eq!(world.decide(), ["bind uid-other n1"]);
}

#[test]
fn a_pod_avoids_the_node_that_failed_it() {
    let mut world = a_node_a_gang_and_a_pod();
    assert_eq!(world.decide(), ["bind uid-p n1"]);
    world.node("n2", json!({}));
    world.mirror.write_failed("uid-p", Some(("n1", "no".to_owned())));
    assert_eq!(world.decide(), [""; 0]);
    assert_eq!(world.after(1), ["bind uid-p n2"]);
}

#[test]
fn a_pod_made_anew_under_its_old_name_is_another_pod() {
    let mut world = a_node_a_gang_and_a_pod();
    world.pod(
        "p",
        json!({ "spec": { "nodeName": "n1" }, "status": { "phase": "Running" } }),
    );
    assert_eq!(world.status("uid-p"), Some(Status::Running));
    world.pod("p", json!({ "metadata": { "uid": "second" } }));
    assert_eq!(world.decide(), ["bind second n1"]);
    assert_eq!(world.status("uid-p"), None);
}

#[test]
fn an_eviction_is_assumed_until_it_shows() {
    let mut world = a_node_a_gang_and_a_pod();
    world.pod(
        "p",
        json!({ "spec": { "nodeName": "n1" }, "status": { "phase": "Running" } }),
    );
    world.sync();
    world.mirror.assume("uid-p", Assumed::Evicting(world.now));
    world.pod("p", json!({ "spec": { "nodeName": "n1" }, "status": { "phase": "Running" }, "metadata": { "labels": { "x": "y" } } }));
    assert_eq!(world.status("uid-p"), Some(Status::Releasing));
    world.mirror.write_failed("uid-p", None);
    assert_eq!(world.status("uid-p"), Some(Status::Running), "the write failed");
}

#[test]
fn a_binding_that_failed_after_its_pod_had_gone_is_not_remembered() {
    let mut world = a_node_a_gang_and_a_pod();
    world.decide();
    world.mirror.remove_pod(&ObjectKey::new("a", "p"));
    world
        .mirror
        .write_failed("uid-p", Some(("n1", "it is gone".to_owned())));
    assert!(world.mirror.assumptions.is_empty());
}

#[test]
fn a_problem_is_told_once_and_is_the_reason() {
    let mut world = a_node_a_gang_and_a_pod();
    let bad = json!({ "metadata": { "annotations": { "gpu-fraction": "lots" } } });
    world.pod("p", bad.clone());
    assert_eq!(world.sync().problems.len(), 1);
    world.pod("p", bad);
    assert_eq!(world.sync().problems.len(), 0);
    world.decide();
    assert!(
        world.reason("uid-p").contains("gpu-fraction: it can't be combined"),
        "{}",
        world.reason("uid-p")
    );
}
