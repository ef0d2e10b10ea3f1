//! The pod grouper makes gangs of the workloads of Kubernetes and of common operators.

use kai_api::{Resource, Scope};
use kai_cluster::{Selection, Target};
use kai_embedded::kubelet::NodeTemplate;
use serde_json::{Value, json};

use crate::harness::manifest::{PodManifest, queue};
use crate::harness::scenario;

#[test]
fn a_deployment_runs_its_replicas() {
    scenario(&[NodeTemplate::new("node", "h100:4")], async |cluster| {
        // The default priority class of a Deployment is `inference`, which is non-preemptible and so needs a quota.
        let web = PodManifest::new("web").label("app", "web").priority("train");
        let template = web.fraction("0.5").template();
        cluster
            .create(json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web", "namespace": "default" },
                "spec": { "replicas": 3, "selector": { "matchLabels": { "app": "web" } }, "template": template },
            }))
            .await;
        cluster.until_running(3).await;
        let groups = cluster.informers().pod_groups().len();
        assert_eq!(groups, 1, "the pods of a deployment have one pod group");
    });
}

const EVENTS: Resource = Resource::new("", "v1", "Event", "events", Scope::Namespaced);
const DEPLOYMENTS: Resource = Resource::new("apps", "v1", "Deployment", "deployments", Scope::Namespaced);

/// A Deployment of pods with only a label and kai's scheduler.
fn plain_deployment(image: &str) -> Value {
    let mut template = PodManifest::new("web").label("app", "web").priority("train").template();
    template["spec"]["containers"][0]["image"] = image.into();
    template["metadata"].as_object_mut().unwrap().remove("annotations");
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web", "namespace": "default" },
        "spec": { "replicas": 2, "selector": { "matchLabels": { "app": "web" } }, "template": template },
    })
}

/// Admission refuses to raise the core of a semi-preemptible pod group; pods that come later are grouped all the same.
#[test]
fn a_raised_minimum_of_a_semi_preemptible_deployment_stops_no_pod() {
    scenario(&[NodeTemplate::new("node", "h100:4")], async |cluster| {
        cluster.create(queue("team", None, 2.0, -1.0)).await;
        let mut deployment = plain_deployment("one");
        deployment["metadata"]["labels"] = json!({ "kai.scheduler/preemptibility": "semi-preemptible" });
        let template = PodManifest::new("web").label("app", "web").queue("team");
        deployment["spec"]["template"] = template.gpus(1).template();
        cluster.create(deployment).await;
        cluster.until_running(2).await;
        let minimum = |min: &str, replicas: u32| {
            let annotations = json!({ "kai.scheduler/batch-min-member": min });
            json!({ "metadata": { "annotations": annotations }, "spec": { "replicas": replicas } })
        };
        let change = minimum("3", 4);
        cluster.patch(&DEPLOYMENTS, "default", "web", change).await.unwrap();
        cluster.until_running(4).await;
        let groups = || {
            let groups = cluster.informers().pod_groups().all();
            groups
                .iter()
                .map(|group| group.as_written().min_member)
                .collect::<Vec<_>>()
        };
        assert_eq!(groups(), [Some(1)], "one pod group, with the old minimum");
        let told = async || {
            let events = cluster
                .client
                .list_values(&EVENTS, &Selection::default())
                .await
                .unwrap();
            let told = events.iter().filter(|event| {
                let message = event["message"].as_str().unwrap_or_default();
                message.starts_with("Deployment default/web: pod group ")
                    && message.contains("spec.minMember stays 1 and does not become 3")
            });
            told.map(|event| event["count"].as_u64().unwrap_or(1)).sum::<u64>()
        };
        assert_eq!(told().await, 1, "two pods came, and one event");
    });
}

#[test]
fn a_deployment_without_annotations_gets_its_pods() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        cluster.create(plain_deployment("one")).await;
        cluster.until_running(2).await;
    });
}

#[test]
fn pods_that_are_refused_are_told_about_in_an_event() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        let mut deployment = plain_deployment("one");
        deployment["spec"]["template"]["metadata"]["annotations"] = json!({ "gpu-fraction": "nonsense" });
        cluster.create(deployment).await;
        let told = async || {
            let events = cluster
                .client
                .list_values(&EVENTS, &Selection::default())
                .await
                .unwrap();
            events.iter().any(|event| {
                let message = event["message"].as_str().unwrap_or_default();
                event["reason"] == "FailedCreate"
                    && message.contains("denied the request")
                    && message.contains("nonsense")
            })
        };
        cluster.until_async("an event with the server's message", told).await;
        let fixed = json!({ "spec": { "template": { "metadata": { "annotations": { "gpu-fraction": null } } } } });
        cluster.patch(&DEPLOYMENTS, "default", "web", fixed).await.unwrap();
        cluster.until_running(2).await;
    });
}

