//! Nodes without kai's node agent: NVIDIA's device plugin with labels that an administrator sets, and fake-gpu-operator. The tests play
//! the software that annotates reservation pods there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kai_api::keys;
use kai_cluster::{PodMeta, Target};
use kai_embedded::kubelet::NodeTemplate;
use serde_json::{Value, json};

use crate::harness::manifest::PodManifest;
use crate::harness::{Cluster, User, scenario};

const RESERVATION_ACCOUNT: &str = "system:serviceaccount:kai-resource-reservation:kai-resource-reservation";
const STATUS_UPDATER: &str = "system:serviceaccount:gpu-operator:status-updater";

/// A node whose GPUs another device plugin offers. It has no labels about GPUs.
fn node(gpus: &str) -> NodeTemplate {
    let mut node = NodeTemplate::new("node", gpus);
    node.agent = false;
    node
}

/// `kubectl label node`.
async fn label_node(cluster: &Cluster, labels: &[(&str, &str)]) {
    let labels: Value = labels.iter().copied().collect();
    let target = Target::of::<kai_api::Node>("", "node");
    let change = json!({ "metadata": { "labels": labels } });
    cluster.admin().patch(target, change).await.unwrap();
}

/// Who annotates reservation pods.
#[derive(Clone, Copy, PartialEq)]
enum Annotator {
    /// The process in the pod, with the pod's token.
    Pod,
    /// The status-updater of fake-gpu-operator, which has rights on all pods.
    StatusUpdater,
}

impl Annotator {
    /// The arguments of the reservation pods' container.
    fn arguments(self) -> Value {
        match self {
            Annotator::Pod => json!(["resource-reservation"]),
            Annotator::StatusUpdater => json!(["resource-reservation", "--sleep"]),
        }
    }

    async fn account(self, cluster: &Cluster, pod: &kai_api::Pod) -> User {
        match self {
            Annotator::Pod => cluster.account_in_pod(RESERVATION_ACCOUNT, pod).await,
            Annotator::StatusUpdater => cluster.account_beyond_rbac(STATUS_UPDATER).await,
        }
    }

