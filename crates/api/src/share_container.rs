//! The container of a pod that gets the GPU share.

use kai_engine::reasons::GpuShareError;
use serde_json::Value;

use crate::gpu_share_annotations::GpuShareAnnotations;
use crate::keys;
use crate::quantity::shorten;

/// A container, by its list and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerRef {
    /// The field of the pod's spec: `containers`, `initContainers` or `ephemeralContainers`.
    pub list: &'static str,
    /// The index in the list.
    pub index: usize,
}

impl ContainerRef {
    /// The JSON pointer within the pod.
    pub fn pointer(self) -> String {
        format!("/spec/{}/{}", self.list, self.index)
    }

    /// The container in the names of the ConfigMaps of its GPU share: `0`, or `i0` for an init container.
    pub fn config_map_index(self) -> String {
        match self.list {
            "initContainers" => format!("i{}", self.index),
            _ => self.index.to_string(),
        }
    }
}

/// An annotation names a container that can't get the GPU share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareContainerError {
    /// The pod does not have the container.
    #[error("the pod has no container {name:?}; name one of its containers or init containers")]
    NoSuchContainer {
        /// The annotation.
        key: String,
        /// The container.
        name: String,
    },
    /// Another container has the GPU share.
    #[error("{error}")]
    OtherContainer {
        /// The annotation.
        key: String,
        /// What is wrong.
        error: GpuShareError,
    },
}

impl ShareContainerError {
    /// The annotation.
    pub fn key(&self) -> &str {
        match self {
            ShareContainerError::NoSuchContainer { key, .. } | ShareContainerError::OtherContainer { key, .. } => key,
        }
    }
}

/// The container that gets the GPU share. It is named by the pod's annotation, or, in a pod without `gpu-fraction` and `gpu-memory`, by the
/// annotation that requests the memory. Init containers are searched first. Without a name it is the first container. `None` if the pod has
/// no container.
///
/// As in KAI, an annotation with an empty value names a container that no pod has, and annotations for single containers must name the one
/// that gets the share.
pub fn share_container(pod: &Value) -> Result<Option<ContainerRef>, ShareContainerError> {
    let list = |list: &str| {
        let list = pod["spec"][list].as_array().map_or(&[][..], Vec::as_slice);
        // The search below walks over the list.
        kai_engine::steps::count(1 + list.len());
        list
    };
    if list("containers").is_empty() {
        return Ok(None);
    }
    let annotations = pod["metadata"]["annotations"].as_object().into_iter().flatten();
    let annotations = annotations.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()));
    let share = GpuShareAnnotations::collect(annotations.inspect(|_| kai_engine::steps::count(1)));
    let of_pod = share.container_name().map(|name| (keys::GPU_FRACTION_CONTAINER, name));
    let of_container = share.named_containers().next().filter(|_| share.memory_key().is_some());
    let found = match of_pod.or(of_container) {
        None => ContainerRef {
            list: "containers",
            index: 0,
        },
        Some((key, name)) => {
            let named = |of: &'static str| {
                let index = list(of).iter().position(|container| container["name"] == name)?;
                Some(ContainerRef { list: of, index })
            };
            let found = named("initContainers").or_else(|| named("containers"));
            found.ok_or_else(|| ShareContainerError::NoSuchContainer {
                key: key.to_owned(),
                name: name.to_owned(),
            })?
        }
    };
    let name = pod["spec"][found.list][found.index]["name"]
        .as_str()
        .unwrap_or_default();
    match share.named_containers().find(|(_, container)| *container != name) {
        None => Ok(Some(found)),
        Some((key, container)) => Err(ShareContainerError::OtherContainer {
            key: key.to_owned(),
            error: GpuShareError::OtherContainer {
                container: shorten(container),
                share: shorten(name),
            },
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_container_is_found_by_name_init_containers_first() {
        let pod = |name: &str| {
            json!({
                "metadata": {"annotations": {"gpu-fraction-container-name": name}},
                "spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}, {"name": "a"}]},
            })
        };
        let at = |list, index| Ok(Some(ContainerRef { list, index }));
        assert_eq!(share_container(&pod("b")), at("containers", 1));
        assert_eq!(share_container(&pod("a")), at("initContainers", 1));
        assert_eq!(
            share_container(&json!({"spec": {"containers": [{}]}})),
            at("containers", 0)
        );
        assert_eq!(share_container(&json!({"spec": 3})), Ok(None));
        for name in ["c", ""] {
            let error = share_container(&pod(name)).unwrap_err();
            assert_eq!(error.key(), "gpu-fraction-container-name");
            assert!(error.to_string().starts_with("the pod has no container"), "{error}");
        }
    }

    #[test]
    fn annotations_of_containers_name_the_container_too() {
        let find = |annotations: Value| {
            let pod = json!({
                "metadata": {"annotations": annotations},
                "spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]},
            });
            let found = share_container(&pod);
            found.map(|found| {
                found
                    .map(|found| format!("{} {}", found.list, found.index))
                    .unwrap_or_default()
            })
        };
        let found = |annotations| find(annotations).unwrap();
        let request = |container: &str| format!("nvidia.com/container.{container}.gpu-memory.request");
        assert_eq!(found(json!({request("b"): "8Gi"})), "containers 1");
        assert_eq!(found(json!({request("i"): "8Gi"})), "initContainers 0");
        assert_eq!(found(json!({"gpu-memory": "1", request("a"): "1Mi"})), "containers 0");
        assert_eq!(
            found(json!({"gpu-fraction": "0.5", "gpu-fraction-container-name": "b",
                "kai.scheduler/container.b.gpu-memory.portion.limit": "0.7"})),
            "containers 1"
        );
        let refused = |annotations| {
            let error = find(annotations).unwrap_err();
            format!("{}: {error}", error.key())
        };
        let other = |key: &str, container: &str, share: &str| {
            format!(
                "{key}: it names container \"{container}\", but the GPU share is for container \"{share}\", and a pod has one; name the \
                 same container in all annotations"
            )
        };
        let limit = "kai.scheduler/container.b.gpu-memory.portion.limit";
        assert_eq!(
            refused(json!({"gpu-fraction": "0.5", limit: "0.7"})),
            other(limit, "b", "a")
        );
        assert_eq!(
            refused(json!({request("a"): "1Gi", request("b"): "1Gi"})),
            other(&request("b"), "b", "a")
        );
        let named = json!({"gpu-fraction-container-name": "a", request("b"): "1Gi"});
        assert_eq!(refused(named), other(&request("b"), "b", "a"));
        for name in ["c", "", "a.b"] {
            let error = refused(json!({request(name): "1Gi"}));
            assert!(error.contains("the pod has no container"), "{error}");
        }
    }
}
