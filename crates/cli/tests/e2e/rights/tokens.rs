//! The rights of a token that a kubelet mounted into a pod: the agent's token allows writes of its own node and the reservation pods there,
//! a reservation pod's token allows writes of that pod. Policies enforce this, because RBAC can't.

use std::collections::BTreeMap;
use std::sync::Arc;

use kai_api::keys;
use kai_cluster::{Condition, ConditionStatus, Error, PodMeta};
use kai_embedded::kubelet::NodeTemplate;
use serde_json::json;

use crate::harness::manifest::PodManifest;
use crate::harness::user::refused;
use crate::harness::{Cluster, User, scenario};

pub(super) const NODE_AGENT: &str = "system:serviceaccount:kai-scheduler:kai-node-agent";
pub(super) const RESERVATION_POD: &str = "system:serviceaccount:kai-resource-reservation:kai-resource-reservation";

/// The account of the agents with the token of an agent's pod on this node.
pub(super) async fn agent_of(cluster: &Cluster, node: &str) -> User {
    let name = format!("agent-{node}");
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "kai-scheduler" },
        "spec": {
            "nodeName": node, "serviceAccountName": "kai-node-agent", "tolerations": [{ "operator": "Exists" }],
            "containers": [{ "name": "agent", "image": "example" }],
        },
    });
    cluster.create(manifest).await;
    let pod: kai_api::Pod = cluster.client.get("kai-scheduler", &name).await.unwrap().unwrap();
    cluster.account_in_pod(NODE_AGENT, &pod).await
}

/// The reservation pod on a node, once it holds its GPU.
async fn reservation_on(cluster: &Cluster, node: &str) -> Arc<kai_api::Pod> {
    let find = |cluster: &Cluster| {
        let mut pods = cluster.informers().pods().all().into_iter();
        pods.find(|pod| pod.metadata.namespace() == keys::RESERVATION && pod.node_name() == Some(node))
    };
    let what = format!("a reservation on {node} has its GPU");
    cluster
        .until(&what, |cluster| {
            find(cluster).is_some_and(|pod| pod.metadata.annotations.get(keys::RESERVED_GPU).is_some())
        })
        .await;
    find(cluster).unwrap()
}

async fn say_gpu(user: &User, pod: &kai_api::Pod) -> Result<(), Error> {
    let gpu = pod.metadata.annotations.text(keys::RESERVED_GPU).unwrap_or_default();
    let meta = PodMeta {
        name: pod.metadata.plain_name().to_owned(),
        uid: pod.metadata.uid.as_deref().unwrap_or_default().to_owned(),
        annotations: BTreeMap::new(),
    };
    user.0
        .annotate_pod(keys::RESERVATION, &meta, keys::RESERVED_GPU, gpu)
        .await
}

async fn label(user: &User, node: &str) -> Result<(), Error> {
    let labels = BTreeMap::from([("example.com/of-the-agent".to_owned(), "yes".to_owned())]);
    user.0.apply_node_labels(node, "e2e", &labels).await.map(|_| ())
}

pub(super) async fn say_health(user: &User, node: &str) -> Result<(), Error> {
    let condition = Condition {
        kind: "GPUsHealthy".to_owned(),
        status: ConditionStatus::True,
        reason: "AllHealthy".to_owned(),
        message: "all are well".to_owned(),
        since: "2026-01-01T00:00:00Z".parse().unwrap(),
    };
    user.0.apply_node_conditions(node, "e2e", &[condition]).await
}

async fn two_nodes_with_a_half_each(cluster: &Cluster) {
    for node in ["a", "b"] {
        let half = PodManifest::new(&format!("half-{node}")).fraction("0.5").on_node(node);
        cluster.create(half.build()).await;
    }
    cluster.until_only_running(&["half-a", "half-b"]).await;
}

fn nodes() -> [NodeTemplate; 2] {
    ["a", "b"].map(|name| NodeTemplate::new(name, "h100:1"))
}

#[test]
fn an_agents_token_is_good_for_its_own_node_and_the_reservations_there() {
    scenario(&nodes(), async |cluster| {
        two_nodes_with_a_half_each(cluster).await;
        let (here, elsewhere) = (reservation_on(cluster, "a").await, reservation_on(cluster, "b").await);
        let agent = agent_of(cluster, "a").await;
        label(&agent, "a").await.unwrap();
        say_health(&agent, "a").await.unwrap();
        say_gpu(&agent, &here).await.unwrap();
        refused("label", label(&agent, "b").await, "kai-node-agent-nodes");
        refused("condition", say_health(&agent, "b").await, "kai-node-agent-nodes");
        refused("reservation", say_gpu(&agent, &elsewhere).await, "kai-node-agent-pods");

        // A token that is not bound to a pod names no node, and allows writes of none.
        let unbound = cluster.account_unbound(NODE_AGENT).await;
        refused("label", label(&unbound, "a").await, "kai-node-agent-nodes");
        refused("condition", say_health(&unbound, "a").await, "kai-node-agent-nodes");
        refused("reservation", say_gpu(&unbound, &here).await, "kai-node-agent-pods");
    });
}

#[test]
fn a_reservation_pods_token_is_good_for_that_pod() {
    scenario(&nodes(), async |cluster| {
        two_nodes_with_a_half_each(cluster).await;
        let (own, other) = (reservation_on(cluster, "a").await, reservation_on(cluster, "b").await);
        let process = cluster.account_in_pod(RESERVATION_POD, &own).await;
        say_gpu(&process, &own).await.unwrap();
        refused("another pod", say_gpu(&process, &other).await, "kai-reservation-pods");
        let unbound = cluster.account_unbound(RESERVATION_POD).await;
        refused("no pod", say_gpu(&unbound, &own).await, "kai-reservation-pods");
    });
}
