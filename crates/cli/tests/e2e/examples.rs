//! Every file in examples/ on a cluster with the playground's nodes: the result is as the comment at the top of the file states.

use std::sync::Arc;

use kai_api::{Object as _, Pod, keys};
use kai_embedded::kubelet::{NodeTemplate, NodesFile};
use serde_json::Value;

use crate::harness::{Cluster, scenario};

macro_rules! example {
    ($name:literal) => {
        include_str!(concat!("../../../../examples/", $name))
    };
}

fn playground() -> Vec<NodeTemplate> {
    let file = NodesFile::parse(include_str!("../../src/playground/nodes.yaml")).unwrap();
    file.nodes
}

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

async fn apply(cluster: &Cluster, text: &str) {
    for object in documents(text) {
        cluster.create(object).await;
    }
}

/// Pods with this label `app`.
fn pods_of(cluster: &Cluster, app: &str) -> Vec<Arc<Pod>> {
    let mut pods = cluster.pods();
    pods.retain(|pod| pod.metadata.labels.text("app") == Some(app));
    pods
}

fn name(pod: &Pod) -> &str {
    pod.metadata.plain_name()
}

fn running(cluster: &Cluster, app: &str) -> usize {
    let pods = pods_of(cluster, app);
    pods.iter().filter(|pod| cluster.runs(name(pod))).count()
}

/// Waits until the workload has this many pending pods whose reason contains the text.
async fn until_waiting(cluster: &Cluster, app: &str, count: usize, words: &str) {
    let waits = |cluster: &Cluster| {
        let reasons = pods_of(cluster, app)
            .into_iter()
            .filter_map(|pod| cluster.reason(name(&pod)));
        reasons.filter(|reason| reason.contains(words)).count() == count
    };
    cluster
        .until(&format!("{count} pods of {app} wait: {words}"), waits)
        .await;
}

