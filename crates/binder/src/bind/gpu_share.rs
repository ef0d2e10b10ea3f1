//! The ConfigMaps of a pod with a GPU share. The environment variables of its container come from them. Pure.

use std::collections::BTreeMap;

use kai_api::{ContainerRef, keys, share_container};
use kai_engine::model::GpuFraction;
use serde_json::{Value, json};

use crate::bind::failure::BindFailure;

/// The GPU share that a pod gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GpuShare {
    /// The GPUs by the names that the node's container runtime knows; value of `NVIDIA_VISIBLE_DEVICES`.
    pub(crate) visible_devices: String,
    /// Portion of each GPU, from the BindRequest.
    pub(crate) portion: Option<GpuFraction>,
    /// Memory limit for HAMi's library, if it is in use.
    pub(crate) memory_limit: Option<String>,
}

/// The variables that KAI's binder writes into the ConfigMaps of a pod.
const KAI_VARIABLES: [&str; 5] = [
    keys::ENV_VISIBLE_DEVICES,
    keys::ENV_GPU_PORTION,
    keys::ENV_GPU_PORTION_LEGACY,
    keys::ENV_CUDA_MEMORY_LIMIT,
    keys::ENV_VISIBLE_DEVICES_LEGACY,
];

/// Name and data of a ConfigMap.
pub(crate) type NamedData = (String, BTreeMap<String, String>);

/// Names and data of both ConfigMaps of a pod; an error says what the pod lacks.
pub(crate) fn config_maps(pod: &Value, share: &GpuShare) -> Result<[NamedData; 2], BindFailure> {
    let container = container(pod)?;
    let [name, env_name] = names(pod, container)?;
    let portion = share.portion.map(|portion| portion.to_string()).unwrap_or_default();
    let mut capabilities = BTreeMap::from([
        (keys::ENV_GPU_PORTION.to_owned(), portion.clone()),
        (keys::ENV_GPU_PORTION_LEGACY.to_owned(), portion),
    ]);
    if let Some(limit) = &share.memory_limit {
        capabilities.insert(keys::ENV_CUDA_MEMORY_LIMIT.to_owned(), limit.clone());
    }
    let mut environment = BTreeMap::new();
    let data = match pod.pointer(&container.pointer()).is_some_and(reads_by_key) {
        true => &mut capabilities,
        false => &mut environment,
    };
    data.insert(keys::ENV_VISIBLE_DEVICES.to_owned(), share.visible_devices.clone());
    Ok([(name, capabilities), (env_name, environment)])
}

/// Names of the ConfigMaps that binders make for the pod.
pub(crate) fn config_map_names(pod: &Value) -> Option<[String; 2]> {
    names(pod, container(pod).ok()?).ok()
}

/// The manifest of a ConfigMap. The pod owns it, so it is deleted with the pod.
pub(crate) fn manifest(pod: &Value, name: &str, data: &BTreeMap<String, String>) -> Value {
    let owner = json!({
        "apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"],
    });
    json!({
        "metadata": { "name": name, "labels": { keys::SHARED_GPU_MARKER: "true" }, "ownerReferences": [owner] },
        "immutable": true,
        "data": data,
    })
}

/// Whether a binder made the ConfigMap for this pod: the pod is its owner, and it has the marker label or KAI's content.
pub(crate) fn is_made_for(config_map: &Value, pod: &Value) -> bool {
    let owners = config_map["metadata"]["ownerReferences"].as_array();
    let owned = owners
        .into_iter()
        .flatten()
        .any(|owner| owner["kind"] == "Pod" && owner["uid"] == pod["metadata"]["uid"]);
    owned && (config_map["metadata"]["labels"][keys::SHARED_GPU_MARKER] == "true" || is_made_by_kai(config_map))
}

/// Whether the content of the ConfigMap is that of KAI's binder, which sets no label: no other owner, and only the variables of a GPU share.
/// KAI writes ConfigMaps before it binds the pod; a bind that it did not complete leaves them.
fn is_made_by_kai(config_map: &Value) -> bool {
    let is_empty = |field: &str| config_map[field].as_object().is_none_or(serde_json::Map::is_empty);
    let owners = config_map["metadata"]["ownerReferences"].as_array().map_or(0, Vec::len);
    let mut names = config_map["data"]
        .as_object()
        .into_iter()
        .flat_map(serde_json::Map::keys);
    owners == 1 && is_empty("binaryData") && names.all(|name| KAI_VARIABLES.contains(&name.as_str()))
}

