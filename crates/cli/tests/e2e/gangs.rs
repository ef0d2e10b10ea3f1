//! Gangs start whole or not at all.

use kai_embedded::kubelet::NodeTemplate;
use serde_json::json;

use crate::harness::manifest::{PodManifest, pod_group};
use crate::harness::{Cluster, scenario};

async fn members(cluster: &Cluster, group: &str, count: u32, gpus: u32) {
    for number in 0..count {
        let pod = PodManifest::new(&format!("{group}-{number}"))
            .member_of(group)
            .gpus(gpus);
        cluster.create(pod.build()).await;
    }
}

#[test]
fn a_gang_waits_until_all_of_it_fits() {
    scenario(&[NodeTemplate::new("node", "h100:4")], async |cluster| {
        cluster.create(PodManifest::new("first").gpus(1).build()).await;
        cluster.until_only_running(&["first"]).await;
        cluster.create(pod_group("gang", "default-queue", 4)).await;
        members(cluster, "gang", 4, 1).await;
        cluster.until_waiting("gang-0", "4").await;
        assert_eq!(cluster.running(), ["first"]);
        cluster.delete::<kai_api::Pod>("default", "first").await.unwrap();
        cluster
            .until_only_running(&["gang-0", "gang-1", "gang-2", "gang-3"])
            .await;
    });
}

#[test]
fn an_elastic_gang_takes_what_there_is_beyond_its_minimum() {
    scenario(&[NodeTemplate::new("node", "h100:3")], async |cluster| {
        cluster.create(pod_group("gang", "default-queue", 2)).await;
        members(cluster, "gang", 4, 1).await;
        cluster.until_running(3).await;
    });
}

#[test]
fn subgroups_have_minima_of_their_own() {
    scenario(&[NodeTemplate::new("node", "h100:4")], async |cluster| {
        let mut group = pod_group("gang", "default-queue", 1);
        group["spec"] = json!({ "queue": "default-queue", "subGroups": [
            { "name": "leaders", "minMember": 1 }, { "name": "workers", "minMember": 3 },
        ] });
        cluster.create(group).await;
        let pod = |name: &str, of: &str| PodManifest::new(name).member_of("gang").sub_group(of).gpus(1).build();
        for number in 0..3 {
            cluster.create(pod(&format!("worker-{number}"), "workers")).await;
        }
        cluster.settle().await;
        assert!(cluster.running().is_empty(), "{}", cluster.picture());
        cluster.create(pod("leader", "leaders")).await;
        cluster.until_running(4).await;
    });
}

#[test]
fn a_gang_stays_within_one_rack() {
    let rack = |name: &str, rack: &str| {
        let mut node = NodeTemplate::new(name, "h100:2");
        node.labels.insert("rack".to_owned(), rack.to_owned());
        node
    };
    let nodes = [rack("a1", "a"), rack("b1", "b"), rack("b2", "b")];
    scenario(&nodes, async |cluster| {
        cluster
            .create(json!({
                "apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology", "metadata": { "name": "racks" },
                "spec": { "levels": [{ "nodeLabel": "rack" }] },
            }))
            .await;
        let mut group = pod_group("gang", "default-queue", 4);
        group["spec"]["topologyConstraint"] = json!({ "topology": "racks", "requiredTopologyLevel": "rack" });
        cluster.create(group).await;
        members(cluster, "gang", 4, 1).await;
        cluster.until_running(4).await;
        for number in 0..4 {
            let node = cluster.node_of(&format!("gang-{number}")).unwrap();
            assert!(node.starts_with('b'), "{}", cluster.picture());
        }
    });
}
