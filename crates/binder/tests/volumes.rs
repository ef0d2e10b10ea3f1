//! Claims that wait for their first consumer. The tests play the controller of volumes and the provisioner.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

mod support;

use kai_embedded::server::Patch;
use serde_json::{Value, json};

use support::{NS, TestCluster};

const CLAIMS: &str = "persistentvolumeclaims";
const VOLUMES: &str = "persistentvolumes";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// The nodes `n` and `m`.
fn cluster() -> TestCluster {
    let cluster = TestCluster::new();
    cluster.node("n", 1);
    cluster.node("m", 1);
    for name in ["n", "m"] {
        let labels = json!({ "metadata": { "labels": { "kubernetes.io/hostname": name } } });
        cluster.store.patch("nodes", "", name, &Patch::Merge(labels)).unwrap();
    }
    cluster
}

fn claim(cluster: &TestCluster, name: &str) {
    claim_with(cluster, name, "ReadWriteOnce");
}

fn claim_with(cluster: &TestCluster, name: &str, mode: &str) {
    cluster
        .store
        .create(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "namespace": NS },
            "spec": { "accessModes": [mode], "storageClassName": "late", "resources": { "requests": { "storage": "1Gi" } } },
        }))
        .unwrap();
}

/// A free volume that the node alone can use.
fn volume(cluster: &TestCluster, name: &str, node: &str) {
    let term = json!({ "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] }] });
    cluster
        .store
        .create(json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
            "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "late",
                      "hostPath": { "path": "/x" }, "nodeAffinity": { "required": { "nodeSelectorTerms": [term] } } },
        }))
        .unwrap();
    let status = json!({ "status": { "phase": "Available" } });
    cluster
        .store
        .patch_status(VOLUMES, "", name, &Patch::Merge(status))
        .unwrap();
}

/// A plain pod with a bind request to the node, and what its claims get.
fn bind(cluster: &TestCluster, pod: &str, node: &str, volumes: Value) {
    let pod = cluster.pod(pod, json!({}));
    cluster.request(&pod, node, json!({ "selectedVolumes": volumes }));
}

/// Starts the binder with the flags, and a bind of the pod `p` to the node `n`: its claim `old` gets the volume `disk`, its claim `new` a new one.
fn bind_old_and_new(cluster: &mut TestCluster, flags: &[&str]) {
    claim(cluster, "old");
    claim(cluster, "new");
    volume(cluster, "disk", "n");
    cluster.start(flags);
    let volumes = json!([{ "claimName": "old", "volumeName": "disk" }, { "claimName": "new" }]);
    bind(cluster, "p", "n", volumes);
}

/// Waits until the bind of the pod `p` has failed.
async fn until_failed(cluster: &TestCluster) {
    cluster
        .until("the bind has failed", |cluster| cluster.failed("p"))
        .await;
}

fn annotation(cluster: &TestCluster, claim: &str) -> Value {
    cluster.get(CLAIMS, NS, claim).unwrap()["metadata"]["annotations"][SELECTED_NODE].clone()
}

fn annotate(cluster: &TestCluster, claim: &str, node: Value) {
    let body = json!({ "metadata": { "annotations": { SELECTED_NODE: node } } });
    cluster.store.patch(CLAIMS, NS, claim, &Patch::Merge(body)).unwrap();
}

fn claim_of(cluster: &TestCluster, volume: &str) -> Value {
    cluster.get(VOLUMES, "", volume).unwrap()["spec"]["claimRef"]["name"].clone()
}

/// Binds the claim to the volume, as the controller does.
fn complete(cluster: &TestCluster, claim: &str, volume: &str) {
    let patch = |body| Patch::Merge(body);
    let bound = json!({ "status": { "phase": "Bound" } });
    cluster
        .store
        .patch(CLAIMS, NS, claim, &patch(json!({ "spec": { "volumeName": volume } })))
        .unwrap();
    cluster
        .store
        .patch_status(CLAIMS, NS, claim, &patch(bound.clone()))
        .unwrap();
    cluster.store.patch_status(VOLUMES, "", volume, &patch(bound)).unwrap();
}

