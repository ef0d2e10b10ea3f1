//! Nodes and GPUs that are added and removed.

use kai_api::Object;
use kai_embedded::kubelet::NodeTemplate;
use serde_json::json;

use crate::harness::manifest::PodManifest;
use crate::harness::scenario;

#[test]
fn a_node_that_is_removed_takes_its_pods_and_nothing_else() {
    let nodes = [NodeTemplate::new("a", "h100:1"), NodeTemplate::new("b", "h100:1")];
    scenario(&nodes, async |cluster| {
        for name in ["x", "y"] {
            cluster.create(PodManifest::new(name).fraction("0.5").build()).await;
        }
        cluster.until_running(2).await;
        let node = cluster.node_of("x").unwrap();
        cluster.kubelets.remove(&node).await.unwrap();
        cluster
            .until("pods of the node are gone", |cluster| cluster.running().len() < 2)
            .await;
        cluster.create(PodManifest::new("z").fraction("0.5").build()).await;
        cluster
            .until("z runs on the other node", |cluster| {
                cluster.runs("z") && cluster.node_of("z") != Some(node.clone())
            })
            .await;
    });
}

#[test]
fn a_cordoned_node_gets_no_pods() {
    scenario(&[NodeTemplate::new("node", "h100:2")], async |cluster| {
        cluster.create(PodManifest::new("before").gpus(1).build()).await;
        cluster.until_only_running(&["before"]).await;
        let cordon = |on: bool| json!({ "spec": { "unschedulable": on } });
        cluster
            .patch(&kai_api::Node::RESOURCE, "", "node", cordon(true))
            .await
            .unwrap();
        cluster.create(PodManifest::new("after").gpus(1).build()).await;
        cluster.until_waiting("after", "unschedulable").await;
        cluster
            .patch(&kai_api::Node::RESOURCE, "", "node", cordon(false))
            .await
            .unwrap();
        cluster.until_only_running(&["before", "after"]).await;
    });
}

#[test]
fn a_lost_gpu_is_not_given_out_until_it_is_back() {
    scenario(&[NodeTemplate::new("node", "h100:2")], async |cluster| {
        cluster.kubelets.set_gpu_health("node", 1, false).await.unwrap();
        for name in ["x", "y"] {
            cluster.create(PodManifest::new(name).gpus(1).build()).await;
        }
        cluster.until_running(1).await;
        cluster.settle().await;
        assert_eq!(cluster.running().len(), 1, "{}", cluster.picture());
        cluster.kubelets.set_gpu_health("node", 1, true).await.unwrap();
        cluster.until_running(2).await;
    });
}
