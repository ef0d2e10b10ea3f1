//! No account of kai may change a spec or a pod's status beyond conditions, even with further rights in RBAC.

use kai_api::{Node, PersistentVolume, PersistentVolumeClaim, Pod, PodGroup};
use kai_cluster::{Error, Part, Patch, Target};
use kai_embedded::kubelet::NodeTemplate;
use serde_json::{Value, json};

use super::may;
use super::tokens::{NODE_AGENT, RESERVATION_POD};
use crate::harness::manifest::PodManifest;
use crate::harness::user::refused;
use crate::harness::{User, scenario};

const ROLES: [&str; 5] = ["scheduler", "binder", "controllers", "admission", "kai-all"];

fn accounts() -> Vec<String> {
    let roles = ROLES.map(|role| format!("system:serviceaccount:kai-scheduler:{role}"));
    let of_nodes = [NODE_AGENT, RESERVATION_POD].map(str::to_owned);
    roles.into_iter().chain(of_nodes).collect()
}

/// A strategic merge patch, so that the rest of the container stays.
fn new_image() -> Patch {
    Patch::Strategic(json!({ "spec": { "containers": [{ "name": "main", "image": "evil" }] } }))
}

async fn annotate(user: &User, target: Target<'_>) -> Result<Value, Error> {
    let change = json!({ "metadata": { "annotations": { "example.com/by": "an account of ours" } } });
    user.patch_status(target, change).await
}

#[test]
fn no_account_of_ours_changes_a_spec() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        cluster.create(PodManifest::new("whole").gpus(1).build()).await;
        cluster.until_only_running(&["whole"]).await;
        let pod = Target::of::<Pod>("default", "whole");
        let node = Target::of::<Node>("", "node");
        let group = cluster.pod("whole").unwrap().pod_group().unwrap().to_owned();
        let group = Target::of::<PodGroup>("default", &group);
        let spec_of =
            async |target: Target<'_>| cluster.client.get_value(target).await.unwrap().unwrap()["spec"].clone();
        let (pod_spec, node_spec) = (spec_of(pod).await, spec_of(node).await);

        for (at, account) in accounts().into_iter().enumerate() {
            let user = cluster.account_beyond_rbac(&account).await;
            let attempt = |what: &str| format!("{what} by {account}");
            // More than one policy restricts the accounts of nodes, and the server names any of them.
            let of_node = [NODE_AGENT, RESERVATION_POD].contains(&account.as_str());
            let by = |policy: &'static str| {
                if of_node {
                    "ValidatingAdmissionPolicy 'kai-"
                } else {
                    policy
                }
            };
            let image = user.0.patch(pod, Part::Object, new_image()).await;
            refused(&attempt("image"), image, by("kai-own-specs"));
            let owner = json!({ "metadata": { "finalizers": ["example.com/for-ever"] } });
            refused(&attempt("finalizer"), user.patch(pod, owner).await, by("kai-own-specs"));
            let cordon = json!({ "spec": { "unschedulable": true } });
            refused(&attempt("node"), user.patch(node, cordon).await, by("kai-own-specs"));
            let change = json!({ "spec": { "schedulingBackoff": 10 + at } });
            let changed = user.patch(group, change).await;
            // The controllers create and update the pod groups of workloads.
            match account.ends_with(":controllers") || account.ends_with(":kai-all") {
                true => drop(changed.unwrap()),
                false => refused(&attempt("pod group"), changed, "kai-own-specs"),
            }

            let ended = json!({ "status": { "phase": "Failed" } });
            refused(
                &attempt("phase"),
                user.patch_status(pod, ended).await,
                by("kai-own-pod-status"),
            );
        }
        // The roles may write the status, and such a write can't change the spec.
        for role in ["scheduler", "binder", "controllers"] {
            let account = format!("system:serviceaccount:kai-scheduler:{role}");
            let user = cluster.user(&account).await;
            annotate(&user, pod).await.unwrap();
            user.0.patch(pod, Part::Status, new_image()).await.unwrap();
        }
        assert_eq!(spec_of(pod).await, pod_spec);
        assert_eq!(spec_of(node).await, node_spec);
    });
}

