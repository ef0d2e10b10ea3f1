//! Objects of the scheduler, the administrator or other tenants, and pods that imitate them.

use kai_api::keys;
use kai_cluster::Target;
use serde_json::json;

use super::{NAMESAKE, node, tenant, tenant_with, user};
use crate::harness::manifest::{PodManifest, pod_group, queue};
use crate::harness::scenario;
use crate::harness::user::refused;

#[test]
fn nobody_passes_for_a_helper_of_ours() {
    scenario(&[node("h100:1")], async |cluster| {
        let tenant = tenant(cluster).await;
        let namesake = user(cluster, NAMESAKE).await;
        let reservation = |namespace: &str| {
            let mut pod = PodManifest::new("gpu-reservation-node-abcde")
                .label("app", "kai-resource-reservation")
                .label("runai-gpu-group", "g")
                .annotation("run.ai/reserve_for_gpu_index", "GPU-1")
                .gpus(1)
                .build();
            pod["metadata"]["namespace"] = namespace.into();
            pod["spec"]["serviceAccountName"] = "kai-resource-reservation".into();
            pod
        };
        refused(
            "a reservation pod",
            tenant.create(reservation("default")).await,
            "kai-pods",
        );
        refused(
            "the same by an account called binder",
            namesake.create(reservation("default")).await,
            "kai-pods",
        );
        if cluster.kube().is_some() {
            let theirs = tenant.create(reservation(keys::RESERVATION)).await;
            refused("one among the real ones", theirs, "cannot create");
        }

        // The name alone has no effect: the queue is charged for the pod's GPU, and its service account is the tenant's.
        let mut named = PodManifest::new("gpu-reservation-node-abcde").gpus(1).build();
        named["spec"]["serviceAccountName"] = "binder".into();
        if cluster.kube().is_some() {
            let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": { "name": "binder", "namespace": "default" } });
            // The object may exist from another run.
            let _ = tenant.create(account).await;
        }
        tenant.create(named).await.unwrap();
        cluster.until_only_running(&["gpu-reservation-node-abcde"]).await;
        tenant.create(PodManifest::new("second").gpus(1).build()).await.unwrap();
        cluster.until_waiting("second", "GPU").await;
        tenant.delete::<kai_api::Pod>("default", "second").await.unwrap();
    });
}

#[test]
fn bind_requests_queues_and_what_others_own_are_not_the_tenants() {
    scenario(&[node("h100:1")], async |cluster| {
        let tenant = tenant_with(cluster, "half", "0.5").await;
        let by = "kai-bind-requests";
        let request = json!({
            "apiVersion": "scheduling.run.ai/v1alpha2", "kind": "BindRequest",
            "metadata": { "name": "forged", "namespace": "default" },
            "spec": { "podName": "forged", "selectedNode": "node", "receivedResourceType": "Fraction",
                      "receivedGPU": { "count": 1, "portion": "0.5" }, "selectedGPUGroups": ["g"] },
        });
        refused("a bind request", tenant.create(request).await, by);
        let target = Target::of::<kai_api::BindRequest>("default", "half");
        let change = json!({ "spec": { "selectedGPUGroups": ["other"] } });
        refused("a change of one", tenant.patch(target, change).await, by);
        let status = json!({ "status": { "phase": "Failed" } });
        refused("its status", tenant.patch_status(target, status).await, by);
        refused(
            "its end",
            tenant.delete::<kai_api::BindRequest>("default", "half").await,
            by,
        );

        tenant.create(pod_group("own", keys::DEFAULT_QUEUE, 1)).await.unwrap();
        let target = Target::of::<kai_api::PodGroup>("default", "own");
        for key in [keys::LAST_START, keys::LAST_EVICTION, keys::STALE_SINCE] {
            let note = json!({ "metadata": { "annotations": { key: "2020-01-01T00:00:00Z" } } });
            refused(key, tenant.patch(target, note).await, "kai-pod-groups");
        }
        let status = json!({ "status": { "resourcesStatus": { "allocated": { "cpu": "1" } } } });
        refused(
            "a pod group's status",
            tenant.patch_status(target, status).await,
            "kai-pod-groups",
        );
        tenant.delete::<kai_api::PodGroup>("default", "own").await.unwrap();

        if cluster.kube().is_some() {
            let mut theirs = pod_group("theirs", keys::DEFAULT_QUEUE, 1);
            theirs["metadata"]["namespace"] = "kai-scheduler".into();
            refused("a pod group elsewhere", tenant.create(theirs).await, "cannot create");
            refused(
                "a queue",
                tenant.create(queue("mine", None, -1.0, -1.0)).await,
                "cannot create",
            );
            let target = Target::of::<kai_api::Queue>("", keys::DEFAULT_QUEUE);
            let change = json!({ "spec": { "priority": 1000 } });
            refused(
                "a change of a queue",
                tenant.patch(target, change).await,
                "cannot patch",
            );
            refused(
                "the end of a queue",
                tenant.delete::<kai_api::Queue>("", keys::DEFAULT_QUEUE).await,
                "cannot delete",
            );
            let target = Target::of::<kai_api::Node>("", "node");
            let label = json!({ "metadata": { "labels": { keys::NODE_GPU_MEMORY: "1000000" } } });
            refused("a node's label", tenant.patch(target, label).await, "cannot patch");
        }
    });
}
