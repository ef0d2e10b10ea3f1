//! The keys that only the scheduler writes, and the status that only the cluster writes.

use kai_api::keys;
use kai_cluster::Target;
use serde_json::{Value, json};

use super::{node, tenant, tenant_with};
use crate::harness::manifest::PodManifest;
use crate::harness::user::refused;
use crate::harness::{Cluster, User, scenario};

/// The keys that only the scheduler writes on pods: the path within metadata, and a value.
fn owned_by_the_scheduler() -> Vec<(&'static str, &'static str, &'static str)> {
    vec![
        ("labels", "runai-gpu-group", "forged"),
        ("labels", "runai-gpu-group/forged", "forged"),
        ("labels", "app", "kai-resource-reservation"),
        ("labels", "app", "scaling-pod"),
        ("annotations", "received-resource-type", "MigInstance"),
        ("annotations", "kai.scheduler/received-gpus", "GPU-1"),
        ("annotations", "run.ai/reserve_for_gpu_index", "GPU-1"),
        ("annotations", "kai.scheduler/last-user", "default/x"),
        (
            "annotations",
            "kai.scheduler/gpu-limits",
            r#"{"container":"main","memoryMiB":81559}"#,
        ),
        ("annotations", "kai.scheduler/gpu-enforcement-tier", "mps"),
        ("annotations", "kai.scheduler/gpu-compute-mode", "sm-sharing"),
        ("annotations", "nvidia.com/container.main.gpus.devices", "all"),
        ("annotations", "kai.scheduler/numa-placement-predicted", "[]"),
        ("annotations", "kai.scheduler/numa-placement-observed", "[]"),
    ]
}

/// Pods with each of the keys, for any scheduler, and edits of a running pod.
async fn forge(tenant: &User, victim: &str) {
    let by = "kai-pods";
    for (place, key, value) in owned_by_the_scheduler() {
        let attempt = format!("{place} {key}={value}");
        let pod = |scheduler: &str| {
            let pod = PodManifest::new("forged").scheduler(scheduler);
            match place {
                "labels" => pod.label(key, value),
                _ => pod.annotation(key, value),
            }
            .build()
        };
        refused(&attempt, tenant.create(pod("default-scheduler")).await, by);
        let ours = tenant.create(pod(keys::SCHEDULER_NAME)).await;
        assert!(ours.is_err(), "{attempt}: {ours:?}");
        let edit = json!({ "metadata": { place: { key: value } } });
        refused(&attempt, tenant.patch_pod(victim, edit.clone()).await, by);
        let target = Target::of::<kai_api::Pod>("default", victim);
        refused(&attempt, tenant.patch_status(target, edit).await, by);
    }
    for (place, key) in [
        ("labels", "runai-gpu-group"),
        ("annotations", "received-resource-type"),
        ("annotations", "kai.scheduler/received-gpus"),
        ("annotations", "kai.scheduler/gpu-limits"),
        ("annotations", "nvidia.com/container.main.gpus.devices"),
    ] {
        let edit = json!({ "metadata": { place: { key: null } } });
        refused(&format!("removing {key}"), tenant.patch_pod(victim, edit).await, by);
    }
    for (key, value) in [
        ("gpu-fraction.limit", "0.9"),
        ("gpu-memory.limit", "70Gi"),
        ("kai.scheduler/gpu-enforcement", "preferred"),
        ("nvidia.com/container.main.gpu-memory.request", "1Gi"),
        ("nvidia.com/container.main.gpu-memory.limit", "70Gi"),
        ("nvidia.com/container.main.gpu-compute.mode", "sm-sharing"),
        ("kai.scheduler/container.main.gpu-memory.portion.limit", "0.9"),
    ] {
        let edit = json!({ "metadata": { "annotations": { key: value } } });
        refused(&format!("{key}: {value}"), tenant.patch_pod(victim, edit).await, by);
    }
    for key in [
        "gpu-fraction",
        "gpu-memory",
        "gpu-fraction-num-devices",
        "gpu-fraction-container-name",
        "runai/shared-gpu-configmap",
    ] {
        for value in [json!("0.1"), json!("1"), Value::Null] {
            let edit = json!({ "metadata": { "annotations": { key: value } } });
            let nothing = value.is_null() && key != "gpu-fraction" && key != "runai/shared-gpu-configmap";
            if !nothing {
                refused(&format!("{key}: {value}"), tenant.patch_pod(victim, edit).await, by);
            }
        }
    }
}

/// The GPU groups of pod `half`.
fn groups(cluster: &Cluster) -> String {
    cluster.pod("half").unwrap().gpu_groups().join(",")
}

