//! Queues and nodes of other teams.

use kai_api::keys;
use kai_cluster::Target;
use kai_embedded::kubelet::NodeTemplate;
use serde_json::{Value, json};

use super::{node, tenant};
use crate::harness::manifest::{PodManifest, pod_group, queue};
use crate::harness::user::refused;
use crate::harness::{Cluster, scenario};

fn restricted(name: &str, namespaces: &str) -> Value {
    let mut queue = queue(name, Some("company"), -1.0, -1.0);
    queue["metadata"]["annotations"] = json!({ keys::QUEUE_ALLOWED_NAMESPACES: namespaces });
    queue
}

#[test]
fn another_teams_queue_serves_its_own_namespaces() {
    scenario(&[node("h100:4")], async |cluster| {
        let tenant = tenant(cluster).await;
        cluster.create(queue("company", None, -1.0, -1.0)).await;
        // A pod group that is older than the queue.
        tenant.create(pod_group("early", "blue", 1)).await.unwrap();
        tenant
            .create(PodManifest::new("early").member_of("early").gpus(1).build())
            .await
            .unwrap();
        cluster.create(restricted("blue", "blue, green")).await;
        cluster.until_waiting("early", "not for namespace default").await;

        let by = "queue blue is not for namespace default";
        let pod = |name: &str| PodManifest::new(name).queue("blue").gpus(1);
        // Webhooks see a queue a moment after its creation.
        cluster
            .until_async("the queue is known", async || {
                tenant.create(pod("probe").build()).await.is_err() || {
                    tenant.delete::<kai_api::Pod>("default", "probe").await.unwrap();
                    false
                }
            })
            .await;
        refused("a pod", tenant.create(pod("pod").build()).await, by);
        refused("a pod group", tenant.create(pod_group("group", "blue", 1)).await, by);
        tenant.create(PodManifest::new("own").gpus(1).build()).await.unwrap();
        cluster.until("own runs", |cluster| cluster.runs("own")).await;
        let label = json!({ "metadata": { "labels": { keys::QUEUE: "blue" } } });
        refused("a pod's label", tenant.patch_pod("own", label).await, by);
        tenant.create(pod_group("later", keys::DEFAULT_QUEUE, 1)).await.unwrap();
        let target = Target::of::<kai_api::PodGroup>("default", "later");
        let change = json!({ "spec": { "queue": "blue" } });
        refused("a pod group's queue", tenant.patch(target, change).await, by);

        tenant.delete::<kai_api::Pod>("default", "early").await.unwrap();
        cluster
            .until("only own is left", |cluster| cluster.pods().len() == 1)
            .await;
    });
}

/// The workload names the queue; its pods do not.
#[test]
fn a_workload_does_not_bring_its_pods_into_another_teams_queue() {
    scenario(&[node("h100:1")], async |cluster| {
        let tenant = tenant(cluster).await;
        cluster.create(queue("company", None, -1.0, -1.0)).await;
        cluster.create(restricted("blue", "blue")).await;
        let mut template = PodManifest::new("job").gpus(1).template();
        template["spec"]["restartPolicy"] = "Never".into();
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": { "name": "job", "namespace": "default", "labels": { keys::QUEUE: "blue" } },
            "spec": { "template": template },
        });
        tenant.create(job).await.unwrap();
        let why = |cluster: &Cluster| {
            let pod = cluster.pods().into_iter().next()?;
            cluster.reason(pod.metadata.plain_name())
        };
        cluster.until("its pod waits", |cluster| why(cluster).is_some()).await;
        cluster.settle().await;
        assert!(cluster.running().is_empty(), "{}", cluster.picture());
        let target = Target {
            resource: &kai_api::Resource::new("batch", "v1", "Job", "jobs", kai_api::Scope::Namespaced),
            namespace: "default",
            name: "job",
        };
        let deletion = kai_cluster::Deletion::default();
        cluster.client.delete(target, &deletion).await.unwrap();
        cluster
            .until("its pod is gone", |cluster| cluster.pods().is_empty())
            .await;
    });
}

#[test]
fn another_teams_nodes_run_its_own_pods() {
    let mut blue = NodeTemplate::new("blue", "h100:1");
    blue.labels.insert(keys::NODE_POOL.to_owned(), "blue".to_owned());
    scenario(&[blue], async |cluster| {
        let tenant = tenant(cluster).await;
        let mut chosen = PodManifest::new("chosen").gpus(1).build();
        chosen["spec"]["nodeSelector"] = json!({ keys::NODE_POOL: "blue" });
        tenant.create(chosen).await.unwrap();
        tenant
            .create(
                PodManifest::new("labelled")
                    .gpus(1)
                    .label(keys::NODE_POOL, "blue")
                    .build(),
            )
            .await
            .unwrap();
        cluster
            .until("chosen waits", |cluster| cluster.reason("chosen").is_some())
            .await;
        cluster.settle().await;
        assert!(cluster.running().is_empty(), "{}", cluster.picture());
        for pod in ["chosen", "labelled"] {
            tenant.delete::<kai_api::Pod>("default", pod).await.unwrap();
        }
    });
}