#[test]
fn an_update_of_a_deployment_replaces_its_pods() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        cluster.create(plain_deployment("one")).await;
        cluster.until_running(2).await;
        let before = cluster.running();
        let template = plain_deployment("two")["spec"]["template"].clone();
        let update = json!({ "spec": { "template": template } });
        cluster.patch(&DEPLOYMENTS, "default", "web", update).await.unwrap();
        let target = Target {
            resource: &DEPLOYMENTS,
            namespace: "default",
            name: "web",
        };
        let complete = async || {
            let deployment = cluster.client.get_value(target).await.unwrap().unwrap();
            let status = &deployment["status"];
            let counters = ["replicas", "updatedReplicas", "availableReplicas"];
            status["observedGeneration"] == deployment["metadata"]["generation"]
                && counters.iter().all(|field| status[field] == 2)
                && deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "2"
        };
        cluster.until_async("the update is complete", complete).await;
        cluster
            .until("only new pods run", |cluster| {
                let running = cluster.running();
                running.len() == 2 && running.iter().all(|pod| !before.contains(pod))
            })
            .await;
    });
}

#[test]
fn a_reason_names_the_workload_that_holds_the_gpus() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        let llm = PodManifest::new("llm").label("app", "llm").priority("train").gpus(1);
        cluster
            .create(json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "llm", "namespace": "default" },
                "spec": { "replicas": 1, "selector": { "matchLabels": { "app": "llm" } }, "template": llm.template() },
            }))
            .await;
        cluster.until_running(1).await;
        cluster.create(PodManifest::new("next").gpus(1).build()).await;
        cluster
            .until_waiting("next", "held by Deployment default/llm (1 GPU)")
            .await;
        cluster.delete::<kai_api::Pod>("default", "next").await.unwrap();
        cluster
            .until("it is gone", |cluster| cluster.pod("next").is_none())
            .await;
    });
}

#[test]
fn a_job_runs_to_its_end() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        let template = PodManifest::new("work")
            .gpus(1)
            .annotation(kai_embedded::kubelet::RUN_SECONDS, "3")
            .template();
        let mut job = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "work", "namespace": "default" },
            "spec": { "completions": 2, "parallelism": 2, "template": template },
        });
        job["spec"]["template"]["spec"]["restartPolicy"] = "Never".into();
        cluster.create(job).await;
        cluster.until_running(1).await;
        cluster
            .until("all pods have ended", |cluster| cluster.pods().is_empty())
            .await;
    });
}

/// Installs the custom resource of another operator; the scenario creates the pods in its place.
pub(crate) async fn foreign_kind(cluster: &crate::harness::Cluster, group: &str, kind: &str, plural: &str) {
    cluster
        .create(json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{group}") },
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List") },
                "versions": [{ "name": "v1", "served": true, "storage": true,
                    "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }],
            },
        }))
        .await;
    cluster.until_served(&format!("{group}/v1"), kind).await;
}

#[test]
fn a_pytorch_job_is_one_gang() {
    scenario(&[NodeTemplate::new("node", "h100:2")], async |cluster| {
        foreign_kind(cluster, "kubeflow.org", "PyTorchJob", "pytorchjobs").await;
        let job = json!({
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": { "name": "train", "namespace": "default" },
            "spec": { "pytorchReplicaSpecs": { "Master": { "replicas": 1 }, "Worker": { "replicas": 2 } } },
        });
        let job = cluster.try_create(job).await.unwrap();
        let pod = |name: &str, role: &str| {
            let pod = PodManifest::new(name).owned_by(&job).gpus(1);
            pod.label("training.kubeflow.org/job-name", "train")
                .label("training.kubeflow.org/replica-type", role)
                .build()
        };
        cluster.create(pod("train-master-0", "master")).await;
        cluster.create(pod("train-worker-0", "worker")).await;
        cluster.create(pod("train-worker-1", "worker")).await;
        cluster.until_waiting("train-worker-0", "GPU").await;
        assert!(
            cluster.running().is_empty(),
            "three pods are no use on two GPUs\n{}",
            cluster.picture()
        );
        cluster
            .kubelets
            .add(&NodeTemplate::new("second", "h100:1"))
            .await
            .unwrap();
        cluster.until_running(3).await;
    });
}

#[test]
fn a_ray_cluster_starts_with_its_head_and_workers() {
    scenario(&[NodeTemplate::new("node", "h100:2")], async |cluster| {
        foreign_kind(cluster, "ray.io", "RayCluster", "rayclusters").await;
        let ray = json!({
            "apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": { "name": "ray", "namespace": "default" },
            "spec": { "headGroupSpec": {}, "workerGroupSpecs": [{ "groupName": "gpu", "replicas": 2, "minReplicas": 2 }] },
        });
        let ray = cluster.try_create(ray).await.unwrap();
        let head = PodManifest::new("ray-head")
            .owned_by(&ray)
            .label("ray.io/node-type", "head")
            .label("ray.io/group", "headgroup");
        cluster.create(head.build()).await;
        for number in 0..2 {
            let worker = PodManifest::new(&format!("ray-worker-{number}")).owned_by(&ray).gpus(1);
            cluster
                .create(
                    worker
                        .label("ray.io/node-type", "worker")
                        .label("ray.io/group", "gpu")
                        .build(),
                )
                .await;
        }
        cluster.until_running(3).await;
    });
}
