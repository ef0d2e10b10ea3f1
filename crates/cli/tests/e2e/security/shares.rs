//! The ConfigMaps that name a pod's GPUs.

use api::{ConfigMap, keys};
use cluster::Target;
use serde_json::{Value, json};

use super::{node, tenant_with, tenants_config_map};
use crate::harness::manifest::PodManifest;
use crate::harness::user::refused;
use crate::harness::{Cluster, scenario};

async fn config_map(cluster: &Cluster, name: &str) -> Value {
    let target = Target::of::<ConfigMap>("default", name);
    cluster.client.get_value(target).await.unwrap().unwrap_or_default()
}

/// How the names of a pod's ConfigMaps begin.
fn prefix(cluster: &Cluster, pod: &str) -> String {
    let pod = cluster.pod(pod).unwrap();
    pod.metadata
        .annotations
        .text(keys::SHARED_GPU_CONFIG_MAP)
        .unwrap()
        .to_owned()
}

#[test]
fn the_config_map_that_names_a_pods_gpu_is_not_the_tenants() {
    scenario(&[node("h100:2")], async |cluster| {
        let tenant = tenant_with(cluster, "half", "0.5").await;
        let by = "kai-shared-gpu-config-maps";
        for suffix in ["-0", "-0-evar"] {
            let name = prefix(cluster, "half") + suffix;
            let before = config_map(cluster, &name).await;
            let target = Target::of::<ConfigMap>("default", &name);
            for edit in [
                json!({ "data": { "NVIDIA_VISIBLE_DEVICES": "all" } }),
                json!({ "binaryData": { "LD_PRELOAD": "eA==" } }),
                json!({ "metadata": { "labels": null } }),
                json!({ "metadata": { "ownerReferences": null } }),
            ] {
                let attempt = format!("{name}: {edit}");
                refused(&attempt, tenant.patch(target, edit).await, "");
            }
            refused(&name, tenant.delete::<ConfigMap>("default", &name).await, by);
            assert_eq!(config_map(cluster, &name).await, before);
        }
        let mut marked = tenants_config_map("mine");
        marked["metadata"]["labels"] = json!({ "kai.scheduler/shared-gpu": "true" });
        refused("a forged mark", tenant.create(marked).await, by);

        // Names that the pod will ask for, taken beforehand.
        for name in ["mine-0", "mine-0-evar"] {
            tenant.create(tenants_config_map(name)).await.unwrap();
        }
        let pod = PodManifest::new("early").fraction("0.5");
        let pod = pod.annotation(keys::SHARED_GPU_CONFIG_MAP, "mine");
        tenant.create(pod.build()).await.unwrap();
        cluster.until_only_running(&["early", "half"]).await;
        let map = config_map(cluster, "mine-0").await;
        let devices = map["data"]["NVIDIA_VISIBLE_DEVICES"].as_str().unwrap();
        assert!(devices.contains("GPU-"), "{map}");
        let second = config_map(cluster, "mine-0-evar").await;
        assert_ne!(second["data"]["NVIDIA_VISIBLE_DEVICES"], "all");
        for map in [map, second] {
            assert_eq!(
                (
                    &map["immutable"],
                    &map["metadata"]["labels"]["kai.scheduler/shared-gpu"]
                ),
                (&json!(true), &json!("true"))
            );
        }
    });
}

/// The running pod would find itself on the other pod's GPU at its next restart.
#[test]
fn a_pod_does_not_take_over_the_config_map_of_another() {
    scenario(&[node("h100:2")], async |cluster| {
        let tenant = tenant_with(cluster, "large", "0.9").await;
        let name = prefix(cluster, "large") + "-0";
        let before = config_map(cluster, &name).await;
        let thief = PodManifest::new("thief").fraction("0.5");
        let thief = thief.annotation(keys::SHARED_GPU_CONFIG_MAP, &prefix(cluster, "large"));
        tenant.create(thief.build()).await.unwrap();
        cluster
            .until("the bind is refused", |cluster| {
                let Some(pod) = cluster.pod("thief") else { return false };
                let bound = pod.condition(api::PodCondition::BOUND);
                bound
                    .and_then(|condition| condition.message.as_deref())
                    .is_some_and(|text| text.contains("belongs to pod large"))
            })
            .await;
        assert_eq!(config_map(cluster, &name).await, before);
        assert_eq!(cluster.running(), ["large"]);
        tenant.delete::<api::Pod>("default", "thief").await.unwrap();
        cluster
            .until("the thief is gone", |cluster| cluster.pod("thief").is_none())
            .await;
        assert_eq!(config_map(cluster, &name).await, before);
    });
}
