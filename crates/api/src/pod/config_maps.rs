//! The ConfigMaps that a pod requires: those of its environment and of mounted volumes, unless they are optional. The slim type keeps only
//! their names; most pods have none.

use serde::{Deserialize, Deserializer};

use super::chosen::chosen;
use super::template::Container;
use super::volumes::Volumes;
use crate::keys;
use crate::text::Text;

/// Kubernetes creates it in every namespace, and every pod with a service account refers to it.
const ROOT_CERTIFICATES: &str = "kube-root-ca.crt";

/// A reference to a ConfigMap in `env`, `envFrom` or a volume.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Reference {
    name: Option<Text>,
    optional: Option<bool>,
}

impl Reference {
    /// The name, unless the reference is optional.
    pub(super) fn required(self) -> Option<Text> {
        let name = self.name.filter(|_| self.optional != Some(true))?;
        (!name.is_empty() && &*name != ROOT_CERTIFICATES && !is_made_for_sharing(&name)).then_some(name)
    }
}

/// The binder creates these for one pod each, before it binds the pod. To keep them would make the specs of such pods differ.
fn is_made_for_sharing(name: &str) -> bool {
    let name = name.strip_suffix(keys::ENV_CONFIG_MAP_SUFFIX).unwrap_or(name);
    let Some((prefix, index)) = name.rsplit_once('-') else {
        return false;
    };
    let index = index.strip_prefix('i').unwrap_or(index);
    prefix.ends_with(keys::SHARED_GPU_SUFFIX) && !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit())
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawVariable {
    value_from: Option<RawSource>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawSource {
    config_map_key_ref: Option<Reference>,
    config_map_ref: Option<Reference>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawMount {
    name: Option<Text>,
}

pub(super) fn of_env<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Text>, D::Error> {
    chosen(deserializer, |variable: RawVariable| {
        variable.value_from?.config_map_key_ref?.required()
    })
}

pub(super) fn of_env_from<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Text>, D::Error> {
    chosen(deserializer, |source: RawSource| source.config_map_ref?.required())
}

pub(super) fn of_mounts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Text>, D::Error> {
    chosen(deserializer, |mount: RawMount| mount.name)
}

/// The names, sorted and without duplicates. Clears the containers' lists.
pub(super) fn required<'a>(containers: impl Iterator<Item = &'a mut Container>, volumes: &mut Volumes) -> Box<[Text]> {
    let mut names = Vec::new();
    for container in containers {
        let volume_mounts = std::mem::take(&mut container.volume_mounts);
        names.append(&mut std::mem::take(&mut container.env));
        names.append(&mut std::mem::take(&mut container.env_from));
        for (volume, map) in &volumes.config_maps {
            if volume_mounts.iter().any(|mount| **mount == **volume) {
                names.push(map.clone());
            }
        }
    }
    volumes.config_maps = Vec::new();
    names.sort_unstable();
    names.dedup();
    names.into()
}

#[cfg(test)]
mod tests {
    use super::super::Pod;

    fn required(annotation: &str, spec: &str) -> Vec<String> {
        let text = format!(
            r#"{{"metadata":{{"annotations":{{"runai/shared-gpu-configmap":"{annotation}"}}}},"spec":{spec}}}"#
        );
        let pod: Pod = serde_json::from_str(&text).unwrap();
        pod.config_maps().map(str::to_owned).collect()
    }

    #[test]
    fn environment_and_mounted_volumes_count_unless_they_are_optional() {
        let spec = r#"{
            "initContainers": [{"env": [
                {"name": "A", "value": "a"}, {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "key", "key": "k"}}},
                {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "no-key", "optional": true}}},
                {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}],
            "containers": [{
                "envFrom": [{"configMapRef": {"name": "all"}}, {"configMapRef": {"name": "not-all", "optional": true}},
                            {"secretRef": {"name": "secret"}}],
                "volumeMounts": [{"name": "v"}, {"name": "p"}, {"name": "kube-api-access-x"}]},
                {"envFrom": [{"configMapRef": {"name": "all"}}]}],
            "volumes": [
                {"name": "v", "configMap": {"name": "volume"}}, {"name": "unused", "configMap": {"name": "unmounted"}},
                {"name": "p", "projected": {"sources": [{"configMap": {"name": "projected"}}, {"secret": {}},
                                                        {"configMap": {"name": "perhaps", "optional": true}}]}},
                {"name": "kube-api-access-x", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]}}]}"#;
        assert_eq!(required("", spec), ["all", "key", "projected", "volume"]);
        assert_eq!(
            required(
                "",
                r#"{"containers":[{"env":null,"envFrom":null,"volumeMounts":null}],"volumes":null}"#
            ),
            [""; 0]
        );
    }

    #[test]
    fn what_the_binder_makes_is_not_waited_for() {
        let spec = r#"{"containers": [{"envFrom": [{"configMapRef": {"name": "job-abcdefg-shared-gpu-0-evar"}},
            {"configMapRef": {"name": "mine-i0-evar"}}, {"configMapRef": {"name": "x-shared-gpu-i12"}},
            {"configMapRef": {"name": "on-shared-gpu-nodes"}}]}]}"#;
        assert_eq!(required("mine", spec), ["on-shared-gpu-nodes"]);
    }
}
