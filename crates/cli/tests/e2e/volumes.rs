//! Claims that wait for their first consumer: their volume comes with the pod's node.
//!
//! On the real API server the controllers of Kubernetes bind the volumes. The provisioner is that of the embedded cluster, or
//! [`provision`], which follows the protocol of external provisioners.

use std::time::Duration;

use kai_api::{Object, PersistentVolume, PersistentVolumeClaim, StorageClass};
use kai_cluster::{Client, Part, Patch, Selection, Target};
use kai_embedded::kubelet::NodeTemplate;
use kai_embedded::workloads::VOLUME_PROVISIONER;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::manifest::{PodManifest, pod_group, queue};
use crate::harness::{Cluster, scenario};

const BY_HAND: &str = "kubernetes.io/no-provisioner";

fn nodes() -> [NodeTemplate; 2] {
    ["a", "b"].map(|name| NodeTemplate::new(name, "h100:1"))
}

fn class(provisioner: &str, parameters: Value) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "late" },
        "provisioner": provisioner, "parameters": parameters, "volumeBindingMode": "WaitForFirstConsumer",
    })
}

fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "namespace": "default" },
        "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "late", "resources": { "requests": { "storage": "1Gi" } } },
    })
}

/// A disk of the node.
fn disk(name: &str, node: &str) -> Value {
    let term = json!({ "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] }] });
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "10Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "late",
            "persistentVolumeReclaimPolicy": "Retain", "local": { "path": "/disks/1" },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [term] } },
        },
    })
}

/// A pod with a GPU and these claims.
fn user(name: &str, claims: &[&str]) -> PodManifest {
    let volumes = claims
        .iter()
        .map(|claim| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } }));
    PodManifest::new(name).gpus(1).volumes(volumes.collect())
}

async fn volume_of(cluster: &Cluster, claim: &str) -> Option<String> {
    let claim: Option<PersistentVolumeClaim> = cluster.client.get("default", claim).await.unwrap();
    claim.and_then(|claim| claim.volume_name().filter(|_| claim.is_bound()).map(str::to_owned))
}

async fn selected_node(cluster: &Cluster, claim: &str) -> Option<String> {
    let target = Target::of::<PersistentVolumeClaim>("default", claim);
    let metadata = cluster.client.get_metadata(target).await.unwrap();
    let annotations = metadata.map(|metadata| metadata.annotations);
    annotations.and_then(|all| all.text("volume.kubernetes.io/selected-node").map(str::to_owned))
}

