//! The ConfigMaps that name a pod's GPUs.

use kai_api::{ConfigMap, keys};
use kai_cluster::Target;
use serde_json::{Value, json};

use super::{node, tenant, tenant_with, tenants_config_map};
use crate::harness::manifest::PodManifest;
use crate::harness::user::refused;
use crate::harness::{Cluster, scenario};

async fn config_map(cluster: &Cluster, name: &str) -> Value {
    let target = Target::of::<ConfigMap>("default", name);
    cluster.client.get_value(target).await.unwrap().unwrap_or_default()
}

/// The prefix of the names of a pod's ConfigMaps.
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
    });
}

/// Whether the pod's last bind failed with a message that contains the text.
fn bind_failed(cluster: &Cluster, pod: &str, words: &str) -> bool {
    let Some(pod) = cluster.pod(pod) else { return false };
    let bound = pod.condition(kai_api::PodCondition::BOUND);
    bound
        .and_then(|condition| condition.message.as_deref())
        .is_some_and(|text| text.contains(words))
}

/// The pod names the ConfigMap of an application: the binder neither replaces nor deletes it, and the pod does not start with it.
#[test]
fn a_config_map_that_is_not_ours_is_left_alone_and_its_pod_waits() {
    scenario(&[node("h100:1")], async |cluster| {
        let tenant = tenant(cluster).await;
        for (prefix, taken) in [("app-config", "app-config-0"), ("shop-config", "shop-config-0-evar")] {
            tenant.create(tenants_config_map(taken)).await.unwrap();
            let before = config_map(cluster, taken).await;
            let pod = PodManifest::new("early").fraction("0.5");
            let pod = pod.annotation(keys::SHARED_GPU_CONFIG_MAP, prefix);
            tenant.create(pod.build()).await.unwrap();
            let words = format!("ConfigMap default/{taken} exists");
            cluster
                .until("the bind fails and says why", |cluster| {
                    bind_failed(cluster, "early", &words)
                })
                .await;
            assert_eq!(config_map(cluster, taken).await, before);
            assert!(!cluster.runs("early"));
            // Its GPU is free for other pods meanwhile.
            let whole = PodManifest::new("whole").gpus(1);
            tenant.create(whole.build()).await.unwrap();
            cluster.until_only_running(&["whole"]).await;
            tenant.delete::<kai_api::Pod>("default", "whole").await.unwrap();
            tenant.delete::<ConfigMap>("default", taken).await.unwrap();
            cluster.until_only_running(&["early"]).await;
            let map = config_map(cluster, &format!("{prefix}-0")).await;
            assert!(
                map["data"]["NVIDIA_VISIBLE_DEVICES"].as_str().unwrap().contains("GPU-"),
                "{map}"
            );
            for suffix in ["-0", "-0-evar"] {
                let map = config_map(cluster, &format!("{prefix}{suffix}")).await;
                assert_eq!(
                    (
                        &map["immutable"],
                        &map["metadata"]["labels"]["kai.scheduler/shared-gpu"]
                    ),
                    (&json!(true), &json!("true"))
                );
                assert_ne!(map["data"]["NVIDIA_VISIBLE_DEVICES"], "all");
            }
            tenant.delete::<kai_api::Pod>("default", "early").await.unwrap();
            cluster
                .until("the pod is gone", |cluster| cluster.pod("early").is_none())
                .await;
        }
    });
}

/// Otherwise the running pod would use the other pod's GPU after its next restart.
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
                bind_failed(cluster, "thief", "did not make it for this pod")
            })
            .await;
        assert_eq!(config_map(cluster, &name).await, before);
        assert_eq!(cluster.running(), ["large"]);
        tenant.delete::<kai_api::Pod>("default", "thief").await.unwrap();
        cluster
            .until("the thief is gone", |cluster| cluster.pod("thief").is_none())
            .await;
        assert_eq!(config_map(cluster, &name).await, before);
    });
}