#[test]
fn forged_keys_are_refused_also_while_the_webhooks_are_down() {
    scenario(&[node("h100:2")], async |cluster| {
        let tenant = tenant_with(cluster, "half", "0.5").await;
        let before = groups(cluster);
        forge(&tenant, "half").await;
        let mut placed = PodManifest::new("placed").build();
        placed["spec"]["nodeName"] = "node".into();
        refused("a node by hand", tenant.create(placed).await, "spec.nodeName");
        tenant
            .patch_pod("half", json!({ "metadata": { "labels": { "team": "red" } } }))
            .await
            .expect("what is not ours is the tenant's");

        cluster.kill_roles().await;
        forge(&tenant, "half").await;
        cluster.start_roles();
        cluster.settle().await;
        assert_eq!(groups(cluster), before);
        assert_eq!(cluster.running(), ["half"]);
    });
}

#[test]
fn a_debug_container_or_a_new_size_does_not_carry_forged_keys() {
    scenario(&[node("h100:1")], async |cluster| {
        // The embedded server does not check these subresources.
        if cluster.kube().is_none() {
            return;
        }
        let tenant = tenant_with(cluster, "half", "0.5").await;
        let before = groups(cluster);
        for part in ["ephemeralcontainers", "resize"] {
            let forged = json!({ "metadata": {
                "labels": { "runai-gpu-group": "forged" }, "annotations": { "received-resource-type": "Regular" },
            } });
            let answer = tenant.patch_pod_part("half", part, forged).await;
            if let Ok(pod) = answer {
                assert_eq!(pod["metadata"]["labels"]["runai-gpu-group"], before.as_str(), "{part}");
                assert_eq!(
                    pod["metadata"]["annotations"]["received-resource-type"], "Fraction",
                    "{part}"
                );
            }
        }
        cluster.settle().await;
        assert_eq!(groups(cluster), before);
    });
}

/// A role of a namespace may contain `pods/binding` and `pods/status`. With them a tenant could put a pod on any GPU, or make the
/// scheduler believe that a GPU is free.
#[test]
fn a_tenant_neither_binds_pods_nor_says_that_they_ended() {
    scenario(&[node("h100:1")], async |cluster| {
        let tenant = tenant(cluster).await;
        tenant.create(PodManifest::new("whole").gpus(1).build()).await.unwrap();
        cluster.until_only_running(&["whole"]).await;
        tenant
            .create(PodManifest::new("half").fraction("0.5").build())
            .await
            .unwrap();
        cluster.until_waiting("half", "GPU").await;
        let binding = |labels: Value| {
            json!({ "metadata": { "name": "half", "labels": labels },
                    "target": { "apiVersion": "v1", "kind": "Node", "name": "node" } })
        };
        let forged = binding(json!({ "runai-gpu-group": "g" }));
        let forged = tenant.post_to_pod("half", "binding", "Binding", forged).await;
        refused("a binding with our labels", forged, "kai-pod-bindings");
        // Users who may bind in all namespaces may bind; on the embedded server all users may.
        if cluster.kube().is_some() {
            let plain = tenant
                .post_to_pod("half", "binding", "Binding", binding(json!({})))
                .await;
            refused("a binding", plain, "only schedulers of the whole cluster");
            let target = Target::of::<kai_api::Pod>("default", "whole");
            for phase in ["Succeeded", "Failed"] {
                let ended = tenant
                    .patch_status(target, json!({ "status": { "phase": phase } }))
                    .await;
                refused(phase, ended, "status.phase");
            }
            // A pod of another scheduler, whose GPU would look free.
            let mut foreign = PodManifest::new("foreign").scheduler("a-tenants-scheduler").build();
            foreign["spec"]["nodeName"] = "node".into();
            tenant.create(foreign).await.unwrap();
            cluster
                .until("the node runs it", |cluster| {
                    cluster
                        .pod("foreign")
                        .is_some_and(|pod| pod.phase() == kai_engine::model::PodPhase::Running)
                })
                .await;
            for phase in ["Succeeded", "Failed"] {
                let other = Target::of::<kai_api::Pod>("default", "foreign");
                let ended = tenant
                    .patch_status(other, json!({ "status": { "phase": phase } }))
                    .await;
                refused(phase, ended, "status.phase");
            }
            tenant.delete::<kai_api::Pod>("default", "foreign").await.unwrap();
            // A tenant may write the condition of a readiness gate.
            let condition = json!({ "type": "example.com/ready", "status": "True" });
            let conditions = cluster.client.get_value(target).await.unwrap().unwrap()["status"]["conditions"].clone();
            let mut conditions = conditions.as_array().cloned().unwrap_or_default();
            conditions.push(condition);
            tenant
                .patch_status(target, json!({ "status": { "conditions": conditions } }))
                .await
                .unwrap();
        }
        cluster.settle().await;
        assert_eq!(cluster.running(), ["whole"]);
        tenant.delete::<kai_api::Pod>("default", "half").await.unwrap();
    });
}
