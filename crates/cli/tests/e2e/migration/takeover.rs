//! kai takes over a cluster that KAI-Scheduler ran: pods run on, GPU groups keep their reservation pods and GPUs, and binds in flight end
//! once.

use std::collections::{BTreeMap, BTreeSet};

use kai_api::{BindRequest, Object, Pod, PodGroup, Resource, Scope, keys};
use kai_cluster::{Selection, Target};
use kai_embedded::kubelet::NodeTemplate;
use serde_json::{Value, json};

use super::fixture::{Fixture, IN_FLIGHT, INSTALLATION, RUNNING};
use crate::harness::manifest::PodManifest;
use crate::harness::{Choice, Cluster};

/// The group without pods: its reservation pod goes.
const UNUSED_GROUP: &str = "a9d3e7b4-0c58-4d6f-9a2b-5e6f7a8b9c06";
/// Pods that run when KAI stops. The names of two more are chosen by their controllers.
const RAN: [&str; 5] = ["notebook-a", "notebook-b", "embedder", "pair", "slice"];
/// Pods that wait when KAI stops, and find a place.
const WAITED: [&str; 6] = ["next", "half-written", "unlucky", "again", "waiting", "late"];

fn nodes() -> Vec<NodeTemplate> {
    let mig = NodeTemplate {
        mig_strategy: Some("mixed".to_owned()),
        ..NodeTemplate::new("mig-a", "a100-40:1/1g.5gb*7")
    };
    vec![
        NodeTemplate::new("node-a", "h100:4"),
        NodeTemplate::new("node-b", "h100:4"),
        NodeTemplate::new("node-c", "h100:1"),
        mig,
    ]
}

/// What must not change while a pod runs: its uid, node and start, and the GPUs of its containers.
#[derive(Debug, PartialEq)]
struct RunningPod {
    uid: String,
    node: String,
    containers: Value,
    allocated: Vec<String>,
    shared: Vec<String>,
}

/// All running pods, reservation pods among them, by namespace and name.
async fn running_pods(cluster: &Cluster) -> BTreeMap<String, RunningPod> {
    let pods = cluster
        .client
        .list_values(&Pod::RESOURCE, &Selection::default())
        .await
        .unwrap();
    let running = pods.into_iter().filter(|pod| pod["status"]["phase"] == "Running");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    running
        .map(|pod| {
            let (namespace, name) = (text(&pod["metadata"]["namespace"]), text(&pod["metadata"]["name"]));
            let entry = RunningPod {
                uid: text(&pod["metadata"]["uid"]),
                node: text(&pod["spec"]["nodeName"]),
                containers: pod["status"]["containerStatuses"].clone(),
                allocated: cluster.kubelets.gpus_of(&namespace, &name),
                shared: cluster.kubelets.shared_gpus_of(&namespace, &name),
            };
            (format!("{namespace}/{name}"), entry)
        })
        .collect()
}

/// Reservation pods: uid and GPU by group.
async fn reservations(cluster: &Cluster) -> BTreeMap<String, (String, String)> {
    let selection = Selection {
        namespace: Some(keys::RESERVATION.to_owned()),
        ..Selection::default()
    };
    let pods = cluster.client.list_values(&Pod::RESOURCE, &selection).await.unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    pods.iter()
        .map(|pod| {
            let metadata = &pod["metadata"];
            let gpu = text(&metadata["annotations"][keys::RESERVED_GPU]);
            (
                text(&metadata["labels"][keys::GPU_GROUP]),
                (text(&metadata["uid"]), gpu),
            )
        })
        .collect()
}

/// Uid and phase of each bind request.
async fn bind_requests(cluster: &Cluster) -> BTreeMap<String, (String, String)> {
    let requests = cluster
        .client
        .list_values(&BindRequest::RESOURCE, &Selection::default())
        .await
        .unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    requests
        .iter()
        .map(|request| {
            let metadata = &request["metadata"];
            (
                text(&metadata["name"]),
                (text(&metadata["uid"]), text(&request["status"]["phase"])),
            )
        })
        .collect()
}

async fn pod_groups(cluster: &Cluster) -> BTreeSet<String> {
    let groups = cluster.client.list::<PodGroup>(&Selection::default()).await.unwrap();
    groups
        .iter()
        .map(|group| group.metadata.plain_name().to_owned())
        .collect()
}

async fn webhook_configuration(cluster: &Cluster, kind: &'static str, plural: &'static str, name: &str) -> Value {
    let resource = Resource::new("admissionregistration.k8s.io", "v1", kind, plural, Scope::Cluster);
    let target = Target {
        resource: &resource,
        namespace: "",
        name,
    };
    cluster.client.get_value(target).await.unwrap().unwrap()
}

/// No webhook of KAI's is left in the configurations: not its server, its CA, its owner.
async fn assert_webhooks_are_replaced(cluster: &Cluster, kais_config: &str) {
    const VALIDATING: (&str, &str) = ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations");
    const MUTATING: (&str, &str) = ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations");
    let names = [
        (MUTATING, "mutating-kai-admission"),
        (VALIDATING, "validating-kai-admission"),
        (VALIDATING, "kai-queue-validation-v2"),
        (VALIDATING, "kai-podgroup-validation-v2alpha2"),
    ];
    for ((kind, plural), name) in names {
        let configuration = webhook_configuration(cluster, kind, plural, name).await;
        let owners = configuration["metadata"]["ownerReferences"].to_string();
        assert!(!owners.contains(kais_config), "{name} goes with KAI's Config: {owners}");
        for webhook in configuration["webhooks"].as_array().unwrap() {
            assert_ne!(webhook["timeoutSeconds"], 10, "{name} is KAI's: {webhook}");
        }
    }
}

