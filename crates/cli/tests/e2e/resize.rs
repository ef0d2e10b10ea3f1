//! Pods that are resized while they run. The simulated kubelets don't act on resizes: the tests play the kubelet's part.

use kai_api::{Object, Pod};
use kai_cluster::{Part, Patch, Target};
use kai_embedded::kubelet::NodeTemplate;
use serde_json::{Value, json};

use crate::harness::manifest::{PodManifest, queue};
use crate::harness::user::refused;
use crate::harness::{Cluster, scenario};

fn with_requests(pod: PodManifest, cpu: &str, memory: &str) -> Value {
    let mut pod = pod.build();
    pod["spec"]["containers"][0]["resources"]["requests"] = json!({ "cpu": cpu, "memory": memory });
    pod
}

fn pod(name: &str, cpu: &str) -> Value {
    with_requests(PodManifest::new(name), cpu, "1Gi")
}

/// A user resizes the pod.
async fn resize(cluster: &Cluster, name: &str, cpu: &str) -> Result<Value, kai_cluster::Error> {
    let container = json!({ "name": "main", "resources": { "requests": { "cpu": cpu } } });
    let change = json!({ "spec": { "containers": [container] } });
    let target = Target::of::<Pod>("default", name);
    cluster
        .client
        .patch(target, Part::Subresource("resize"), Patch::Strategic(change))
        .await
}

/// The kubelet reports the requests that it has allocated, and why a resize is pending.
async fn report(cluster: &Cluster, name: &str, cpu: &str, pending: Option<&str>) {
    let target = || Target::of::<Pod>("default", name);
    let mut pod = cluster.client.get_value(target()).await.unwrap().unwrap();
    let requests = json!({ "cpu": cpu, "memory": "1Gi" });
    let status = &mut pod["status"];
    status["containerStatuses"][0]["allocatedResources"] = requests.clone();
    status["containerStatuses"][0]["resources"] = json!({ "requests": requests });
    let conditions = status["conditions"].as_array_mut().unwrap();
    conditions.retain(|condition| condition["type"] != "PodResizePending");
    conditions.extend(pending.map(|reason| json!({ "type": "PodResizePending", "status": "True", "reason": reason })));
    let status =
        json!({ "status": { "containerStatuses": status["containerStatuses"], "conditions": status["conditions"] } });
    cluster
        .client
        .patch(target(), Part::Status, Patch::Merge(status))
        .await
        .unwrap();
}

/// The CPUs that are allocated to a queue, by its status.
async fn until_allocated(cluster: &Cluster, queue: &str, cpu: &str) {
    cluster
        .until_async(&format!("{cpu} CPUs are allocated to queue {queue}"), async || {
            let queue = cluster.client.get::<kai_api::Queue>("", queue).await.unwrap().unwrap();
            queue
                .status()
                .allocated
                .get("cpu")
                .is_some_and(|amount| amount.as_str() == cpu)
        })
        .await;
}

fn node() -> NodeTemplate {
    NodeTemplate {
        cpu: "4".to_owned(),
        ..NodeTemplate::new("node", "")
    }
}

#[test]
fn a_pod_counts_with_the_largest_of_what_it_asks_and_what_it_has() {
    scenario(&[node()], async |cluster| {
        cluster.create(pod("grows", "1")).await;
        cluster.until_only_running(&["grows"]).await;
        report(cluster, "grows", "1", None).await;
        until_allocated(cluster, "default-queue", "1").await;

        // The kubelet has not admitted the resize yet, but will as soon as it can: nobody else may take the room.
        resize(cluster, "grows", "3").await.unwrap();
        report(cluster, "grows", "1", Some("Deferred")).await;
        until_allocated(cluster, "default-queue", "3").await;
        cluster.create(pod("other", "2")).await;
        cluster.until_waiting("other", "CPU").await;

        // A resize that never happens takes no room.
        report(cluster, "grows", "1", Some("Infeasible")).await;
        cluster.until_only_running(&["grows", "other"]).await;
        until_allocated(cluster, "default-queue", "3").await;
    });
}

#[test]
fn a_pod_that_shrinks_gives_its_room_away_once_it_has_shrunk() {
    scenario(&[node()], async |cluster| {
        cluster.create(pod("shrinks", "3")).await;
        cluster.until_only_running(&["shrinks"]).await;
        report(cluster, "shrinks", "3", None).await;
        resize(cluster, "shrinks", "1").await.unwrap();
        cluster.create(pod("other", "2")).await;
        cluster.until_waiting("other", "CPU").await;
        report(cluster, "shrinks", "1", None).await;
        cluster.until_only_running(&["shrinks", "other"]).await;
        until_allocated(cluster, "default-queue", "3").await;
    });
}

#[test]
fn a_resize_beyond_the_limit_of_the_queue_is_refused() {
    scenario(&[node()], async |cluster| {
        cluster.create(queue("company", None, -1.0, -1.0)).await;
        let mut small = queue("small", Some("company"), 0.0, -1.0);
        small["spec"]["resources"]["cpu"]["limit"] = 2000.into();
        cluster.create(small).await;
        cluster
            .create(with_requests(PodManifest::new("p").queue("small"), "1", "1Gi"))
            .await;
        cluster.until_only_running(&["p"]).await;
        report(cluster, "p", "1", None).await;
        until_allocated(cluster, "small", "1").await;
        let words = "the resize adds 2, but all pods of the queue have 1 of the limit of 2 of queue small";
        refused("3 CPUs", resize(cluster, "p", "3").await, words);
        resize(cluster, "p", "2").await.unwrap();
        until_allocated(cluster, "small", "2").await;
        refused("more", resize(cluster, "p", "2001m").await, "add at most 0");

        let more = json!({ "spec": { "resources": { "cpu": { "limit": 3000 } } } });
        cluster
            .patch(&kai_api::Queue::RESOURCE, "", "small", more)
            .await
            .unwrap();
        cluster
            .until_async("the higher limit counts", async || {
                resize(cluster, "p", "3").await.is_ok()
            })
            .await;
    });
}
