//! Scaling pods, by which autoscalers add nodes for pods that share GPUs, and nodes that autoscalers remove. The tests play the autoscaler
//! and the default scheduler, which read and write only what is in the API.

use kai_api::{Node, Object, Pod, keys};
use kai_cli::roles::RoleSettings;
use kai_cluster::{Deletion, Selection, Target};
use kai_embedded::kubelet::NodeTemplate;
use serde_json::{Value, json};

use crate::harness::manifest::{PodManifest, pod_group, queue};
use crate::harness::{Cluster, scenario, scenario_with};

fn with_adjuster() -> RoleSettings {
    let mut settings = RoleSettings::every_role().unwrap();
    settings.controllers.as_mut().unwrap().scale_adjuster = Some(Default::default());
    settings
}

async fn scaling_pods(cluster: &Cluster) -> Vec<Value> {
    let selection = Selection {
        namespace: Some(keys::SCALE_ADJUST_NAMESPACE.to_owned()),
        ..Selection::default()
    };
    cluster.client.list_values(&Pod::RESOURCE, &selection).await.unwrap()
}

/// Waits until there are so many scaling pods for which an autoscaler acts: pods without a node, with the condition Unschedulable.
async fn until_scaling(cluster: &Cluster, count: usize) -> Vec<Value> {
    let acts = |pod: &&Value| {
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let mut unschedulable = conditions.filter(|condition| {
            (&condition["type"], &condition["status"], &condition["reason"])
                == (&json!("PodScheduled"), &json!("False"), &json!("Unschedulable"))
        });
        pod["spec"]["nodeName"].is_null() && unschedulable.next().is_some()
    };
    cluster
        .until_async(&format!("{count} scaling pods"), async || {
            let pods = scaling_pods(cluster).await;
            pods.len() == count && pods.iter().filter(acts).count() == count
        })
        .await;
    scaling_pods(cluster).await
}

async fn until_no_scaling(cluster: &Cluster) {
    cluster
        .until_async("no scaling pods", async || scaling_pods(cluster).await.is_empty())
        .await;
}

/// The default scheduler places the scaling pod.
async fn place(cluster: &Cluster, pod: &Value, node: &str) {
    let text = |field: &str| pod["metadata"][field].as_str().unwrap();
    cluster
        .client
        .bind(text("namespace"), text("name"), text("uid"), node)
        .await
        .unwrap();
}

#[test]
fn pods_that_share_gpus_get_a_node_from_an_autoscaler() {
    scenario_with(with_adjuster(), &[NodeTemplate::new("small", "")], async |cluster| {
        for name in ["x", "y"] {
            let mut pod = PodManifest::new(name).fraction("0.5").build();
            pod["spec"]["containers"][0]["resources"]["requests"] = json!({ "cpu": "2", "memory": "1Gi" });
            pod["spec"]["tolerations"] = json!([{ "key": "gpu", "operator": "Exists" }]);
            cluster.create(pod).await;
        }
        let pods = until_scaling(cluster, 1).await;
        let scaling = &pods[0];
        let resources = &scaling["spec"]["containers"][0]["resources"];
        assert_eq!(
            resources["requests"],
            json!({ "nvidia.com/gpu": "1", "cpu": "2", "memory": "1073741824" }),
            "no share device"
        );
        assert_eq!(scaling["spec"]["schedulerName"], "default-scheduler");
        let tolerations = scaling["spec"]["tolerations"].as_array().unwrap();
        assert!(
            tolerations.contains(&json!({ "key": "gpu", "operator": "Exists" })),
            "{tolerations:?}"
        );

        cluster.kubelets.add(&NodeTemplate::new("new", "h100:1")).await.unwrap();
        place(cluster, scaling, "new").await;
        until_no_scaling(cluster).await;
        cluster.until_only_running(&["x", "y"]).await;
        cluster
            .until_async("scaling pods cost no quota", async || {
                let queue = cluster
                    .client
                    .get::<kai_api::Queue>("", "default-queue")
                    .await
                    .unwrap()
                    .unwrap();
                queue
                    .status()
                    .allocated
                    .get("nvidia.com/gpu")
                    .is_some_and(|gpus| gpus.as_str() == "1")
            })
            .await;
    });
}

#[test]
fn a_pod_that_waits_for_its_queue_gets_no_node() {
    scenario_with(with_adjuster(), &[NodeTemplate::new("small", "")], async |cluster| {
        cluster.create(queue("company", None, -1.0, -1.0)).await;
        cluster.create(queue("tiny", Some("company"), 0.0, 0.25)).await;
        cluster
            .create(PodManifest::new("too-much").queue("tiny").fraction("0.5").build())
            .await;
        cluster.until_waiting("too-much", "limit").await;
        cluster.create(PodManifest::new("waits").fraction("0.6").build()).await;
        let pods = until_scaling(cluster, 1).await;
        assert_eq!(pods[0]["metadata"]["annotations"][keys::SCALING_FOR], "default/waits");
        // A pod that is gone needs no node.
        cluster.delete::<Pod>("default", "waits").await.unwrap();
        until_no_scaling(cluster).await;
    });
}

async fn taint(cluster: &Cluster, node: &str, key: &str) {
    let taints = json!({ "spec": { "taints": [{ "key": key, "value": "v", "effect": "NoSchedule" }] } });
    cluster.patch(&Node::RESOURCE, "", node, taints).await.unwrap();
}

#[test]
fn a_node_that_an_autoscaler_removes_gets_no_pods() {
    scenario(&[NodeTemplate::new("node", "h100:2")], async |cluster| {
        cluster.create(PodManifest::new("before").fraction("0.5").build()).await;
        cluster.until_only_running(&["before"]).await;
        for key in ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"] {
            taint(cluster, "node", key).await;
            let name = format!("after-{}", key.len());
            let mut pod = PodManifest::new(&name).fraction("0.5").build();
            pod["spec"]["tolerations"] = json!([{ "operator": "Exists" }]);
            cluster.create(pod).await;
            cluster.until_waiting(&name, "being removed from the cluster").await;
        }
        // The autoscaler has changed its mind.
        let untaint = json!({ "spec": { "taints": null } });
        cluster.patch(&Node::RESOURCE, "", "node", untaint).await.unwrap();
        cluster.until_running(3).await;
    });
}

#[test]
fn a_gang_whose_node_is_drained_moves_as_a_whole() {
    let nodes = [NodeTemplate::new("old", "h100:2"), NodeTemplate::new("other", "h100:1")];
    scenario(&nodes, async |cluster| {
        cluster.create(pod_group("train", "default-queue", 3)).await;
        let member = |name: &str, node: &str| PodManifest::new(name).gpus(1).member_of("train").on_node(node).build();
        for (name, node) in [("w0", "old"), ("w1", "old"), ("w2", "other")] {
            cluster.create(member(name, node)).await;
        }
        cluster.until_running(3).await;
        taint(cluster, "old", "karpenter.sh/disrupted").await;
        // The autoscaler evicts one pod after the other.
        let target = Target::of::<Pod>("default", "w0");
        cluster.client.delete(target, &Deletion::default()).await.unwrap();
        cluster
            .until("the rest of the gang is evicted", |cluster| cluster.pods().is_empty())
            .await;
    });
}