/// A cluster as KAI leaves it, without running programs.
async fn left_by_kai(cluster: &Cluster) -> Fixture {
    // NVIDIA's GPU operator creates it. On the real server the harness has done so.
    let runtime_class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": keys::RUNTIME_CLASS }, "handler": "nvidia",
    });
    let created = cluster.try_create(runtime_class).await;
    assert!(created.is_ok() || cluster.kube().is_some(), "{created:?}");
    let mut fixture = Fixture::default();
    fixture.create(cluster, RUNNING, |_| true).await;
    fixture.until_running(cluster).await;
    // The last document is a reservation pod, which gets its annotation a moment after its creation.
    let (in_flight, last) = IN_FLIGHT.rsplit_once("\n---\n").unwrap();
    fixture.create(cluster, in_flight, |_| true).await;
    // The webhooks refuse pods from now on: their server is gone.
    let without_programs = |kind: &str| !["Deployment", "ServiceAccount"].contains(&kind);
    fixture.create(cluster, INSTALLATION, without_programs).await;
    fixture.create(cluster, last, |_| true).await;
    fixture
}

#[test]
fn a_cluster_of_kai_is_taken_over() {
    let choice = Choice::of_environment();
    choice.runtime().block_on(async {
        let cluster = Cluster::without_roles(choice.start().await, &nodes()).await;
        let fixture = left_by_kai(&cluster).await;
        let ran = running_pods(&cluster).await;
        let reserved = reservations(&cluster).await;
        let requested = bind_requests(&cluster).await;
        let grouped = pod_groups(&cluster).await;
        let by_controllers = [fixture.of("train-8xk2p"), fixture.of("llm-6d5f9c7b8d-q4w7z")];
        let names: BTreeSet<&str> = RAN
            .into_iter()
            .chain(by_controllers.iter().map(String::as_str))
            .collect();
        let running: BTreeSet<String> = cluster.running().into_iter().collect();
        assert_eq!(running, names.iter().map(|name| (*name).to_owned()).collect());
        let refused = cluster.try_create(PodManifest::new("refused").build()).await;
        if cluster.kube().is_some() {
            assert!(refused.unwrap_err().to_string().contains("failed calling webhook"));
        } else {
            // The embedded server calls the webhooks of its own process only.
            cluster.delete::<Pod>("default", "refused").await.unwrap();
        }

        cluster.start_roles();
        cluster.until_guarded().await;
        let all: Vec<&str> = names.iter().copied().chain(WAITED).collect();
        cluster.until_only_running(&all).await;
        cluster.until_waiting("too-big", "GPU").await;
        cluster.settle().await;

        // Pods that ran have not noticed it.
        let run_now = running_pods(&cluster).await;
        for (name, before) in &ran {
            let of_unused = reserved[UNUSED_GROUP].0 == before.uid;
            assert!(
                of_unused || run_now.get(name) == Some(before),
                "{name}: {before:?}, now {:?}",
                run_now.get(name)
            );
        }
        // GPU groups keep their reservation pods; the group without pods has lost its own.
        let reserved_now = reservations(&cluster).await;
        for (group, (uid, gpu)) in &reserved {
            match reserved_now.get(group) {
                None => assert_eq!(group, UNUSED_GROUP),
                Some((uid_now, gpu_now)) => {
                    assert_eq!(uid, uid_now, "the reservation pod of {group} was replaced");
                    assert!(gpu.is_empty() || gpu == gpu_now, "{group}: {gpu}, now {gpu_now}");
                }
            }
        }
        assert_eq!(reserved_now.len(), reserved.len() - 1, "{reserved_now:?}");
        // Binds in flight are completed by their requests. A request that has failed for good is replaced.
        let requested_now = bind_requests(&cluster).await;
        for (pod, (uid, _)) in &requested {
            let (uid_now, phase) = &requested_now[pod];
            assert_eq!(phase, "Succeeded", "bind request of {pod}");
            assert_eq!(uid != uid_now, pod == "unlucky", "bind request of {pod}");
        }
        assert_eq!(pod_groups(&cluster).await, grouped, "pod groups keep KAI's names");
        assert_webhooks_are_replaced(&cluster, &fixture.of("c0ffee00-9001-4000-8000-5ca1ab1e9001")).await;

        // The GPU of the unused group is free, and users can create pods.
        cluster
            .create_soon(PodManifest::new("after").queue("research").gpus(1).build())
            .await;
        cluster.until("the new pod runs", |cluster| cluster.runs("after")).await;
        assert_eq!(cluster.node_of("after").as_deref(), Some("node-c"));
        cluster.settle().await;
        let found = cluster.found_when_settled();
        assert!(found.is_empty(), "{found:?}\n{}", cluster.picture());
    });
}