/// Runs the provisioner where the cluster has none, until the result is dropped.
fn provisioner(cluster: &Cluster) -> JoinSet<()> {
    let mut running = JoinSet::new();
    if cluster.server().is_none() {
        let client = cluster.client.clone();
        running.spawn(async move {
            loop {
                for claim in client
                    .list_values(&PersistentVolumeClaim::RESOURCE, &Selection::default())
                    .await
                    .unwrap()
                {
                    provision(&client, &claim).await;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
    }
    running
}

/// Makes the volume of a claim that the controller of volumes has passed on, or refuses its node. The class's parameters are those of the
/// simulated provisioner.
async fn provision(client: &Client, claim: &Value) {
    let annotations = &claim["metadata"]["annotations"];
    let node = annotations["volume.kubernetes.io/selected-node"].as_str();
    let is_ours = annotations["volume.kubernetes.io/storage-provisioner"] == VOLUME_PROVISIONER;
    let Some(node) = node.filter(|_| is_ours && claim["spec"]["volumeName"].is_null()) else {
        return;
    };
    let text = |field: &str| claim["metadata"][field].as_str().unwrap_or_default();
    let class = claim["spec"]["storageClassName"].as_str().unwrap_or_default();
    let class = client
        .get_value(Target::of::<StorageClass>("", class))
        .await
        .unwrap()
        .unwrap_or_default();
    let parameters = &class["parameters"];
    if parameters["neverAnswers"] == "true" {
        return;
    }
    if parameters["fullNodes"] == node {
        let refuse = json!({ "metadata": {
            "resourceVersion": claim["metadata"]["resourceVersion"],
            "annotations": { "volume.kubernetes.io/selected-node": null },
        } });
        let target = Target::of::<PersistentVolumeClaim>(text("namespace"), text("name"));
        let _ = client.patch(target, Part::Object, Patch::Merge(refuse)).await;
        return;
    }
    let term = json!({ "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] }] });
    let volume = json!({
        "metadata": {
            "name": format!("pvc-{}", text("uid")), "annotations": { "pv.kubernetes.io/provisioned-by": VOLUME_PROVISIONER },
        },
        "spec": {
            "capacity": claim["spec"]["resources"]["requests"], "accessModes": claim["spec"]["accessModes"],
            "storageClassName": claim["spec"]["storageClassName"], "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": { "path": "/made" },
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": text("namespace"), "name": text("name"), "uid": text("uid"),
            },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [term] } },
        },
    });
    let _ = client.create(&PersistentVolume::RESOURCE, "", volume).await;
}

#[test]
fn pods_get_the_disks_of_their_nodes() {
    scenario(&nodes(), async |cluster| {
        cluster.create(class(BY_HAND, json!({}))).await;
        for (disk_name, node) in [("disk-a", "a"), ("disk-b", "b")] {
            cluster.create(disk(disk_name, node)).await;
        }
        for name in ["one", "two", "three"] {
            cluster.create(claim(name)).await;
            cluster.create(user(name, &[name]).build()).await;
        }
        cluster.until_running(2).await;
        for pod in cluster.running() {
            let node = cluster.node_of(&pod).unwrap();
            assert_eq!(
                volume_of(cluster, &pod).await,
                Some(format!("disk-{node}")),
                "{}",
                cluster.picture()
            );
        }
        let left = ["one", "two", "three"]
            .into_iter()
            .find(|name| !cluster.runs(name))
            .unwrap();
        assert_eq!(selected_node(cluster, left).await, None);
        assert_eq!(volume_of(cluster, left).await, None);
    });
}

#[test]
fn a_gang_waits_until_there_are_volumes_for_all_its_pods() {
    scenario(&nodes(), async |cluster| {
        cluster.create(queue("team", None, -1.0, -1.0)).await;
        cluster.create(class(BY_HAND, json!({}))).await;
        cluster.create(pod_group("gang", "team", 2)).await;
        cluster.create(disk("disk-a", "a")).await;
        for name in ["one", "two"] {
            cluster.create(claim(name)).await;
            cluster
                .create(user(name, &[name]).queue("team").member_of("gang").build())
                .await;
        }
        cluster
            .until_waiting("one", "node(s) didn't find available persistent volumes to bind")
            .await;
        assert_eq!(cluster.running(), [""; 0]);
        let disk_a: Option<PersistentVolume> = cluster.client.get("", "disk-a").await.unwrap();
        assert_eq!(
            disk_a.and_then(|disk| disk.claim().map(|_| ())),
            None,
            "no claim has the disk"
        );
        cluster.create(disk("disk-b", "b")).await;
        cluster.until_only_running(&["one", "two"]).await;
    });
}

#[test]
fn a_provisioner_makes_the_volume_for_the_node() {
    scenario(&nodes(), async |cluster| {
        let _provisioner = provisioner(cluster);
        // Node a is full: the provisioner refuses it, and the pod tries node b.
        let parameters = json!({ "topologyKey": "kubernetes.io/hostname", "fullNodes": "a" });
        cluster.create(class(VOLUME_PROVISIONER, parameters)).await;
        cluster.create(claim("data")).await;
        cluster.create(user("train", &["data"]).build()).await;
        cluster.until_only_running(&["train"]).await;
        assert_eq!(cluster.node_of("train").as_deref(), Some("b"));
        assert_eq!(selected_node(cluster, "data").await.as_deref(), Some("b"));
        // The claim keeps its volume, and so does the next pod with it.
        cluster.delete::<kai_api::Pod>("default", "train").await.unwrap();
        cluster.create(user("again", &["data"]).build()).await;
        cluster.until_only_running(&["again"]).await;
        assert_eq!(cluster.node_of("again").as_deref(), Some("b"));
    });
}

#[test]
fn an_ephemeral_volume_comes_with_its_pod() {
    scenario(&nodes(), async |cluster| {
        cluster.create(class(BY_HAND, json!({}))).await;
        cluster.create(disk("disk-b", "b")).await;
        let template = json!({ "spec": claim("x")["spec"] });
        let volume = json!([{ "name": "scratch", "ephemeral": { "volumeClaimTemplate": template } }]);
        cluster
            .create(PodManifest::new("train").gpus(1).volumes(volume).build())
            .await;
        cluster.until_only_running(&["train"]).await;
        assert_eq!(cluster.node_of("train").as_deref(), Some("b"));
        assert_eq!(volume_of(cluster, "train-scratch").await.as_deref(), Some("disk-b"));
    });
}

#[test]
fn a_claim_that_never_binds_holds_up_no_other_pod() {
    scenario(&nodes(), async |cluster| {
        let _provisioner = provisioner(cluster);
        let parameters = json!({ "neverAnswers": "true" });
        cluster.create(class(VOLUME_PROVISIONER, parameters)).await;
        cluster.create(claim("data")).await;
        cluster.create(user("stuck", &["data"]).build()).await;
        let asked = async || selected_node(cluster, "data").await.is_some();
        cluster.until_async("the volume is asked for", asked).await;
        cluster.create(PodManifest::new("plain").gpus(1).build()).await;
        cluster.until_only_running(&["plain"]).await;
        cluster.delete::<kai_api::Pod>("default", "stuck").await.unwrap();
        cluster
            .until("the pod is gone", |cluster| cluster.pod("stuck").is_none())
            .await;
    });
}

/// A volume of a driver that is bound to a claim with these access modes.
async fn attachable(cluster: &Cluster, name: &str, mode: &str) {
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": [mode], "storageClassName": "by-hand",
            "persistentVolumeReclaimPolicy": "Retain", "csi": { "driver": "disk.example.com", "volumeHandle": name },
            "claimRef": { "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": name },
        },
    });
    cluster.create(volume).await;
    cluster
        .create(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "namespace": "default" },
            "spec": { "accessModes": [mode], "storageClassName": "by-hand", "volumeName": name,
                      "resources": { "requests": { "storage": "1Gi" } } },
        }))
        .await;
    let bound = async || volume_of(cluster, name).await.is_some();
    cluster.until_async("the claim is bound", bound).await;
}

