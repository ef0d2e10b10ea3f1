//! Deployments, jobs, cron jobs, job sets.

use serde_json::{Value, json};

use super::{Fixture, check, labelled, object, pod};

fn deployment(annotations: Value) -> [Value; 2] {
    let metadata = json!({ "labels": { "kai.scheduler/queue": "q" }, "annotations": annotations });
    [
        object("apps/v1", "ReplicaSet", "d-1", json!({})),
        object("apps/v1", "Deployment", "d", json!({ "metadata": metadata })),
    ]
}

const OF_THE_DEPLOYMENT: &str = "pg-d-u-d of Deployment/d queue=q priority=inference min=1";
const OF_THE_POD: &str = "pg-p-u-p of Pod/p queue=q priority=inference min=1";

#[test]
fn the_pods_of_a_deployment_have_one_group() {
    check(&deployment(json!({})), &pod(json!({})), OF_THE_DEPLOYMENT);
    check(
        &deployment(json!({ "kai.scheduler/batch-min-member": "3" })),
        &pod(json!({})),
        "pg-d-u-d of Deployment/d queue=q priority=inference min=3",
    );
    check(
        &deployment(json!({ "kai.scheduler/batch-min-member": "0" })),
        &pod(json!({})),
        "Deployment ns/d: metadata.annotations.kai.scheduler/batch-min-member: \"0\" is not a number of pods; write a whole number \
         of one or more",
    );
    let [set, _] = deployment(json!({}));
    check(
        &[set],
        &pod(json!({})),
        "pg-d-1-u-d-1 of ReplicaSet/d-1 queue=default-queue priority=train min=1",
    );
}

#[test]
fn each_pod_of_a_deployment_stands_alone_if_the_administrator_says_so() {
    let mut fixture = Fixture::default();
    fixture.options.deployment_gang = false;
    let of_three = deployment(json!({ "kai.scheduler/batch-min-member": "3" }));
    fixture.check(&of_three, &pod(json!({})), OF_THE_POD);
    // A pod that is in the Deployment's pod group stays there.
    let grouped = pod(json!({ "metadata": { "annotations": { "pod-group-name": "pg-d-u-d" } } }));
    fixture.check(&deployment(json!({})), &grouped, OF_THE_DEPLOYMENT);
}

/// A pod group of the Deployment with this uid, which this kind of object owns.
fn group_of(deployment: &str, kind: &str) -> Fixture {
    let mut fixture = Fixture::default();
    let group = json!({
        "metadata": {
            "name": "pg-other-u-other", "namespace": "ns",
            "ownerReferences": [{ "apiVersion": "v1", "kind": kind, "name": "other", "uid": "u-other" }],
            "annotations": { "kai.scheduler/top-owner-metadata": format!("kind: Deployment\nname: d\nuid: {deployment}\n") },
        },
    });
    fixture
        .groups
        .push(std::sync::Arc::new(serde_json::from_value(group).unwrap()));
    fixture
}

#[test]
fn a_deployment_with_a_group_per_pod_keeps_them() {
    let grouped = |name: &str| pod(json!({ "metadata": { "annotations": { "pod-group-name": name } } }));
    let owners = deployment(json!({}));
    // Another pod of the Deployment has a pod group of its own.
    let legacy = group_of("u-d", "Pod");
    legacy.check(&owners, &pod(json!({})), OF_THE_POD);
    // A pod stays in the pod group that it has.
    legacy.check(&owners, &grouped("pg-d-u-d"), OF_THE_DEPLOYMENT);
    Fixture::default().check(&owners, &grouped("pg-p-u-p"), OF_THE_POD);
    // A pod group that its author named is not one of the grouper's.
    Fixture::default().check(&owners, &grouped("mine"), OF_THE_DEPLOYMENT);
    // Pod groups of other workloads do not count.
    group_of("u-e", "Pod").check(&owners, &pod(json!({})), OF_THE_DEPLOYMENT);
    group_of("u-d", "Deployment").check(&owners, &pod(json!({})), OF_THE_DEPLOYMENT);
}

fn job(annotations: Value) -> Value {
    object(
        "batch/v1",
        "Job",
        "j",
        json!({ "metadata": { "annotations": annotations } }),
    )
}

