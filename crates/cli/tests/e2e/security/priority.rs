//! Priorities that a tenant may not use.

use kai_api::{Object, keys};
use kai_cli::roles::RoleSettings;
use kai_cluster::Target;
use serde_json::{Value, json};

use super::{node, tenant};
use crate::harness::manifest::{PodManifest, pod_group, queue};
use crate::harness::user::refused;
use crate::harness::{Cluster, scenario, scenario_with};

const SYSTEM_CLASS: &str = "system-node-critical";
const IS_FOR_THE_SYSTEM: &str = "priority class system-node-critical is for the system's own namespaces";

/// A real API server has this class and does not let users create it.
async fn system_class(cluster: &Cluster) {
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": SYSTEM_CLASS },
        "value": 2_000_001_000,
    });
    let _ = cluster.try_create(class).await;
    cluster
        .until_async("the class is there", async || {
            let target = Target::of::<kai_api::PriorityClass>("", SYSTEM_CLASS);
            cluster.client.get_value(target).await.unwrap().is_some()
        })
        .await;
}

fn group(name: &str, queue: &str, class: &str) -> Value {
    let mut group = pod_group(name, queue, 1);
    group["spec"]["priorityClassName"] = class.into();
    group
}

fn member(name: &str, group: &str) -> Value {
    PodManifest::new(name).member_of(group).gpus(1).build()
}

/// A queue with a maximum priority.
fn bounded(name: &str, parent: Option<&str>, max: &str) -> Value {
    let mut queue = queue(name, parent, -1.0, -1.0);
    queue["metadata"]["annotations"] = json!({ keys::QUEUE_MAX_PRIORITY: max });
    queue
}

#[test]
fn a_system_priority_class_is_refused_in_a_tenants_namespace() {
    scenario(&[node("h100:1")], async |cluster| {
        let tenant = tenant(cluster).await;
        system_class(cluster).await;
        cluster.create(PodManifest::new("neighbour").gpus(1).build()).await;
        cluster.until_only_running(&["neighbour"]).await;

        let attempt = tenant.create(group("attack", keys::DEFAULT_QUEUE, SYSTEM_CLASS)).await;
        refused("a pod group", attempt, IS_FOR_THE_SYSTEM);
        tenant.create(pod_group("later", keys::DEFAULT_QUEUE, 1)).await.unwrap();
        let target = Target::of::<kai_api::PodGroup>("default", "later");
        let change = json!({ "spec": { "priorityClassName": SYSTEM_CLASS } });
        refused(
            "a pod group's class",
            tenant.patch(target, change).await,
            IS_FOR_THE_SYSTEM,
        );
        let labelled = PodManifest::new("labelled").gpus(1).priority(SYSTEM_CLASS).build();
        refused("a pod's label", tenant.create(labelled).await, IS_FOR_THE_SYSTEM);
        assert_eq!(cluster.running(), ["neighbour"], "{}", cluster.picture());
    });
}

/// The pod group is older than the webhook.
#[test]
fn a_system_priority_class_evicts_nobody_where_no_webhook_refuses_it() {
    let mut settings = RoleSettings::every_role().unwrap();
    settings.admission = None;
    scenario_with(settings, &[node("h100:1")], async |cluster| {
        let tenant = tenant(cluster).await;
        system_class(cluster).await;
        cluster.create(PodManifest::new("neighbour").gpus(1).build()).await;
        cluster.until_only_running(&["neighbour"]).await;
        tenant
            .create(group("attack", keys::DEFAULT_QUEUE, SYSTEM_CLASS))
            .await
            .unwrap();
        tenant.create(member("attacker", "attack")).await.unwrap();
        cluster.until_waiting("attacker", IS_FOR_THE_SYSTEM).await;
        cluster.settle().await;
        assert_eq!(cluster.running(), ["neighbour"], "{}", cluster.picture());
        tenant.delete::<kai_api::Pod>("default", "attacker").await.unwrap();
    });
}

#[test]
fn a_queue_bounds_the_priority_of_pod_groups_below_it() {
    scenario(&[node("h100:1")], async |cluster| {
        let tenant = tenant(cluster).await;
        // A pod group that is older than the queue.
        tenant.create(group("early", "team", "build")).await.unwrap();
        tenant.create(member("early", "early")).await.unwrap();
        cluster.create(bounded("company", None, "75")).await;
        cluster.create(bounded("team", Some("company"), "500")).await;
        let by = "queue company allows 75 at most";
        cluster.until_waiting("early", by).await;

        // Webhooks see a queue a moment after its creation.
        cluster
            .until_async("the queue is known", async || {
                tenant.create(group("probe", "team", "build")).await.is_err() || {
                    tenant.delete::<kai_api::PodGroup>("default", "probe").await.unwrap();
                    false
                }
            })
            .await;
        refused("a pod group", tenant.create(group("high", "team", "build")).await, by);
        tenant.create(group("low", "team", "build-preemptible")).await.unwrap();
        tenant.create(member("low", "low")).await.unwrap();
        cluster.until_only_running(&["low"]).await;
        tenant.delete::<kai_api::Pod>("default", "low").await.unwrap();

        let raised = json!({ "metadata": { "annotations": { keys::QUEUE_MAX_PRIORITY: "100" } } });
        cluster
            .patch(&kai_api::Queue::RESOURCE, "", "company", raised)
            .await
            .unwrap();
        cluster.until_only_running(&["early"]).await;
    });
}
