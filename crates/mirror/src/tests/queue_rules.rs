//! What queues demand of pod groups.

use super::*;

fn classes(world: &mut World) {
    for (name, value) in [("system-node-critical", 2_000_001_000), ("train", 50), ("build", 100)] {
        let class: Arc<kai_api::PriorityClass> =
            Arc::new(slim(json!({ "metadata": { "name": name }, "value": value })));
        world.index.apply_priority_class(&class);
    }
}

/// Pod `p` runs on the only node.
fn runs(world: &mut World) {
    world.pod(
        "p",
        json!({ "spec": { "nodeName": "n1" }, "status": { "phase": "Running" } }),
    );
    assert_eq!(world.decide(), [""; 0]);
}

#[test]
fn a_queue_that_is_not_for_the_namespace_does_not_serve_it() {
    let mut world = World::new();
    world.node("n1", json!({}));
    world.group("g", json!({ "spec": { "queue": "theirs" } }));
    world.pod("p", json!({}));
    assert_eq!(world.decide(), [""; 0], "there is no such queue yet");
    let mut restricted = |namespaces: Value| {
        let annotations = json!({ "kai.scheduler/allowed-namespaces": namespaces });
        world.queue_with("theirs", json!({ "parentQueue": "top" }), &annotations);
        let decided = world.decide();
        (decided, world.reason("uid-p"))
    };
    let (decided, reason) = restricted(json!("b, c"));
    assert_eq!(decided, [""; 0]);
    assert!(reason.contains("theirs (not for namespace a)"), "{reason}");
    assert_eq!(restricted(json!("b, a")).0, ["bind uid-p n1"]);
}

/// A node with two gangs of one queue: `g` runs as usual, `h` of another namespace claims `class`.
fn a_claim(class: &str, annotations: &Value) -> World {
    let mut world = a_node_a_gang_and_a_pod();
    classes(&mut world);
    runs(&mut world);
    world.queue_with("top", json!({}), annotations);
    let group: Arc<kai_api::PodGroup> = Arc::new(slim(json!({
        "metadata": { "name": "h", "namespace": "b", "uid": "uid-h" }, "spec": { "queue": "q", "priorityClassName": class },
    })));
    world.index.apply_group(&ObjectKey::of(&*group), &group);
    let theirs = json!({ "metadata": { "namespace": "b", "annotations": { "pod-group-name": "h" } } });
    world.pod("theirs", theirs);
    world
}

#[test]
fn a_system_priority_class_evicts_nobody_in_a_tenants_namespace() {
    let mut world = a_claim("system-node-critical", &json!({}));
    assert_eq!(world.decide(), [""; 0]);
    let reason = world.reason("uid-theirs");
    assert!(
        reason
            .starts_with("PodGroup b/h: spec.priorityClassName: priority class system-node-critical is for the system"),
        "{reason}"
    );
    // A class that everybody may name does.
    let mut world = a_claim("build", &json!({}));
    assert_eq!(world.decide(), ["evict uid-p"]);
}

#[test]
fn a_priority_above_the_ceiling_of_the_queues_parent_waits_until_the_ceiling_is_raised() {
    let mut world = a_claim("build", &json!({ "kai.scheduler/max-priority": "75" }));
    assert_eq!(world.decide(), [""; 0]);
    let reason = world.reason("uid-theirs");
    assert!(reason.contains("queue top allows 75 at most"), "{reason}");
    world.queue_with("top", json!({}), &json!({ "kai.scheduler/max-priority": "soon" }));
    assert_eq!(world.decide(), [""; 0], "what can't be read allows nothing");
    world.queue_with("top", json!({}), &json!({ "kai.scheduler/max-priority": "100" }));
    assert_eq!(world.decide(), ["evict uid-p"]);
}

#[test]
fn a_gang_that_runs_above_a_new_ceiling_loses_its_rank_and_not_its_place() {
    let mut world = World::new();
    world.node("n1", json!({}));
    classes(&mut world);
    world.group("g", json!({ "spec": { "priorityClassName": "build" } }));
    runs(&mut world);
    let bounded = json!({ "kai.scheduler/max-priority": "40" });
    world.queue_with("q", json!({ "parentQueue": "top" }), &bounded);
    let outbox = world.index.take_outbox();
    let told = outbox.events.iter().find_map(|event| match event {
        Event::Gang(gang) => Some((gang.priority, gang.preemptible, gang.refused.is_some())),
        _ => None,
    });
    assert_eq!(told, Some((40, true, true)));
    outbox.events.into_iter().for_each(|event| world.engine.apply(event));
    assert_eq!(world.decide(), [""; 0], "it runs on");
    assert_eq!(world.status("uid-p"), Some(Status::Running));
}