#[test]
fn no_account_of_ours_may_patch_pods() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        let Some(kube) = cluster.kube() else { return };
        let calls = [
            ("patch", "pods", ""),
            ("update", "pods", ""),
            ("patch", "pods", "ephemeralcontainers"),
            ("patch", "pods", "resize"),
            ("get", "secrets", ""),
        ];
        for account in accounts() {
            for (verb, resource, subresource) in calls {
                for namespace in ["default", "kai-resource-reservation", "kai-scheduler"] {
                    let call = json!({ "verb": verb, "resource": resource, "subresource": subresource, "namespace": namespace });
                    assert!(!may(kube, &account, call.clone()).await, "{account}: {call}");
                }
            }
        }
    });
}

#[test]
fn the_binder_changes_no_more_of_volumes_than_it_has_to() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        let spec = |class: &str| {
            json!({ "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                    "persistentVolumeReclaimPolicy": "Retain", "hostPath": { "path": "/disk" } })
        };
        for (name, class) in [("bound", "by-hand"), ("free", "another")] {
            let volume = json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name }, "spec": spec(class) });
            cluster.create(volume).await;
        }
        for (name, class) in [("data", "by-hand"), ("waiting", "of-nothing")] {
            cluster
                .create(json!({
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "namespace": "default" },
                    "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": { "requests": { "storage": "1Gi" } } },
                }))
                .await;
        }
        let claim = Target::of::<PersistentVolumeClaim>("default", "data");
        let is_bound = async || {
            let bound: Option<PersistentVolume> = cluster.client.get("", "bound").await.unwrap();
            let claim: Option<PersistentVolumeClaim> = cluster.client.get("default", "data").await.unwrap();
            bound.is_some_and(|volume| volume.is_bound()) && claim.is_some_and(|claim| claim.is_bound())
        };
        cluster.until_async("the claim is bound", is_bound).await;
        let volume = |name: &'static str| Target::of::<PersistentVolume>("", name);
        let of = |name: &str| json!({ "spec": { "claimRef": { "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": name } } });
        let annotated = |key: &str| json!({ "metadata": { "annotations": { key: "x" } } });
        for role in ["binder", "kai-all"] {
            let account = format!("system:serviceaccount:kai-scheduler:{role}");
            let user = cluster.account_beyond_rbac(&account).await;
            for change in [
                json!({ "spec": { "capacity": { "storage": "2Gi" } } }),
                json!({ "spec": { "persistentVolumeReclaimPolicy": "Delete" } }),
                json!({ "metadata": { "labels": { "of": "binder" } } }),
                json!({ "metadata": { "finalizers": ["example.com/for-ever"] } }),
                annotated("example.com/by"),
            ] {
                let changed = user.patch(volume("free"), change.clone()).await;
                refused(&format!("{change} by {account}"), changed, "kai-binder-volumes");
                let changed = user.patch(claim, json!({ "metadata": change["metadata"] })).await;
                if change["metadata"].is_object() {
                    refused(
                        &format!("{change} of the claim by {account}"),
                        changed,
                        "kai-binder-volume-claims",
                    );
                }
            }
            let named = json!({ "spec": { "volumeName": "free" } });
            let waiting = Target::of::<PersistentVolumeClaim>("default", "waiting");
            refused(
                "the volume of a claim",
                user.patch(waiting, named).await,
                "kai-binder-volume-claims",
            );
            let freed = json!({ "spec": { "claimRef": null } });
            let lost = user.patch(volume("bound"), freed.clone()).await;
            refused("the volume of a bound claim", lost, "kai-binder-volumes");
            user.patch(volume("free"), of("first")).await.unwrap();
            let taken = user.patch(volume("free"), of("second")).await;
            refused("the volume of another claim", taken, "kai-binder-volumes");
            user.patch(volume("free"), freed).await.unwrap();
            user.patch(volume("free"), annotated("pv.kubernetes.io/bound-by-controller"))
                .await
                .unwrap();
            user.patch(claim, annotated("volume.kubernetes.io/selected-node"))
                .await
                .unwrap();
        }
    });
}
