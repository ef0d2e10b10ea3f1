//! The container of a pod that gets the GPU share.

use serde_json::Value;

use crate::keys;

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

/// The annotation `gpu-fraction-container-name` names a container that the pod does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pod has no container {0:?}; name one of its containers or init containers")]
pub struct NoSuchContainer(String);

/// The container that gets the GPU share: the one in the pod's annotation, among the init containers first, and without the annotation the
/// first container. `None` if the pod has no container.
///
/// As in KAI, an annotation with an empty value names a container that no pod has.
pub fn share_container(pod: &Value) -> Result<Option<ContainerRef>, NoSuchContainer> {
    let list = |list: &str| {
        let list = pod["spec"][list].as_array().map_or(&[][..], Vec::as_slice);
        // The search below walks over the list.
        kai_engine::steps::count(1 + list.len());
        list
    };
    if list("containers").is_empty() {
        return Ok(None);
    }
    let Some(name) = pod["metadata"]["annotations"].get(keys::GPU_FRACTION_CONTAINER) else {
        return Ok(Some(ContainerRef {
            list: "containers",
            index: 0,
        }));
    };
    let name = name.as_str().unwrap_or_default();
    let named = |of: &'static str| {
        let index = list(of).iter().position(|container| container["name"] == name)?;
        Some(ContainerRef { list: of, index })
    };
    let found = named("initContainers").or_else(|| named("containers"));
    found.map(Some).ok_or_else(|| NoSuchContainer(name.to_owned()))
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
        assert_eq!(share_container(&pod("c")), Err(NoSuchContainer("c".to_owned())));
        assert_eq!(share_container(&pod("")), Err(NoSuchContainer(String::new())));
    }
}
