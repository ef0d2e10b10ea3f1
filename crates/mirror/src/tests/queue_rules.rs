//! Namespaces and priorities that queues allow.

use kai_engine::model::Preemptibility;

use super::*;

fn add_priority_classes(world: &mut World) {
    for (name, value) in [("system-node-critical", 2_000_001_000), ("train", 50), ("build", 100)] {
        let class: Arc<kai_api::PriorityClass> =
            Arc::new(slim(json!({ "metadata": { "name": name }, "value": value })));
        world.mirror.apply_priority_class(&class);
    }
}

/// Lets pod `p` run on the only node.
fn run_pod(world: &mut World) {
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
    assert!(reason.starts_with("queue theirs is not for namespace a; "), "{reason}");
    assert_eq!(restricted(json!("b, a")).0, ["bind uid-p n1"]);
}

/// Two gangs of one queue: `g` runs on the only node; `h`, of another namespace, is pending with this priority class.
fn a_gang_with_class(class: &str, annotations: &Value) -> World {
    let mut world = a_node_a_gang_and_a_pod();
    add_priority_classes(&mut world);
    run_pod(&mut world);
    world.queue_with("top", json!({}), annotations);
    let group: Arc<kai_api::PodGroup> = Arc::new(slim(json!({
        "metadata": { "name": "h", "namespace": "b", "uid": "uid-h" }, "spec": { "queue": "q", "priorityClassName": class },
    })));
    world.mirror.apply_pod_group(&ObjectKey::of(&*group), &group);
    let theirs = json!({ "metadata": { "namespace": "b", "annotations": { "pod-group-name": "h" } } });
    world.pod("theirs", theirs);
    world
}

#[test]
fn a_system_priority_class_evicts_nobody_in_a_tenants_namespace() {
    let mut world = a_gang_with_class("system-node-critical", &json!({}));
    assert_eq!(world.decide(), [""; 0]);
    let reason = world.reason("uid-theirs");
    assert!(
        reason
            .starts_with("PodGroup b/h: spec.priorityClassName: priority class system-node-critical is for the system"),
        "{reason}"
    );
    // An ordinary priority class does.
    let mut world = a_gang_with_class("build", &json!({}));
    assert_eq!(world.decide(), ["evict uid-p"]);
}

#[test]
fn a_priority_above_the_ceiling_of_the_queues_parent_waits_until_the_ceiling_is_raised() {
    let mut world = a_gang_with_class("build", &json!({ "kai.scheduler/max-priority": "75" }));
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
    add_priority_classes(&mut world);
    world.group("g", json!({ "spec": { "priorityClassName": "build" } }));
    run_pod(&mut world);
    let bounded = json!({ "kai.scheduler/max-priority": "40" });
    world.queue_with("q", json!({ "parentQueue": "top" }), &bounded);
    let outbox = world.mirror.take_outbox();
    let gang = outbox.events.iter().find_map(|event| match event {
        Event::Gang(gang) => Some((gang.priority, gang.preemptibility, gang.refused.is_some())),
        _ => None,
    });
    assert_eq!(gang, Some((40, Preemptibility::Preemptible, true)));
    outbox.events.into_iter().for_each(|event| world.engine.apply(event));
    assert_eq!(world.decide(), [""; 0], "it runs on");
    assert_eq!(world.status("uid-p"), Some(Status::Running));
}
