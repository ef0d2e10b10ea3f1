//! The spec of a pod: its node, and the rest. Pods of one workload share one copy of the rest.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHasher;
use serde::{Deserialize, Deserializer};

use super::volumes::Volumes;
use super::{config_maps, constraints};
use crate::resources::{RawResources, ResourceRequirements};
use crate::text::{Text, null_as_default};

/// Buckets of the template cache. Lists are sorted by name, so that pods of one workload come close together.
const BUCKETS: usize = 1024;

/// A plain lock: held for one look-up.
static CACHE: Mutex<Vec<Option<Arc<Template>>>> = Mutex::new(Vec::new());

/// The spec of a pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Spec {
    pub(super) node_name: Option<Text>,
    rest: Arc<Template>,
}

impl PartialEq for Spec {
    fn eq(&self, other: &Spec) -> bool {
        self.node_name == other.node_name && (Arc::ptr_eq(&self.rest, &other.rest) || self.rest == other.rest)
    }
}

impl Deref for Spec {
    type Target = Template;
    fn deref(&self) -> &Template {
        &self.rest
    }
}

impl<'de> Deserialize<'de> for Spec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut rest = Template::deserialize(deserializer)?;
        Ok(Spec {
            node_name: rest.node_name.take(),
            rest: rest.with_config_maps().shared(),
        })
    }
}

/// The spec without the node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Template {
    pub(super) scheduler_name: Option<Text>,
    /// `Spec` takes it out after parsing.
    node_name: Option<Text>,
    pub(super) priority_class_name: Option<Text>,
    pub(super) host_network: Option<bool>,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) containers: Vec<Container>,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) init_containers: Vec<Container>,
    pub(super) overhead: RawResources,
    pub(super) resources: Option<Box<ResourceRequirements>>,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) scheduling_gates: Vec<serde::de::IgnoredAny>,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) resource_claims: Vec<serde::de::IgnoredAny>,
    pub(super) node_selector: crate::text::TextMap,
    pub(super) affinity: Option<Box<constraints::RawAffinity>>,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) tolerations: Vec<constraints::RawToleration>,
    pub(super) volumes: Volumes,
    /// Names of the required ConfigMaps.
    #[serde(skip)]
    pub(super) config_maps: Box<[Text]>,
}

impl Template {
    /// Computes `config_maps` from containers and volumes.
    fn with_config_maps(mut self) -> Template {
        let containers = self.init_containers.iter_mut().chain(&mut self.containers);
        self.config_maps = config_maps::required(containers, &mut self.volumes);
        self
    }

    /// The template, shared with an equal one in the cache.
    fn shared(self) -> Arc<Template> {
        let mut buckets = CACHE.lock();
        if buckets.is_empty() {
            buckets.resize(BUCKETS, None);
        }
        // The cast only drops bits that the remainder does not need.
        let bucket = self.digest() as usize % BUCKETS;
        match &mut buckets[bucket] {
            Some(same) if **same == self => Arc::clone(same),
            other => Arc::clone(other.insert(Arc::new(self))),
        }
    }

    /// A hash of the fields in which pods differ most.
    fn digest(&self) -> u64 {
        let mut hasher = FxHasher::default();
        (&self.scheduler_name, &self.priority_class_name, self.tolerations.len()).hash(&mut hasher);
        for container in &self.containers {
            for (name, amount) in container.resources.requests.iter() {
                (name, amount.as_str()).hash(&mut hasher);
            }
        }
        hasher.finish()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Container {
    #[serde(deserialize_with = "null_as_default")]
    pub(super) name: Text,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) resources: ResourceRequirements,
    pub(super) restart_policy: Option<Text>,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) ports: Vec<constraints::RawPort>,
    /// ConfigMaps of `env`; empty after parsing.
    #[serde(deserialize_with = "config_maps::of_env")]
    pub(super) env: Vec<Text>,
    /// ConfigMaps of `envFrom`; empty after parsing.
    #[serde(deserialize_with = "config_maps::of_env_from")]
    pub(super) env_from: Vec<Text>,
    /// Mounted volumes; empty after parsing.
    #[serde(deserialize_with = "config_maps::of_mounts")]
    pub(super) volume_mounts: Vec<Text>,
}

impl Container {
    /// A native sidecar: an init container that keeps running.
    pub(super) fn is_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_made_alike_share_all_but_their_node() {
        let spec = |node: &str, gpus: u32| -> Spec {
            let text = format!(
                r#"{{"nodeName":"{node}","containers":[{{"resources":{{"requests":{{"nvidia.com/gpu":{gpus}}}}}}}]}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let (one, other) = (spec("a", 1), spec("b", 1));
        assert!(Arc::ptr_eq(&one.rest, &other.rest));
        assert_eq!(
            (one.node_name.as_deref(), other.node_name.as_deref()),
            (Some("a"), Some("b"))
        );
        assert!(one.rest.node_name.is_none());
        assert_ne!(*one, *spec("a", 2));
    }
}