    /// Annotates each reservation pod that runs with its GPU, for ever.
    async fn run(self, cluster: &Cluster) {
        let mut done = BTreeSet::new();
        loop {
            for pod in reservations(cluster) {
                let uid = pod.metadata.uid.as_deref().unwrap_or_default().to_owned();
                let gpus = cluster.kubelets.gpus_of(keys::RESERVATION, pod.metadata.plain_name());
                let runs = pod.phase() == kai_engine::model::PodPhase::Running;
                let ([gpu], true, false) = (&gpus[..], runs, done.contains(&uid)) else {
                    continue;
                };
                self.check(cluster, &pod).await;
                let meta = PodMeta {
                    name: pod.metadata.plain_name().to_owned(),
                    uid: uid.clone(),
                    annotations: BTreeMap::new(),
                };
                let User(client) = self.account(cluster, &pod).await;
                let said = client.annotate_pod(keys::RESERVATION, &meta, keys::RESERVED_GPU, gpu);
                match said.await {
                    Ok(()) => drop(done.insert(uid)),
                    Err(error) => assert!(error.is_not_found() || error.is_conflict(), "{error}"),
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// The pod must run the process that this annotator needs.
    async fn check(self, cluster: &Cluster, pod: &kai_api::Pod) {
        let target = Target::of::<kai_api::Pod>(keys::RESERVATION, pod.metadata.plain_name());
        let Some(object) = cluster.client.get_value(target).await.unwrap() else {
            return;
        };
        let spec = &object["spec"];
        assert_eq!(spec["containers"][0]["args"], self.arguments());
        let has_token = spec["automountServiceAccountToken"] != false;
        assert_eq!(has_token, self == Annotator::Pod, "a token only where it is needed");
    }
}

fn reservations(cluster: &Cluster) -> Vec<Arc<kai_api::Pod>> {
    let pods = cluster.informers().pods().all().into_iter();
    pods.filter(|pod| pod.metadata.namespace() == keys::RESERVATION)
        .collect()
}

/// Runs a scenario on a node without the agent.
fn scenario_without_agent(node: NodeTemplate, annotator: Annotator, story: impl AsyncFnOnce(&Cluster)) {
    scenario(&[node], async |cluster| {
        tokio::select! {
            () = annotator.run(cluster) => {}
            () = story(cluster) => {}
        }
    });
}

async fn create(cluster: &Cluster, pods: &[PodManifest]) {
    for pod in pods {
        cluster.create(pod.clone().build()).await;
    }
}

/// Whole GPUs, fractions and GPU memory on two L40S.
async fn share_two_gpus(cluster: &Cluster) {
    create(
        cluster,
        &[
            PodManifest::new("whole").gpus(1),
            PodManifest::new("half").fraction("0.5"),
            PodManifest::new("part").gpu_memory_mib("20000"),
        ],
    )
    .await;
    cluster.until_only_running(&["half", "part", "whole"]).await;
    let shared = |name: &str| cluster.kubelets.shared_gpus_of("default", name);
    assert_eq!(shared("half"), shared("part"), "both share one GPU");
    let whole = cluster.kubelets.gpus_of("default", "whole");
    assert!(whole.len() == 1 && whole != shared("half"), "{whole:?}");
    create(cluster, &[PodManifest::new("late").gpu_memory_mib("20000")]).await;
    cluster.until_waiting("late", "GPU memory").await;
    cluster.delete::<kai_api::Pod>("default", "whole").await.unwrap();
    cluster.until_only_running(&["half", "late", "part"]).await;
    for name in ["half", "late", "part"] {
        cluster.delete::<kai_api::Pod>("default", name).await.unwrap();
    }
    cluster
        .until("no reservation is left", |cluster| reservations(cluster).is_empty())
        .await;
    create(cluster, &[PodManifest::new("both").gpus(2)]).await;
    cluster.until_only_running(&["both"]).await;
}

#[test]
fn nvidias_device_plugin_and_labels_set_by_hand() {
    scenario_without_agent(node("l40s:2"), Annotator::Pod, async |cluster| {
        // Whole GPUs need no label.
        create(cluster, &[PodManifest::new("first").gpus(1)]).await;
        cluster.until_only_running(&["first"]).await;
        // The memory of a GPU is known by the label only.
        create(cluster, &[PodManifest::new("memory").gpu_memory_mib("20000")]).await;
        cluster.until_waiting("memory", "GPU memory").await;
        label_node(
            cluster,
            &[(keys::NODE_GPU_COUNT, "2"), (keys::NODE_GPU_MEMORY, "46068")],
        )
        .await;
        cluster.until_only_running(&["first", "memory"]).await;
        for name in ["first", "memory"] {
            cluster.delete::<kai_api::Pod>("default", name).await.unwrap();
        }
        share_two_gpus(cluster).await;
    });
}

#[test]
fn time_slicing_by_nvidias_device_plugin_and_labels_set_by_hand() {
    let mut sliced = node("l40s:1");
    sliced.replicas = Some(10);
    sliced.labels = BTreeMap::from(
        [(keys::NODE_GPU_COUNT, "1"), (keys::NODE_GPU_MEMORY, "46068")]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    scenario_without_agent(sliced, Annotator::Pod, async |cluster| {
        let allocatable = cluster.informers().nodes().all()[0].read().unwrap().value.gpus;
        assert_eq!(allocatable, 10);
        create(
            cluster,
            &[
                PodManifest::new("a").gpu_memory_mib("20000"),
                PodManifest::new("b").fraction("0.5"),
            ],
        )
        .await;
        cluster.until_only_running(&["a", "b"]).await;
        assert_eq!(reservations(cluster).len(), 1, "ten devices are one GPU");
        create(
            cluster,
            &[
                PodManifest::new("memory").gpu_memory_mib("20000"),
                PodManifest::new("whole").gpus(1),
            ],
        )
        .await;
        cluster.until_waiting("memory", "GPU memory").await;
        cluster.until_waiting("whole", "GPU").await;
        cluster.delete::<kai_api::Pod>("default", "a").await.unwrap();
        cluster.until_only_running(&["b", "memory"]).await;
        for name in ["b", "memory"] {
            cluster.delete::<kai_api::Pod>("default", name).await.unwrap();
        }
        cluster.until_only_running(&["whole"]).await;
    });
}

#[test]
fn fake_gpu_operator_labels_the_node_and_annotates_the_reservations() {
    let mut faked = node("l40s:2");
    let labels = [
        ("nvidia.com/gpu.count", "2"),
        ("nvidia.com/gpu.memory", "46068"),
        ("nvidia.com/gpu.present", "true"),
        ("nvidia.com/gpu.product", "NVIDIA-L40S"),
        ("nvidia.com/mig.strategy", "mixed"),
        ("run.ai/fake.gpu", "true"),
        ("run.ai/simulated-gpu-node-pool", "default"),
    ];
    faked.labels = BTreeMap::from(labels.map(|(key, value)| (key.to_owned(), value.to_owned())));
    scenario_without_agent(faked, Annotator::StatusUpdater, share_two_gpus);
}