#[test]
fn jobs() {
    check(
        &[job(json!({}))],
        &pod(json!({})),
        "pg-j-u-j of Job/j queue=default-queue priority=train min=1",
    );
    let of_four = job(json!({ "kai.scheduler/batch-min-member": "4" }));
    check(
        &[of_four.clone()],
        &pod(json!({})),
        "pg-j-u-j of Job/j queue=default-queue priority=train min=4",
    );
    check(
        &[job(json!({ "kai.scheduler/batch-min-member": "many" }))],
        &pod(json!({})),
        "Job ns/j: metadata.annotations.kai.scheduler/batch-min-member: \"many\" is not a number of pods; write a whole number of \
         zero or more",
    );
    let upgraded = Fixture::default().with_group("pg-p-u-j", json!({}));
    upgraded.check(
        &[of_four],
        &pod(json!({})),
        "pg-p-u-j of Job/j queue=default-queue priority=train min=1",
    );
}

#[test]
fn a_cron_job_is_grouped_by_its_jobs() {
    let cron = object("batch/v1", "CronJob", "c", json!({}));
    check(
        &[job(json!({})), cron.clone()],
        &pod(json!({})),
        "pg-j-u-j of Job/j queue=default-queue priority=train min=1",
    );
    check(
        &[cron],
        &pod(json!({})),
        "Pod ns/p: metadata.ownerReferences: no Job stands between it and CronJob c",
    );
}

fn job_set(annotations: Value, spec: Value) -> Value {
    object(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        "s",
        json!({ "metadata": { "annotations": annotations }, "spec": spec }),
    )
}

fn replica(job: &str, index: &str) -> Value {
    labelled(json!({ "jobset.sigs.k8s.io/replicatedjob-name": job, "jobset.sigs.k8s.io/job-index": index }))
}

fn two_jobs() -> Value {
    json!([
        { "name": "driver" },
        { "name": "worker", "replicas": 2, "template": {
            "spec": { "parallelism": 4 },
            "metadata": { "annotations": {
                "kai.scheduler/topology": "dc", "kai.scheduler/topology-required-placement": "rack" } } } },
    ])
}

#[test]
fn job_sets() {
    let groups = "[driver=1, driver/driver-replica-0:1, worker=2, worker/worker-replica-0:4 dc(rack/), \
                  worker/worker-replica-1:4 dc(rack/)]";
    let line = |min: i32, leaf: &str| {
        format!("pg-s-u-s of JobSet/s queue=default-queue priority=train minSubGroup={min} {groups} -> {leaf}")
    };
    let job = object("batch/v1", "Job", "s-worker-1", json!({}));
    let set = job_set(json!({}), json!({ "replicatedJobs": two_jobs() }));
    check(&[job, set], &replica("worker", "1"), &line(2, "worker-replica-1"));
    let in_order = json!({ "startupPolicy": { "startupPolicyOrder": "InOrder" }, "replicatedJobs": two_jobs() });
    check(
        &[job_set(json!({}), in_order)],
        &replica("driver", "0"),
        &line(1, "driver-replica-0"),
    );
    let capped = job_set(
        json!({ "kai.scheduler/batch-min-member": "9" }),
        json!({ "replicatedJobs": two_jobs() }),
    );
    check(&[capped], &replica("driver", "0"), &line(2, "driver-replica-0"));
}

#[test]
fn job_sets_that_make_no_sense() {
    let set = job_set(json!({}), json!({ "replicatedJobs": two_jobs() }));
    check(
        &[set.clone()],
        &replica("worker", "7"),
        "JobSet ns/s: spec.replicatedJobs: no replica worker-replica-7 is in it, of which the pod says to be",
    );
    check(
        &[set],
        &pod(json!({})),
        "Pod ns/p: metadata.labels.jobset.sigs.k8s.io/replicatedjob-name: it is missing; the JobSet controller writes it",
    );
    check(
        &[job_set(json!({}), json!({}))],
        &replica("a", "0"),
        "JobSet ns/s: spec.replicatedJobs: it is empty; add a job",
    );
    let endless = job_set(
        json!({}),
        json!({ "replicatedJobs": [{ "name": "a", "replicas": 1_000_000_000 }] }),
    );
    check(
        &[endless],
        &replica("a", "0"),
        "JobSet ns/s: spec.replicatedJobs[0].replicas: a job set may have 4000 replicas in all",
    );
}

#[test]
fn a_job_set_that_began_flat_stays_flat() {
    let in_order = json!({ "startupPolicy": { "startupPolicyOrder": "InOrder" }, "replicatedJobs": two_jobs() });
    let fixture = Fixture::default().with_group("pg-s-u-s-driver", json!({}));
    fixture.check(
        &[job_set(json!({}), in_order)],
        &replica("worker", "0"),
        "pg-s-u-s-worker of JobSet/s queue=default-queue priority=train min=1",
    );
}
