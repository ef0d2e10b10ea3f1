//! Knative, workflows and the rest.

use serde_json::{Value, json};

use super::super::KindDefaults;
use super::{Fixture, check, labelled, object, pod};

fn revision(annotations: Value) -> Value {
    object(
        "serving.knative.dev/v1",
        "Revision",
        "r",
        json!({ "metadata": { "annotations": annotations } }),
    )
}

fn service() -> Value {
    object("serving.knative.dev/v1", "Service", "s", json!({}))
}

fn serving(name: &str, group: Option<&str>) -> Value {
    let mut pod = object(
        "v1",
        "Pod",
        name,
        json!({ "metadata": { "labels": { "serving.knative.dev/revision": "r" } } }),
    );
    if let Some(group) = group {
        pod["metadata"]["annotations"] = json!({ "pod-group-name": group });
    }
    pod
}

#[test]
fn knative() {
    let owners = [service()];
    check(&owners, &serving("p", None), "needs Revision r");
    let fixture = || Fixture::default().with_object(revision(json!({ "autoscaling.knative.dev/min-scale": "3" })));
    let gang = "pg-r-u-r of Revision/r queue=default-queue priority=inference min=3";
    let alone = "pg-p-u-p of Pod/p queue=default-queue priority=inference min=1";
    fixture().check(&owners, &serving("p", None), gang);
    let both = fixture()
        .with_pod(serving("a", Some("x")))
        .with_pod(serving("b", Some("x")));
    both.check(&owners, &serving("p", None), gang);
    let apart = fixture()
        .with_pod(serving("a", Some("x")))
        .with_pod(serving("b", Some("y")));
    apart.check(&owners, &serving("p", None), alone);
    let mut no_gangs = fixture();
    no_gangs.options.knative_gang = false;
    no_gangs.check(&owners, &serving("p", None), alone);
    check(
        &owners,
        &pod(json!({})),
        "Pod ns/p: metadata.labels.serving.knative.dev/revision: it is missing; Knative writes it",
    );
}

#[test]
fn what_starts_workloads_is_skipped() {
    let workflow = object(
        "argoproj.io/v1alpha1",
        "Workflow",
        "w",
        json!({ "metadata": { "labels": { "kai.scheduler/queue": "q", "team": "x" } } }),
    );
    check(
        &[workflow.clone()],
        &pod(json!({})),
        "pg-p-u-p of Pod/p queue=q priority=train min=1",
    );
    let job = object(
        "batch/v1",
        "Job",
        "j",
        json!({ "metadata": { "labels": { "kai.scheduler/queue": "own" } } }),
    );
    check(
        &[job, workflow],
        &pod(json!({})),
        "pg-j-u-j of Job/j queue=own priority=train min=1",
    );

    let trainer = object("trainer.kubeflow.org/v1alpha1", "TrainJob", "t", json!({}));
    let set = object(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        "s",
        json!({ "spec": { "replicatedJobs": [{ "name": "node", "template": { "spec": { "parallelism": 2 } } }] } }),
    );
    let node =
        labelled(json!({ "jobset.sigs.k8s.io/replicatedjob-name": "node", "jobset.sigs.k8s.io/job-index": "0" }));
    let mut fixture = Fixture::default();
    fixture.options.kind_defaults =
        KindDefaults::parse(r#"[{"typeName":"TrainJob","group":"trainer.kubeflow.org","priorityName":"high"}]"#)
            .unwrap();
    fixture.check(
        &[set, trainer],
        &node,
        "pg-s-u-s of JobSet/s queue=default-queue priority=high minSubGroup=1 [node=1, node/node-replica-0:2] -> node-replica-0",
    );
}

#[test]
fn rarer_kinds() {
    let aml = object(
        "amlarc.azureml.com/v1alpha1",
        "AmlJob",
        "a",
        json!({ "spec": { "job": { "options": { "envs": { "AZUREML_NODE_COUNT": 3 } } } } }),
    );
    check(
        &[aml],
        &pod(json!({})),
        "pg-a-u-a of AmlJob/a queue=default-queue priority=train min=3",
    );
    let spot = object("egx.nvidia.io/v1", "SPOTRequest", "s", json!({}));
    check(
        &[spot],
        &pod(json!({})),
        "pg-s-u-s of SPOTRequest/s queue=default-queue priority=inference min=1",
    );
    let job = object("run.ai/v1", "RunaiJob", "train", json!({}));
    let member = object("v1", "Pod", "train-a-0", json!({}));
    check(
        &[job.clone()],
        &member,
        "pg-train-a-u-train of RunaiJob/train queue=default-queue priority=train min=1",
    );
    let before = Fixture::default().with_group("pg-train-u-train", json!({}));
    before.check(
        &[job],
        &member,
        "pg-train-u-train of RunaiJob/train queue=default-queue priority=train min=1",
    );
}