#[test]
fn nodes_attach_as_many_volumes_as_they_take() {
    scenario(&[NodeTemplate::new("a", "h100:4")], async |cluster| {
        cluster
            .create(json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": { "name": "a" },
                "spec": { "drivers": [{ "name": "disk.example.com", "nodeID": "a", "allocatable": { "count": 1 } }] },
            }))
            .await;
        for name in ["one", "two"] {
            attachable(cluster, name, "ReadWriteOnce").await;
        }
        cluster.create(user("first", &["one"]).build()).await;
        cluster.until_only_running(&["first"]).await;
        // The volume is there already: its second pod needs no place.
        cluster.create(user("beside", &["one"]).build()).await;
        cluster.create(user("second", &["two"]).build()).await;
        cluster.until_only_running(&["first", "beside"]).await;
        cluster.until_waiting("second", "node(s) exceed max volume count").await;
        for pod in ["first", "beside"] {
            cluster.delete::<kai_api::Pod>("default", pod).await.unwrap();
        }
        cluster.until_only_running(&["second"]).await;
    });
}

#[test]
fn a_claim_of_one_pod_has_one_pod() {
    scenario(&nodes(), async |cluster| {
        attachable(cluster, "model", "ReadWriteOncePod").await;
        cluster.create(user("first", &["model"]).build()).await;
        cluster.until_only_running(&["first"]).await;
        cluster.create(user("second", &["model"]).build()).await;
        cluster
            .until_waiting("second", "node has pod using PersistentVolumeClaim with the same name")
            .await;
        cluster.delete::<kai_api::Pod>("default", "first").await.unwrap();
        cluster.until_only_running(&["second"]).await;
    });
}
