//! The controllers on the embedded API server: pods get pod groups, pod groups and queues get their status.

#![allow(clippy::unwrap_used)]

mod support;

use serde_json::{Value, json};
use support::World;

#[tokio::test(start_paused = true)]
async fn a_bare_pod_gets_a_group_that_ends_with_it() {
    let world = World::new();
    world.pod("p", json!({ "labels": { "kai.scheduler/queue": "q" } }));
    let group = world.group_of("p").await;
    let uid = world.uid("pods", "p");
    assert_eq!(group["metadata"]["name"], format!("pg-p-{uid}"));
    assert_eq!(
        group["metadata"]["ownerReferences"],
        json!([{ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid }])
    );
    assert_eq!(
        (&group["spec"]["queue"], &group["spec"]["minMember"]),
        (&json!("q"), &json!(1))
    );
    world.remove("pods", "a", "p");
    world
        .until("the group is gone", |world| world.all("podgroups", "a").is_empty())
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_group_is_made_again() {
    let world = World::new();
    world.pod("p", json!({}));
    let first = world.group_of("p").await;
    world.remove("podgroups", "a", first["metadata"]["name"].as_str().unwrap());
    world
        .until("there is another group", |world| {
            let groups = world.all("podgroups", "a");
            groups.len() == 1 && groups[0]["metadata"]["uid"] != first["metadata"]["uid"]
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_opt_out_or_ask_for_others_are_left_alone() {
    let world = World::new();
    world.pod(
        "out",
        json!({ "annotations": { "kai.scheduler/skip-podgrouper": "true" } }),
    );
    world.pod("placed", json!({ "annotations": { "pod-group-name": "mine" } }));
    let job = world.owner(
        "batch/v1",
        "Job",
        "j",
        json!({ "metadata": { "annotations": { "kai.scheduler/skip-podgrouper": "true" } },
                "spec": { "template": { "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "x" }] } } } }),
    );
    world.pod("of-job", json!({ "ownerReferences": [job] }));
    world.pod("last", json!({}));
    world.group_of("last").await;
    assert_eq!(world.all("podgroups", "a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_a_deployment_and_of_a_job_have_one_group_each() {
    let world = World::new();
    let template = json!({ "metadata": { "labels": { "app": "x" } }, "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "x" }] } });
    let mut serving = template.clone();
    serving["spec"]["restartPolicy"] = "Always".into();
    let selector = json!({ "matchLabels": { "app": "x" } });
    let deployment = world.owner(
        "apps/v1",
        "Deployment",
        "d",
        json!({ "spec": { "selector": selector, "template": serving } }),
    );
    let set = world.owner(
        "apps/v1",
        "ReplicaSet",
        "d-1",
        json!({ "metadata": { "ownerReferences": [deployment] }, "spec": { "selector": selector, "template": serving } }),
    );
    for name in ["d-1-a", "d-1-b"] {
        world.pod(name, json!({ "ownerReferences": [set] }));
        let group = world.group_of(name).await;
        assert_eq!(
            group["metadata"]["name"],
            format!("pg-d-{}", deployment["uid"].as_str().unwrap())
        );
        assert_eq!(group["spec"]["priorityClassName"], "inference");
        assert_eq!(group["spec"]["minMember"], 1);
    }
    let job = world.owner(
        "batch/v1",
        "Job",
        "j",
        json!({ "metadata": { "annotations": { "kai.scheduler/batch-min-member": "2" } }, "spec": { "template": template } }),
    );
    let mut names = Vec::new();
    for name in ["j-a", "j-b"] {
        world.pod(name, json!({ "ownerReferences": [job] }));
        let group = world.group_of(name).await;
        assert_eq!(group["spec"]["minMember"], 2);
        names.push(group["metadata"]["name"].clone());
    }
    assert_eq!(names[0], names[1]);
}

#[tokio::test(start_paused = true)]
async fn the_last_pod_of_an_old_template_does_not_change_the_group_back() {
    let world = World::new();
    let template =
        json!({ "metadata": { "labels": { "app": "x" } }, "spec": { "containers": [{ "name": "c", "image": "x" }] } });
    let deployment = world.owner(
        "apps/v1",
        "Deployment",
        "d",
        json!({ "spec": { "selector": { "matchLabels": { "app": "x" } }, "template": template } }),
    );
    let of_class = |class: &str| json!({ "ownerReferences": [deployment], "labels": { "priorityClassName": class }, "finalizers": ["a/b"] });
    world.pod("old", of_class("train"));
    assert_eq!(world.group_of("old").await["spec"]["priorityClassName"], "train");
    world.pod("new", of_class("build"));
    assert_eq!(world.group_of("new").await["spec"]["priorityClassName"], "build");
    world.remove("pods", "a", "old");
    assert!(world.get("pods", "a", "old")["metadata"]["deletionTimestamp"].is_string());
    world.pod("last", json!({}));
    world.group_of("last").await;
    assert_eq!(world.group_of("new").await["spec"]["priorityClassName"], "build");
}

#[tokio::test(start_paused = true)]
async fn pytorch_and_ray_pods_land_in_their_subgroups() {
    let world = World::new();
    world.kind("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs");
    world.kind("ray.io", "v1", "RayCluster", "rayclusters");
    let replicas = json!({ "Master": { "replicas": 1 }, "Worker": { "replicas": 2 } });
    let job = world.owner(
        "kubeflow.org/v1",
        "PyTorchJob",
        "t",
        json!({ "spec": { "pytorchReplicaSpecs": replicas } }),
    );
    for (name, role) in [
        ("t-master-0", "master"),
        ("t-worker-0", "worker"),
        ("t-worker-1", "worker"),
    ] {
        let labels = json!({ "training.kubeflow.org/replica-type": role });
        world.pod(name, json!({ "ownerReferences": [job], "labels": labels }));
        let group = world.group_of(name).await;
        assert_eq!(group["spec"]["minMember"], 3);
        assert_eq!(
            world.get("pods", "a", name)["metadata"]["labels"]["kai.scheduler/subgroup-name"],
            role
        );
    }
    let spec = json!({ "headGroupSpec": {}, "workerGroupSpecs": [{ "groupName": "gpu", "replicas": 2 }] });
    let cluster = world.owner("ray.io/v1", "RayCluster", "r", json!({ "spec": spec }));
    world.pod(
        "r-head",
        json!({ "ownerReferences": [cluster], "labels": { "ray.io/group": "headgroup" } }),
    );
    let group = world.group_of("r-head").await;
    let expect = json!([{ "name": "headgroup", "minMember": 1 }, { "name": "gpu", "minMember": 2 }]);
    assert_eq!(group["spec"]["subGroups"], expect);
}

#[tokio::test(start_paused = true)]
async fn a_workload_that_makes_no_sense_is_explained_and_grouped_when_it_does() {
    let world = World::new();
    world.kind("kubeflow.org", "v1", "TFJob", "tfjobs");
    let job = world.owner("kubeflow.org/v1", "TFJob", "t", json!({ "spec": {} }));
    world.pod("t-0", json!({ "ownerReferences": [job] }));
    world
        .until("there is an event", |world| {
            let says = "TFJob a/t: spec.tfReplicaSpecs: it names no pods; add a replica spec";
            let mut events = world.all("events", "a").into_iter();
            events.any(|event| event["reason"] == "PodGrouperWarning" && event["message"] == says)
        })
        .await;
    world.merge(
        "tfjobs.kubeflow.org",
        "a",
        "t",
        json!({ "spec": { "tfReplicaSpecs": { "Worker": { "replicas": 2 } } } }),
    );
    assert_eq!(world.group_of("t-0").await["spec"]["minMember"], 2);
}

#[tokio::test(start_paused = true)]
async fn what_others_write_on_a_group_survives() {
    let world = World::new();
    let job = world.owner(
        "batch/v1",
        "Job",
        "j",
        json!({ "spec": { "template": { "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "x" }] } } } }),
    );
    world.pod("j-a", json!({ "ownerReferences": [job] }));
    let name = world.group_of("j-a").await["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    world.merge(
        "podgroups",
        "a",
        &name,
        json!({ "metadata": { "annotations": { "note": "kept" } }, "spec": { "queue": "moved", "minMember": 7 } }),
    );
    world.pod("j-b", json!({ "ownerReferences": [job] }));
    world
        .until("the minimum is put right", |world| {
            world.get("podgroups", "a", &name)["spec"]["minMember"] == 1
        })
        .await;
    let group = world.get("podgroups", "a", &name);
    assert_eq!(
        (&group["spec"]["queue"], &group["metadata"]["annotations"]["note"]),
        (&json!("moved"), &json!("kept"))
    );
}

#[tokio::test(start_paused = true)]
async fn usage_goes_from_pods_up_to_the_top_queue_and_back_to_nothing() {
    let world = World::new();
    world
        .until("there are queues", |world| {
            !world.get("queues", "", "default-queue").is_null()
        })
        .await;
    world.pod("p", json!({}));
    world.group_of("p").await;
    let of = |world: &World, queue: &str, part: &str| {
        world.get("queues", "", queue)["status"][part]["nvidia.com/gpu"].clone()
    };
    for queue in ["default-queue", "default-parent-queue"] {
        world
            .until("it is requested", |world| of(world, queue, "requested") == "1")
            .await;
        assert_eq!(of(&world, queue, "allocated"), Value::Null);
    }
    world.store.bind("a", "p", "n").unwrap();
    for queue in ["default-queue", "default-parent-queue"] {
        world
            .until("it is allocated", |world| of(world, queue, "allocated") == "1")
            .await;
    }
    assert_eq!(
        world.get("queues", "", "default-parent-queue")["status"]["childQueues"],
        json!(["default-queue"])
    );
    let metric = r#"kai_queue_allocated_gpus{queue_name="default-queue",queue_metadata_name="default-queue",queue_display_name=""} 1.0"#;
    assert!(
        world.context.metrics.text().contains(metric),
        "{}",
        world.context.metrics.text()
    );
    world.remove("pods", "a", "p");
    world
        .until("nothing is used", |world| {
            of(world, "default-parent-queue", "allocated") == Value::Null
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn defaults_are_for_fresh_installations_only() {
    let queue = json!({ "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": { "name": "own" },
                        "spec": { "resources": {} } });
    let world = World::prepared(|store| drop(store.create(queue).unwrap()));
    world
        .until("there are classes", |world| {
            !world.get("priorityclasses", "", "inference").is_null()
        })
        .await;
    world.pod("p", json!({}));
    world.group_of("p").await;
    let names: Vec<Value> = world
        .all("queues", "")
        .into_iter()
        .map(|queue| queue["metadata"]["name"].clone())
        .collect();
    assert_eq!(names, ["own"]);
    assert!(world.context.health.not_ready().is_empty());
}

#[tokio::test(start_paused = true)]
async fn values_without_effect_become_events_of_the_object_that_has_them() {
    let world = World::new();
    let job = world.owner(
        "batch/v1",
        "Job",
        "j",
        json!({ "metadata": { "labels": { "kai.scheduler/preemptibility": "maybe" } },
                "spec": { "template": { "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "x" }] } } } }),
    );
    world.pod(
        "p",
        json!({ "ownerReferences": [job], "annotations": { "kai.scheduler/preemption-delay": "soon" } }),
    );
    for (name, field) in [
        ("j", "Job a/j: metadata.labels.kai.scheduler/preemptibility: "),
        ("p", "Pod a/p: metadata.annotations.kai.scheduler/preemption-delay: "),
    ] {
        world
            .until(field, |world| {
                let mut events = world.all("events", "a").into_iter();
                events.any(|event| {
                    let message = event["message"].as_str().unwrap_or_default();
                    event["involvedObject"]["name"] == name && message.starts_with(field)
                })
            })
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_group_counts_its_pods() {
    let world = World::new();
    world.pod("p", json!({}));
    let group = world.group_of("p").await;
    let name = group["metadata"]["name"].as_str().unwrap().to_owned();
    let says = |world: &World, phase: &str, running: i64| {
        let status = &world.get("podgroups", "a", &name)["status"];
        status["phase"] == phase && status["running"] == running
    };
    world.until("it waits", |world| says(world, "Pending", 0)).await;
    world.store.bind("a", "p", "n").unwrap();
    world.until("it has a node", |world| says(world, "Running", 1)).await;
}