/// The distinct nodes of the pods.
fn nodes_of(pods: &[Arc<Pod>]) -> Vec<&str> {
    let mut nodes: Vec<&str> = pods.iter().filter_map(|pod| pod.node_name()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// The distinct GPU groups of the pods.
fn gpu_groups_of(pods: &[Arc<Pod>]) -> Vec<&str> {
    let mut groups: Vec<&str> = pods
        .iter()
        .filter_map(|pod| pod.metadata.labels.text(keys::GPU_GROUP))
        .collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

#[test]
fn example_gang() {
    scenario(&playground(), async |cluster| {
        apply(cluster, example!("gang.yaml")).await;
        cluster
            .until("the gang runs", |cluster| running(cluster, "train") == 4)
            .await;
        until_waiting(cluster, "too-large", 3, "").await;
        assert_eq!(running(cluster, "too-large"), 0);
    });
}

#[test]
fn example_volumes() {
    scenario(&playground(), async |cluster| {
        apply(cluster, example!("volumes.yaml")).await;
        cluster
            .until("the gang runs", |cluster| running(cluster, "train") == 2)
            .await;
        assert_eq!(nodes_of(&pods_of(cluster, "train")).len(), 2);
        let words = "node(s) didn't find available persistent volumes to bind";
        until_waiting(cluster, "without-disk", 1, words).await;
    });
}

#[test]
fn example_topology() {
    scenario(&playground(), async |cluster| {
        apply(cluster, example!("topology.yaml")).await;
        cluster
            .until("the gang runs", |cluster| running(cluster, "near") == 4)
            .await;
        assert_eq!(nodes_of(&pods_of(cluster, "near")).len(), 1);
        until_waiting(cluster, "nearer-than-possible", 5, "").await;
        assert_eq!(running(cluster, "nearer-than-possible"), 0);
    });
}

#[test]
fn example_mig() {
    scenario(&playground(), async |cluster| {
        apply(cluster, example!("mig.yaml")).await;
        cluster.until_only_running(&["one-slice", "three-slices"]).await;
        assert_eq!(nodes_of(&cluster.pods()), ["a100-mig"]);
    });
}

#[test]
fn example_time_slicing() {
    scenario(&playground(), async |cluster| {
        apply(cluster, example!("time-slicing.yaml")).await;
        cluster
            .until("all run", |cluster| running(cluster, "slices") == 4)
            .await;
        assert_eq!(nodes_of(&pods_of(cluster, "slices")), ["l40s-shared"]);
    });
}

#[test]
fn example_inference() {
    scenario(&playground(), async |cluster| {
        apply(cluster, example!("inference.yaml")).await;
        cluster.until("all run", |cluster| running(cluster, "model") == 4).await;
        assert_eq!(gpu_groups_of(&pods_of(cluster, "model")).len(), 1);
    });
}

#[test]
fn example_preemption() {
    scenario(&playground(), async |cluster| {
        let objects = documents(example!("preemption.yaml"));
        let (urgent, before) = objects.split_last().unwrap();
        for object in before {
            cluster.create(object.clone()).await;
        }
        cluster
            .until("the job runs", |cluster| running(cluster, "batch") == 2)
            .await;
        cluster.create(urgent.clone()).await;
        let preempted = |cluster: &Cluster| cluster.runs("urgent") && running(cluster, "batch") == 1;
        cluster.until("one pod gave way", preempted).await;
        until_waiting(cluster, "batch", 1, "queue").await;
    });
}

#[test]
fn example_jetson() {
    scenario(&playground(), async |cluster| {
        apply(cluster, example!("jetson.yaml")).await;
        cluster.until("four run", |cluster| running(cluster, "llm") == 4).await;
        until_waiting(cluster, "llm", 1, "GPU memory").await;
        let pods = pods_of(cluster, "llm");
        assert_eq!(nodes_of(&pods), ["thor"]);
        assert_eq!(gpu_groups_of(&pods).len(), 1);
    });
}

/// The test workload of docs/jetson.md, on a Jetson with the memory that Linux has of 128 GB.
#[test]
fn example_multiubuntu() {
    let mut thor = NodeTemplate::new("thor", "thor:1");
    thor.memory = "125647Mi".to_owned();
    scenario(&[thor], async |cluster| {
        apply(cluster, include_str!("../../../../multiubuntu.yaml")).await;
        let app = "ubuntu-test";
        cluster.until("four run", |cluster| running(cluster, app) == 4).await;
        until_waiting(cluster, app, 1, "didn't have enough resources: GPU memory").await;
        assert_eq!(gpu_groups_of(&pods_of(cluster, app)).len(), 1);
    });
}

#[test]
fn example_half_a_gpu() {
    scenario(&playground(), async |cluster| {
        apply(cluster, example!("half-a-gpu.yaml")).await;
        cluster.until_only_running(&["half-a", "half-b"]).await;
        assert_eq!(gpu_groups_of(&cluster.pods()).len(), 1);
    });
}

#[test]
fn example_gpu_limits() {
    const MIB: u64 = 1 << 20;
    scenario(&playground(), async |cluster| {
        apply(cluster, example!("gpu-limits.yaml")).await;
        let both_run = |cluster: &Cluster| cluster.runs("notebook") && cluster.runs("serving");
        cluster.until("both run", both_run).await;
        cluster.until_waiting("elsewhere", "don't limit GPU memory").await;
        assert!(!cluster.runs("elsewhere"));
        let mut pods = cluster.pods();
        pods.retain(|pod| name(pod) != "elsewhere");
        assert_eq!(gpu_groups_of(&pods).len(), 1);
        let limit = |pod: &str| {
            let containers = cluster.kubelets.gpu_facts().containers;
            let found = containers
                .into_iter()
                .find(|container| *container.pod.name == *pod)
                .unwrap();
            found.limits[0].1.unwrap() / MIB
        };
        assert_eq!(limit("notebook"), 40 * 1024);
        assert_eq!(limit("serving"), 81_559 / 2);
    });
}

/// The cluster of the examples under `kai simulate` has the nodes of the playground.
#[test]
fn example_cluster_has_the_nodes_of_the_playground() {
    scenario(&playground(), async |cluster| {
        let listed = cluster
            .client
            .list_values(&kai_api::Node::RESOURCE, &kai_cluster::Selection::default())
            .await;
        let present = listed.unwrap();
        let written = documents(example!("cluster.yaml"));
        assert_eq!(written.len(), present.len());
        for node in written {
            let is_it = |other: &&Value| other["metadata"]["name"] == node["metadata"]["name"];
            let other = present.iter().find(is_it).unwrap();
            for (label, value) in node["metadata"]["labels"].as_object().unwrap() {
                assert_eq!(
                    &other["metadata"]["labels"][label], value,
                    "{label} of {}",
                    node["metadata"]["name"]
                );
            }
            for (resource, amount) in node["status"]["allocatable"].as_object().unwrap() {
                let there = &other["status"]["allocatable"][resource];
                assert_eq!(there, amount, "{resource} of {}", node["metadata"]["name"]);
            }
        }
    });
}
