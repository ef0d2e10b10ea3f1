//! Kubeflow's kinds.

use serde_json::{Value, json};

use super::{Fixture, check, labelled, object, pod};

fn job(kind: &str, spec: Value) -> Value {
    object("kubeflow.org/v1", kind, "j", json!({ "spec": spec }))
}

fn line(kind: &str, rest: &str) -> String {
    format!("pg-j-u-j of {kind}/j queue=default-queue priority=train {rest}")
}

#[test]
fn all_replicas_start_together() {
    let replicas = json!({ "PS": { "replicas": 2 }, "Worker": { "replicas": 3 } });
    check(
        &[job("TFJob", json!({ "tfReplicaSpecs": replicas }))],
        &pod(json!({})),
        &line("TFJob", "min=5"),
    );
    let policy = json!({ "runPolicy": { "schedulingPolicy": { "minAvailable": 2 } }, "tfReplicaSpecs": replicas });
    check(&[job("TFJob", policy)], &pod(json!({})), &line("TFJob", "min=2"));
    let jax = json!({ "jaxReplicaSpecs": { "Worker": { "replicas": 4 } } });
    check(&[job("JAXJob", jax)], &pod(json!({})), &line("JAXJob", "min=4"));
    check(
        &[job(
            "XGBoostJob",
            json!({ "xgbReplicaSpecs": { "Worker": { "replicas": 1 } } }),
        )],
        &pod(json!({})),
        "XGBoostJob ns/j: spec.xgbReplicaSpecs.Master: it is missing, and jobs of this kind need it",
    );
    check(
        &[job(
            "TFJob",
            json!({ "tfReplicaSpecs": { "Worker": { "replicas": 0 } } }),
        )],
        &pod(json!({})),
        "TFJob ns/j: spec.tfReplicaSpecs.Worker.replicas: it has to be 1 or more",
    );
    check(
        &[job(
            "TFJob",
            json!({ "tfReplicaSpecs": { "Worker": { "replicas": "3" } } }),
        )],
        &pod(json!({})),
        "TFJob ns/j: spec.tfReplicaSpecs.Worker.replicas: \"3\" is not a number of pods; write a whole number of zero or more",
    );
    check(
        &[job("TFJob", json!({}))],
        &pod(json!({})),
        "TFJob ns/j: spec.tfReplicaSpecs: it names no pods; add a replica spec",
    );
}

#[test]
fn a_launcher_that_comes_late_is_not_waited_for() {
    let replicas = json!({ "Launcher": { "replicas": 1 }, "Worker": { "replicas": 4 } });
    check(
        &[job("MPIJob", json!({ "mpiReplicaSpecs": replicas }))],
        &pod(json!({})),
        &line("MPIJob", "min=5"),
    );
    let late = job(
        "MPIJob",
        json!({ "launcherCreationPolicy": "WaitForWorkersReady", "mpiReplicaSpecs": replicas }),
    );
    check(&[late.clone()], &pod(json!({})), &line("MPIJob", "min=4"));
    let launcher =
        labelled(json!({ "training.kubeflow.org/job-name": "j", "training.kubeflow.org/job-role": "launcher" }));
    let with_launcher = Fixture::default().with_pod(launcher.clone());
    with_launcher.check(&[late.clone()], &pod(json!({})), &line("MPIJob", "min=5"));
    let mut leaving = launcher;
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    Fixture::default()
        .with_pod(leaving)
        .check(&[late], &pod(json!({})), &line("MPIJob", "min=4"));
}

fn worker(index: &str) -> Value {
    labelled(json!({
        "training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": index,
    }))
}

#[test]
fn pytorch_has_a_master_and_workers() {
    let replicas = json!({ "Master": { "replicas": 1 }, "Worker": { "replicas": 3 } });
    let groups = "[master:1, worker:3]";
    check(
        &[job("PyTorchJob", json!({ "pytorchReplicaSpecs": replicas }))],
        &worker("0"),
        &line("PyTorchJob", &format!("min=4 {groups} -> worker")),
    );
    check(
        &[job("PyTorchJob", json!({ "pytorchReplicaSpecs": replicas }))],
        &labelled(json!({ "training.kubeflow.org/replica-type": "master" })),
        &line("PyTorchJob", &format!("min=4 {groups} -> master")),
    );
    let elastic = json!({ "elasticPolicy": { "minReplicas": 2 }, "pytorchReplicaSpecs": replicas });
    check(
        &[job("PyTorchJob", elastic)],
        &worker("2"),
        &line("PyTorchJob", "min=2 [master:1, worker:1] -> worker"),
    );
    let policy = json!({
        "runPolicy": { "schedulingPolicy": { "minAvailable": 1 } },
        "elasticPolicy": { "minReplicas": 2 },
        "pytorchReplicaSpecs": { "Worker": { "replicas": 3 } },
    });
    check(
        &[job("PyTorchJob", policy)],
        &worker("2"),
        &line("PyTorchJob", "min=1 [worker:1] -> worker"),
    );
}

#[test]
fn pytorch_workers_in_segments() {
    let of = |count: i32, min: i32, annotations: Value| {
        job(
            "PyTorchJob",
            json!({
                "elasticPolicy": { "minReplicas": min },
                "pytorchReplicaSpecs": { "Worker": { "replicas": count, "template": { "metadata": { "annotations": annotations } } } },
            }),
        )
    };
    let annotations = json!({
        "kai.scheduler/segment-size": "2",
        "kai.scheduler/topology": "dc",
        "kai.scheduler/segment-topology-required-placement": "rack",
    });
    check(
        &[of(5, 5, annotations.clone())],
        &worker("4"),
        &line(
            "PyTorchJob",
            "min=5 [worker=3, worker/worker-0:2 dc(rack/), worker/worker-1:2 dc(rack/), worker/worker-2:1 dc(rack/)] -> worker-2",
        ),
    );
    check(
        &[of(6, 3, json!({ "kai.scheduler/segment-size": "2" }))],
        &worker("1"),
        &line(
            "PyTorchJob",
            "min=3 [worker=3, worker/worker-0:2, worker/worker-1:2, worker/worker-2:0] -> worker-0",
        ),
    );
    check(
        &[of(5, 5, annotations)],
        &worker("x"),
        "Pod ns/p: metadata.labels.training.kubeflow.org/replica-index: \"x\" is not the number of a worker",
    );
    check(
        &[of(2, 2, json!({ "kai.scheduler/segment-size": "0" }))],
        &worker("0"),
        "PyTorchJob ns/j: spec.pytorchReplicaSpecs.Worker.template.metadata.annotations.kai.scheduler/segment-size: \"0\" is not a \
         size; write a whole number of 1 or more",
    );
    check(
        &[of(1_000_000, 1, json!({ "kai.scheduler/segment-size": "2" }))],
        &worker("0"),
        "PyTorchJob ns/j: spec.pytorchReplicaSpecs.Worker.replicas: 500000 segments are more than 4000; make segments larger",
    );
}

#[test]
fn notebooks_are_interactive() {
    let notebook = object("kubeflow.org/v1beta1", "Notebook", "n", json!({}));
    let set = object("apps/v1", "StatefulSet", "n", json!({}));
    check(
        &[set, notebook],
        &pod(json!({})),
        "pg-n-u-n of Notebook/n queue=default-queue priority=build min=1",
    );
}
