//! Pod groups: priority classes, timestamps, counts of pods.

use kai_engine::model::Preemptibility;

use super::*;

#[test]
fn a_change_of_a_priority_class_reaches_its_gangs() {
    let mut world = World::new();
    world.group("g", json!({ "spec": { "priorityClassName": "high" } }));
    world.group("h", json!({}));
    world.sync();
    let class = Arc::new(slim(json!({ "metadata": { "name": "high" }, "value": 200 })));
    world.mirror.apply_priority_class(&class);
    let events = world.mirror.take_outbox().events;
    let [Event::Gang(gang)] = events.as_slice() else {
        panic!("one gang is affected: {events:?}")
    };
    assert_eq!(
        (gang.priority, gang.preemptibility),
        (200, Preemptibility::NonPreemptible)
    );
    world.mirror.apply_priority_class(&class);
    assert!(world.mirror.take_outbox().events.is_empty(), "nothing changed");
}

#[test]
fn times_of_a_gang_are_kept_until_they_are_written() {
    let mut world = World::new();
    world.group("g", json!({}));
    world.sync();
    let key = ObjectKey::new("a", "g");
    assert!(
        world
            .mirror
            .record_timestamp(&key, GangTimestamp::Started(Millis(2_000_500)))
    );
    assert!(
        world
            .mirror
            .record_timestamp(&key, GangTimestamp::Stale(Some(Millis(3_000))))
    );
    assert!(
        !world
            .mirror
            .record_timestamp(&key, GangTimestamp::Stale(Some(Millis(3_400)))),
        "the same second"
    );
    let mut times = |annotations: Value| {
        world.group("g", json!({ "metadata": { "annotations": annotations } }));
        match world.mirror.take_outbox().events.as_slice() {
            [Event::Gang(gang)] => (gang.last_start.map(|at| at.0), gang.stale_since.map(|at| at.0)),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(times(json!({})), (Some(2_000_500), Some(3_000)));
    let written = json!({ "kai.scheduler/last-start-timestamp": "1970-01-01T00:33:20Z",
                          "kai.scheduler/stale-podgroup-timestamp": "1970-01-01T00:00:03Z" });
    assert_eq!(times(written), (Some(2_000_000), Some(3_000)));
    assert_eq!(times(json!({})), (None, None), "what was written and removed is gone");
}

#[test]
fn a_gang_is_settled_when_nothing_of_it_waits() {
    let mut world = a_node_a_gang_and_a_pod();
    let gang = ObjectKey::new("a", "g");
    assert!(world.mirror.has_unbound_pods(&gang));
    world.decide();
    assert!(
        world.mirror.has_placed_pods(&gang) && world.mirror.has_unbound_pods(&gang),
        "on its way"
    );
    world.pod("p", json!({ "spec": { "nodeName": "n1" } }));
    assert!(world.mirror.has_placed_pods(&gang) && !world.mirror.has_unbound_pods(&gang));
    world.mirror.remove_pod(&ObjectKey::new("a", "p"));
    assert!(!world.mirror.has_placed_pods(&gang) && world.mirror.member_counts.is_empty());
}

#[test]
fn a_gang_with_a_succeeded_pod_is_finishing_and_not_stale() {
    let evictions = |phase: &str| {
        let mut world = World::new();
        world.node("n1", json!({}));
        world.group("g", json!({ "spec": { "minMember": 2 } }));
        world.pod(
            "ended",
            json!({ "spec": { "nodeName": "n1" }, "status": { "phase": phase } }),
        );
        world.pod(
            "runs",
            json!({ "spec": { "nodeName": "n1" }, "status": { "phase": "Running" } }),
        );
        world.decide();
        world.after(61)
    };
    assert_eq!(evictions("Succeeded"), [""; 0]);
    assert_eq!(evictions("Failed"), ["evict uid-runs"]);
}
