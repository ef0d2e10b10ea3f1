//! Ray's kinds.

use serde_json::{Value, json};

use super::{Fixture, check, labelled, object, pod};

fn cluster(spec: Value) -> Value {
    object("ray.io/v1", "RayCluster", "c", json!({ "spec": spec }))
}

fn two_groups() -> Value {
    json!({
        "headGroupSpec": {},
        "workerGroupSpecs": [
            { "groupName": "small", "replicas": 2 },
            { "replicas": 4, "minReplicas": 1, "numOfHosts": 2 },
            { "groupName": "off", "replicas": 0 },
            { "groupName": "asleep", "replicas": 3, "suspended": true },
        ],
    })
}

const GROUPS: &str = "min=5 [headgroup:1, small:2, worker-group-1:2]";

#[test]
fn clusters() {
    check(
        &[cluster(two_groups())],
        &labelled(json!({ "ray.io/group": "small" })),
        &format!("pg-c-u-c of RayCluster/c queue=default-queue priority=train {GROUPS} -> small"),
    );
    check(
        &[cluster(json!({}))],
        &labelled(json!({ "ray.io/group": "headgroup" })),
        "pg-c-u-c of RayCluster/c queue=default-queue priority=train min=1 [headgroup:1] -> headgroup",
    );
    let before = Fixture::default().with_group("pg-c-u-c", json!({ "minMember": 5 }));
    before.check(
        &[cluster(two_groups())],
        &labelled(json!({ "ray.io/group": "small" })),
        "pg-c-u-c of RayCluster/c queue=default-queue priority=train min=5",
    );
}

#[test]
fn jobs_and_services_have_the_numbers_of_their_cluster() {
    let job = |status: Value| {
        let mut job = object("ray.io/v1", "RayJob", "j", json!({ "status": status }));
        job["metadata"]["labels"] = json!({ "ray.io/priority-class-name": "anything" });
        job
    };
    let fixture = Fixture::default().with_object(cluster(two_groups()));
    let submitter = object("batch/v1", "Job", "submit", json!({}));
    fixture.check(
        &[submitter, job(json!({ "rayClusterName": "c" }))],
        &pod(json!({})),
        &format!("pg-j-u-j of RayJob/j queue=default-queue priority=anything {GROUPS}"),
    );
    fixture.check(
        &[job(json!({}))],
        &pod(json!({})),
        "RayJob ns/j: status.rayClusterName: it names no RayCluster yet; check that the Ray operator runs",
    );
    check(
        &[job(json!({ "rayClusterName": "c" }))],
        &pod(json!({})),
        "needs RayCluster c",
    );
    let service = object(
        "ray.io/v1",
        "RayService",
        "s",
        json!({ "status": { "pendingServiceStatus": { "rayClusterName": "c" } } }),
    );
    fixture.check(
        &[cluster(json!({})), service],
        &labelled(json!({ "ray.io/group": "headgroup" })),
        &format!("pg-s-u-s of RayService/s queue=default-queue priority=train {GROUPS} -> headgroup"),
    );
}

#[test]
fn clusters_that_make_no_sense() {
    check(
        &[cluster(
            json!({ "workerGroupSpecs": [{ "replicas": 1, "minReplicas": 2 }] }),
        )],
        &pod(json!({})),
        "RayCluster ns/c: spec.workerGroupSpecs[0].replicas: 1 is less than minReplicas, which is 2; raise it",
    );
    let annotations = json!({ "kai.scheduler/topology-preferred-placement": "rack" });
    check(
        &[cluster(
            json!({ "headGroupSpec": { "template": { "metadata": { "annotations": annotations } } } }),
        )],
        &pod(json!({})),
        "RayCluster ns/c: spec.headGroupSpec.template.metadata.annotations.kai.scheduler/topology: it is missing beside a placement \
         annotation; name the topology",
    );
}
