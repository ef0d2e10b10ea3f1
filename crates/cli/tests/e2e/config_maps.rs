//! Pods that name ConfigMaps.

use kai_embedded::kubelet::NodeTemplate;
use serde_json::json;

use crate::harness::manifest::PodManifest;
use crate::harness::scenario;

#[test]
fn a_pod_waits_for_its_config_map_and_leaves_the_gpu_to_others() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        let mut needy = PodManifest::new("needy").gpus(1).build();
        needy["spec"]["containers"][0]["envFrom"] = json!([{ "configMapRef": { "name": "settings" } }]);
        cluster.create(needy).await;
        cluster
            .until_waiting("needy", "Missing required configmaps: settings")
            .await;
        cluster.create(PodManifest::new("other").gpus(1).build()).await;
        cluster.until_only_running(&["other"]).await;
        cluster.delete::<kai_api::Pod>("default", "other").await.unwrap();
        cluster
            .create(json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "settings", "namespace": "default" },
                "data": { "key": "value" },
            }))
            .await;
        cluster.until_only_running(&["needy"]).await;
    });
}

/// A pod with a GPU fraction names ConfigMaps that only the binder creates.
#[test]
fn a_pod_that_shares_a_gpu_waits_for_no_config_map_of_the_binder() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        cluster.create(PodManifest::new("half").fraction("0.5").build()).await;
        cluster.until_only_running(&["half"]).await;
    });
}