fn reason(cluster: &TestCluster, request: &str) -> String {
    cluster.status(request)["reason"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_once_its_claims_are() {
    let mut cluster = cluster();
    bind_old_and_new(&mut cluster, &[]);
    cluster
        .until("the volumes are asked for", |cluster| {
            claim_of(cluster, "disk") == "old" && annotation(cluster, "new") == "n"
        })
        .await;
    let disk = cluster.get(VOLUMES, "", "disk").unwrap();
    let uid = &cluster.get(CLAIMS, NS, "old").unwrap()["metadata"]["uid"];
    assert_eq!(disk["spec"]["claimRef"]["uid"], *uid);
    complete(&cluster, "old", "disk");
    cluster.sleep(20).await;
    assert!(!cluster.is_bound("p"), "one claim is not bound");
    volume(&cluster, "made", "n");
    complete(&cluster, "new", "made");
    cluster.until("the pod is bound", |cluster| cluster.is_bound("p")).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiting_bind_holds_no_worker() {
    let mut cluster = cluster();
    claim(&cluster, "new");
    cluster.start(&["--max-concurrent-reconciles=1"]);
    bind(&cluster, "waits", "n", json!([{ "claimName": "new" }]));
    cluster
        .until("the volume is asked for", |cluster| annotation(cluster, "new") == "n")
        .await;
    bind(&cluster, "plain", "n", json!([]));
    cluster
        .until("the other pod is bound", |cluster| cluster.is_bound("plain"))
        .await;
    assert!(!cluster.is_bound("waits") && !cluster.failed("waits"));
}

#[tokio::test(start_paused = true)]
async fn claims_that_are_not_bound_in_time_are_as_before() {
    let mut cluster = cluster();
    bind_old_and_new(&mut cluster, &["--volume-binding-timeout=60"]);
    cluster.sleep(50).await;
    assert!(!cluster.failed("p") && claim_of(&cluster, "disk") == "old");
    until_failed(&cluster).await;
    assert_eq!(
        reason(&cluster, "p"),
        "timed out: no volume within 60 s for old, new; the events of the claims say what they wait for"
    );
    assert_eq!(
        (claim_of(&cluster, "disk"), annotation(&cluster, "new")),
        (Value::Null, Value::Null)
    );
    let disk = cluster.get(VOLUMES, "", "disk").unwrap();
    assert!(disk["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"].is_null());
    assert!(!cluster.is_bound("p"));
}

#[tokio::test(start_paused = true)]
async fn a_bound_claim_is_left_alone_when_the_bind_fails() {
    let mut cluster = cluster();
    bind_old_and_new(&mut cluster, &[]);
    cluster
        .until("the volumes are asked for", |cluster| annotation(cluster, "new") == "n")
        .await;
    complete(&cluster, "old", "disk");
    until_failed(&cluster).await;
    assert_eq!(claim_of(&cluster, "disk"), "old");
    assert_eq!(annotation(&cluster, "new"), Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_provisioner_may_refuse_the_node() {
    let mut cluster = cluster();
    claim(&cluster, "new");
    cluster.start(&[]);
    bind(&cluster, "p", "n", json!([{ "claimName": "new" }]));
    cluster
        .until("the volume is asked for", |cluster| annotation(cluster, "new") == "n")
        .await;
    annotate(&cluster, "new", Value::Null);
    until_failed(&cluster).await;
    assert!(
        reason(&cluster, "p").starts_with("provisioning failed for PVC \"new\" on node n"),
        "{}",
        reason(&cluster, "p")
    );
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_somebody_else_takes_is_theirs() {
    let mut cluster = cluster();
    claim(&cluster, "mine");
    volume(&cluster, "disk", "n");
    let other = json!({ "spec": { "claimRef": { "namespace": NS, "name": "theirs", "uid": "1" } } });
    cluster.store.patch(VOLUMES, "", "disk", &Patch::Merge(other)).unwrap();
    cluster.start(&[]);
    bind(
        &cluster,
        "p",
        "n",
        json!([{ "claimName": "mine", "volumeName": "disk" }]),
    );
    until_failed(&cluster).await;
    assert_eq!(
        reason(&cluster, "p"),
        format!("volume disk was taken by claim {NS}/theirs meanwhile")
    );
    assert_eq!(claim_of(&cluster, "disk"), "theirs");
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_another_node_fails_the_bind() {
    let mut cluster = cluster();
    claim(&cluster, "new");
    volume(&cluster, "far", "m");
    cluster.start(&[]);
    bind(&cluster, "p", "n", json!([{ "claimName": "new" }]));
    cluster
        .until("the volume is asked for", |cluster| annotation(cluster, "new") == "n")
        .await;
    complete(&cluster, "new", "far");
    until_failed(&cluster).await;
    assert_eq!(
        reason(&cluster, "p"),
        "claim new is bound to volume far, which node n can't use"
    );
}

#[tokio::test(start_paused = true)]
async fn pods_of_one_claim_wait_for_one_volume() {
    let mut cluster = cluster();
    claim_with(&cluster, "shared", "ReadWriteMany");
    claim(&cluster, "alone");
    cluster.start(&[]);
    for (pod, node) in [("p", "n"), ("q", "m")] {
        bind(&cluster, pod, node, json!([{ "claimName": "shared" }]));
    }
    cluster
        .until("the volume is asked for", |cluster| {
            annotation(cluster, "shared") != Value::Null
        })
        .await;
    annotate(&cluster, "alone", "m".into());
    bind(&cluster, "r", "n", json!([{ "claimName": "alone" }]));
    cluster
        .until("the third bind has failed", |cluster| cluster.failed("r"))
        .await;
    assert_eq!(
        reason(&cluster, "r"),
        "a volume for claim alone is being made for node m"
    );
    assert_eq!(
        annotation(&cluster, "alone"),
        "m",
        "another node than that of the bind is kept"
    );
    assert!(!cluster.failed("p") && !cluster.failed("q"));
    cluster
        .store
        .create(json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "net" },
            "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteMany"], "hostPath": { "path": "/x" } },
        }))
        .unwrap();
    complete(&cluster, "shared", "net");
    cluster
        .until("both pods are bound", |cluster| {
            cluster.is_bound("p") && cluster.is_bound("q")
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_leaves_nothing_behind() {
    let mut cluster = cluster();
    claim(&cluster, "old");
    volume(&cluster, "disk", "n");
    cluster.start(&[]);
    bind(
        &cluster,
        "p",
        "n",
        json!([{ "claimName": "old", "volumeName": "disk" }]),
    );
    cluster
        .until("the volume is reserved", |cluster| claim_of(cluster, "disk") == "old")
        .await;
    let gone = json!({ "metadata": { "finalizers": ["test/keep"] } });
    cluster.store.patch("pods", NS, "p", &Patch::Merge(gone)).unwrap();
    cluster.delete("pods", NS, "p");
    cluster
        .until("the volume is free", |cluster| claim_of(cluster, "disk") == Value::Null)
        .await;
}
