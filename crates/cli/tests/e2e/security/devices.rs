//! Pods that set `NVIDIA_VISIBLE_DEVICES`, with webhooks that block it.

use kai_cli::roles::RoleSettings;
use serde_json::{Value, json};

use super::{node, tenant, tenants_config_map};
use crate::harness::manifest::PodManifest;
use crate::harness::scenario_with;
use crate::harness::user::refused;

/// With webhooks that hide GPUs from containers without a GPU request.
fn hiding() -> RoleSettings {
    RoleSettings::of_flags(|role| match role {
        "admission" => vec!["--block-nvidia-visible-devices".to_owned()],
        _ => Vec::new(),
    })
    .unwrap()
}

#[test]
fn gpus_named_by_hand_are_refused_or_not_seen() {
    scenario_with(hiding(), &[node("h100:2")], async |cluster| {
        let tenant = tenant(cluster).await;
        let all = json!([{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" }]);
        let visible = |container: &Value| {
            let env = container["env"].as_array().cloned().unwrap_or_default();
            let mut named = env
                .into_iter()
                .filter(|variable| variable["name"] == "NVIDIA_VISIBLE_DEVICES");
            let first = named.next();
            assert_eq!(named.next(), None, "the kubelet takes the last of several");
            first
        };

        let by = "env.NVIDIA_VISIBLE_DEVICES: \"all\" shows GPUs to a container that asked for none";
        let mut named = PodManifest::new("named").build();
        named["spec"]["containers"][0]["env"] = all.clone();
        refused("a value", tenant.create(named).await, by);
        let mut named = PodManifest::new("named").build();
        named["spec"]["initContainers"] = json!([{ "name": "first", "image": "example", "env": all }]);
        refused("a value of an init container", tenant.create(named).await, by);

        let mut plain = PodManifest::new("plain").build();
        plain["spec"]["initContainers"] = json!([{ "name": "first", "image": "example" }]);
        let plain = tenant.create(plain).await.unwrap();
        for list in ["containers", "initContainers"] {
            assert_eq!(visible(&plain["spec"][list][0]).unwrap()["value"], "void", "{list}");
        }

        // A variable of the pod overrides a ConfigMap or the image.
        tenant.create(tenants_config_map("gpus")).await.unwrap();
        let mut imported = PodManifest::new("imported").build();
        imported["spec"]["containers"][0]["envFrom"] = json!([{ "configMapRef": { "name": "gpus" } }]);
        let imported = tenant.create(imported).await.unwrap();
        assert_eq!(visible(&imported["spec"]["containers"][0]).unwrap()["value"], "void");

        let reference = json!([{ "name": "NVIDIA_VISIBLE_DEVICES",
            "valueFrom": { "configMapKeyRef": { "name": "gpus", "key": "NVIDIA_VISIBLE_DEVICES" } } }]);
        let mut referring = PodManifest::new("referring").build();
        referring["spec"]["containers"][0]["env"] = reference.clone();
        refused("a reference", tenant.create(referring).await, "NVIDIA_VISIBLE_DEVICES");

        // A container with a GPU request gets the value of the device plugin or the binder, not its own.
        let mut whole = PodManifest::new("whole").gpus(1).build();
        whole["spec"]["containers"][0]["env"] = all.clone();
        let whole = tenant.create(whole).await.unwrap();
        assert_eq!(visible(&whole["spec"]["containers"][0]), None);
        let mut half = PodManifest::new("half").fraction("0.5").build();
        half["spec"]["containers"][0]["env"] = reference;
        half["spec"]["containers"][0]["envFrom"] = json!([{ "configMapRef": { "name": "gpus" } }]);
        let side = json!({ "name": "side", "image": "example" });
        half["spec"]["containers"].as_array_mut().unwrap().push(side);
        let half = tenant.create(half).await.unwrap();
        let source = visible(&half["spec"]["containers"][0]).unwrap()["valueFrom"]["configMapKeyRef"]["name"].clone();
        assert!(source.as_str().unwrap().contains("-shared-gpu-0"), "{source}");
        assert_eq!(visible(&half["spec"]["containers"][1]).unwrap()["value"], "void");

        cluster.until_running(4).await;
        let debug = json!({ "spec": { "ephemeralContainers": [{ "name": "debug", "image": "example", "env": all }] } });
        refused(
            "a debug container",
            tenant.patch_pod_part("plain", "ephemeralcontainers", debug).await,
            by,
        );
        let debug = json!({ "spec": { "ephemeralContainers": [{ "name": "debug", "image": "example" }] } });
        let debugged = tenant
            .patch_pod_part("plain", "ephemeralcontainers", debug)
            .await
            .unwrap();
        assert_eq!(
            visible(&debugged["spec"]["ephemeralContainers"][0]).unwrap()["value"],
            "void"
        );
    });
}
