//! The default rules.

use serde_json::json;

use super::super::KindDefaults;
use super::{Fixture, check, labelled, object, pod};

#[test]
fn a_bare_pod_is_a_group_of_its_own() {
    check(
        &[],
        &pod(json!({})),
        "pg-p-u-p of Pod/p queue=default-queue priority=train min=1",
    );
}

#[test]
fn spark_pods_are_one_group() {
    let driver = object("v1", "Pod", "driver", json!({}));
    check(
        &[driver],
        &labelled(json!({ "spark-app-name": "a", "spark-app-selector": "spark-1" })),
        "spark-1 of Pod/driver queue=default-queue priority=train min=1",
    );
}

#[test]
fn the_top_owner_makes_the_group() {
    let set = object("apps/v1", "ReplicaSet", "r", json!({}));
    let top = object("example.com/v1", "Thing", "t", json!({}));
    check(
        &[set, top],
        &pod(json!({})),
        "pg-t-u-t of Thing/t queue=default-queue priority=train min=1",
    );
}

#[test]
fn the_queue_comes_from_owner_then_pod_then_project() {
    let of = |owner: serde_json::Value, pod_labels: serde_json::Value| {
        let owner = object(
            "apps/v1",
            "StatefulSet",
            "s",
            json!({ "metadata": { "labels": owner } }),
        );
        let desired = Fixture::default().desired(&[owner], &labelled(pod_labels)).unwrap();
        desired.spec.queue.unwrap()
    };
    let queue = |name: &str| json!({ "kai.scheduler/queue": name });
    assert_eq!(of(queue("a"), queue("b")), "a");
    assert_eq!(of(json!({}), queue("b")), "b");
    assert_eq!(of(json!({ "project": "x" }), json!({ "project": "y" })), "x");
    assert_eq!(
        of(json!({}), json!({ "project": "y", "kai.scheduler/node-pool": "fast" })),
        "y-fast"
    );
    assert_eq!(of(json!({}), json!({})), "default-queue");
}

#[test]
fn the_first_priority_class_that_exists_counts() {
    let of = |nearest: &str, farthest: &str, pod: serde_json::Value| {
        let owner = |kind: &str, class: &str| {
            let labels = match class {
                "" => json!({}),
                class => json!({ "priorityClassName": class }),
            };
            object("example.com/v1", kind, "o", json!({ "metadata": { "labels": labels } }))
        };
        let mut fixture = Fixture::default();
        fixture.options.kind_defaults = KindDefaults::parse(
            r#"[{"typeName":"Near","group":"example.com","priorityName":"low","preemptibility":"non-preemptible"}]"#,
        )
        .unwrap();
        let desired = fixture
            .desired(&[owner("Near", nearest), owner("Far", farthest)], &pod)
            .unwrap();
        desired.spec.priority_class_name.unwrap()
    };
    assert_eq!(of("high", "build", pod(json!({}))), "high");
    assert_eq!(of("unknown", "build", pod(json!({}))), "build");
    assert_eq!(of("", "", labelled(json!({ "priorityClassName": "build" }))), "build");
    assert_eq!(
        of("", "", pod(json!({ "spec": { "priorityClassName": "high" } }))),
        "high"
    );
    assert_eq!(
        of("", "", pod(json!({ "spec": { "priorityClassName": "unknown" } }))),
        "low"
    );
}

#[test]
fn preemptibility_delays_and_topology() {
    let owner = object(
        "apps/v1",
        "StatefulSet",
        "s",
        json!({ "metadata": { "annotations": {
            "kai.scheduler/preemption-delay": "-5m",
            "kai.scheduler/staleness-grace-period": "-1s",
            "kai.scheduler/topology": "dc",
            "kai.scheduler/topology-required-placement": "rack",
        } } }),
    );
    let pod = pod(json!({ "metadata": {
        "labels": { "kai.scheduler/preemptibility": "semi-preemptible" },
        "annotations": { "kai.scheduler/preemption-delay": "10m" },
    } }));
    let desired = Fixture::default().desired(&[owner], &pod).unwrap();
    assert_eq!(json!(desired.spec.preemptibility), "semi-preemptible");
    assert_eq!(
        desired.spec.preemption_delay.as_deref(),
        Some("10m"),
        "a negative delay is none"
    );
    assert_eq!(desired.spec.staleness_grace_period.as_deref(), Some("-1s"));
    assert_eq!(
        desired.to_string(),
        "pg-s-u-s of StatefulSet/s queue=default-queue priority=train min=1 dc(rack/)"
    );
}

#[test]
fn labels_and_annotations_are_inherited_but_for_those_of_the_scheduler() {
    let owner = object(
        "apps/v1",
        "StatefulSet",
        "s",
        json!({ "metadata": {
            "labels": { "team": "x", "user": "owner" },
            "annotations": {
                "note": "n",
                "kai.scheduler/last-start-timestamp": "2020-01-01T00:00:00Z",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
            },
        } }),
    );
    let pod = pod(json!({ "metadata": {
        "labels": { "user": "pod", "kai.scheduler/node-pool": "fast" },
        "annotations": { "user": "pod" },
    } }));
    let desired = Fixture::default().desired(&[owner], &pod).unwrap();
    assert_eq!(
        json!(desired.labels),
        json!({ "team": "x", "user": "owner", "kai.scheduler/node-pool": "fast" })
    );
    let metadata = "name: \"s\"\nuid: \"u-s\"\ngroup: \"apps\"\nversion: \"v1\"\nkind: \"StatefulSet\"\n";
    assert_eq!(
        json!(desired.annotations),
        json!({ "note": "n", "user": "pod", "kai.scheduler/top-owner-metadata": metadata })
    );
}

#[test]
fn values_without_effect_are_told_of_the_object_that_has_them() {
    let job = object(
        "batch/v1",
        "Job",
        "j",
        json!({ "metadata": { "labels": { "kai.scheduler/preemptibility": "maybe" },
                              "annotations": { "kai.scheduler/preemption-delay": "soon" } } }),
    );
    let pod = labelled(json!({ "priorityClassName": "hgih" }));
    let told = Fixture::default().ignored(&[job], &pod);
    let objects: Vec<(String, String)> = told
        .into_iter()
        .map(|ignored| (ignored.owner.name, ignored.problem.field))
        .collect();
    let expect = [
        ("j", "metadata.labels.kai.scheduler/preemptibility"),
        ("j", "metadata.annotations.kai.scheduler/preemption-delay"),
        ("p", "metadata.labels.priorityClassName"),
    ];
    assert_eq!(objects, expect.map(|(name, field)| (name.to_owned(), field.to_owned())));
}