/// Whether the found ConfigMap has exactly the wanted data, owner and label.
pub(crate) fn has_same_content(found: &Value, wanted: &Value) -> bool {
    let no_binary = found["binaryData"].as_object().is_none_or(serde_json::Map::is_empty);
    let data = |map: &Value| map["data"].as_object().cloned().unwrap_or_default();
    let owners = |map: &Value| {
        map["metadata"]["ownerReferences"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    };
    let owned = owners(found).len() == 1 && owners(found)[0]["uid"] == owners(wanted)[0]["uid"];
    let marked = found["metadata"]["labels"][keys::SHARED_GPU_MARKER] == "true";
    no_binary && owned && marked && found["immutable"] == true && data(found) == data(wanted)
}

/// The container that gets the GPU share.
fn container(pod: &Value) -> Result<ContainerRef, BindFailure> {
    share_container(pod)?.ok_or(BindFailure::NoContainer)
}

fn names(pod: &Value, container: ContainerRef) -> Result<[String; 2], BindFailure> {
    let prefix = pod["metadata"]["annotations"][keys::SHARED_GPU_CONFIG_MAP]
        .as_str()
        .filter(|name| !name.is_empty())
        .ok_or(BindFailure::ConfigMapsUnnamed)?;
    let name = format!("{prefix}-{}", container.config_map_index());
    let env_name = format!("{name}{}", keys::ENV_CONFIG_MAP_SUFFIX);
    Ok([name, env_name])
}

/// Whether the container reads its devices from a key of the first ConfigMap. Older pods import the second ConfigMap as a whole.
fn reads_by_key(container: &Value) -> bool {
    let env = container["env"].as_array().into_iter().flatten();
    env.into_iter()
        .any(|entry| entry["name"] == keys::ENV_VISIBLE_DEVICES && !entry["valueFrom"]["configMapKeyRef"].is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share() -> GpuShare {
        GpuShare {
            visible_devices: "GPU-1".into(),
            portion: Some(GpuFraction::from_hundredths(50)),
            memory_limit: None,
        }
    }

    fn pod(annotations: Value) -> Value {
        let by_key = json!([{ "name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": { "configMapKeyRef": { "name": "x" } } }]);
        json!({
            "metadata": { "name": "p", "uid": "1", "annotations": annotations },
            "spec": {
                "initContainers": [{ "name": "prepare" }],
                "containers": [{ "name": "main", "env": by_key }, { "name": "side" }],
            },
        })
    }

    #[test]
    fn devices_go_where_the_container_reads_them() {
        let [(name, capabilities), (env_name, environment)] =
            config_maps(&pod(json!({ "runai/shared-gpu-configmap": "a-shared-gpu" })), &share()).unwrap();
        assert_eq!((&*name, &*env_name), ("a-shared-gpu-0", "a-shared-gpu-0-evar"));
        assert_eq!(capabilities["NVIDIA_VISIBLE_DEVICES"], "GPU-1");
        assert_eq!(
            (&*capabilities["GPU_PORTION"], &*capabilities["RUNAI_NUM_OF_GPUS"]),
            ("0.50", "0.50")
        );
        assert!(environment.is_empty());
        let named = |container: &str| {
            let annotations = json!({ "runai/shared-gpu-configmap": "a", "gpu-fraction-container-name": container });
            config_maps(
                &pod(annotations),
                &GpuShare {
                    memory_limit: Some("10m".into()),
                    ..share()
                },
            )
        };
        let [(name, capabilities), (_, environment)] = named("side").unwrap();
        assert_eq!((&*name, &*environment["NVIDIA_VISIBLE_DEVICES"]), ("a-1", "GPU-1"));
        assert_eq!(capabilities["CUDA_DEVICE_MEMORY_LIMIT"], "10m");
        assert_eq!(named("prepare").unwrap()[0].0, "a-i0");
        assert!(named("none").is_err());
        // KAI looks for a container with the empty name, and finds none.
        assert!(matches!(named(""), Err(BindFailure::ShareContainer(_))));
    }

    #[test]
    fn a_pod_that_admission_did_not_see_is_refused() {
        assert_eq!(
            config_maps(&pod(json!({})), &share()),
            Err(BindFailure::ConfigMapsUnnamed)
        );
        assert_eq!(config_map_names(&pod(json!({}))), None);
    }

    #[test]
    fn what_a_tenant_made_is_not_taken_for_ours() {
        let pod = pod(json!({ "runai/shared-gpu-configmap": "a" }));
        let [(name, data), _] = config_maps(&pod, &share()).unwrap();
        let ours = manifest(&pod, &name, &data);
        assert!(has_same_content(&ours, &ours) && is_made_for(&ours, &pod));
        for change in [
            |map: &mut Value| map["data"]["NVIDIA_VISIBLE_DEVICES"] = json!("all"),
            |map: &mut Value| map["data"]["LD_PRELOAD"] = json!("x"),
            |map: &mut Value| map["metadata"]["ownerReferences"] = json!([]),
            |map: &mut Value| map["metadata"]["labels"] = json!({}),
            |map: &mut Value| map["immutable"] = json!(false),
            |map: &mut Value| map["binaryData"] = json!({ "a": "" }),
        ] {
            let mut other = ours.clone();
            change(&mut other);
            assert!(!has_same_content(&other, &ours), "{other}");
        }
        for change in [
            |map: &mut Value| map["metadata"]["ownerReferences"] = json!([]),
            |map: &mut Value| map["metadata"]["ownerReferences"][0]["uid"] = json!("2"),
            |map: &mut Value| map["metadata"]["ownerReferences"][0]["kind"] = json!("Job"),
            |map: &mut Value| map["data"]["LD_PRELOAD"] = json!("x"),
            |map: &mut Value| map["binaryData"] = json!({ "a": "" }),
            |map: &mut Value| {
                map["metadata"]["ownerReferences"]
                    .as_array_mut()
                    .unwrap()
                    .push(json!({ "uid": "2" }));
            },
        ] {
            let mut other = ours.clone();
            other["metadata"]["labels"] = json!({});
            change(&mut other);
            assert!(!is_made_for(&other, &pod), "{other}");
        }
    }

    #[test]
    fn what_kai_made_for_the_pod_is_replaced() {
        let pod = pod(json!({ "runai/shared-gpu-configmap": "a" }));
        let [(name, data), _] = config_maps(&pod, &share()).unwrap();
        let ours = manifest(&pod, &name, &data);
        let mut kais = ours.clone();
        kais["metadata"]["labels"].take();
        kais["immutable"].take();
        assert!(is_made_for(&kais, &pod) && !has_same_content(&kais, &ours));
        kais["data"].take();
        assert!(is_made_for(&kais, &pod), "KAI leaves the second ConfigMap empty");
    }
}
