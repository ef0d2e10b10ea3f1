//! ConfigMaps that pending pods name. A pod whose ConfigMap does not exist can't start; bound, it would hold its GPU idle. It stays
//! pending until the ConfigMap exists, as in KAI.

use kai_api::{ObjectKey, Pod};
use kai_engine::model::PodSpec;
use kai_engine::reasons::Refusal;
use rustc_hash::{FxHashMap, FxHashSet};

use super::volumes::keep_condition;
use super::{ClusterMirror, ObjectList};

/// Missing ConfigMaps that a reason lists by name.
const NAMES_MAX: usize = 5;

/// The existing ConfigMaps, and the pending pods by the ConfigMaps that they require.
#[derive(Debug, Default)]
pub(super) struct ConfigMaps {
    /// Whether the list of ConfigMaps is complete. Without it, as without the permission to list them, no pod is refused.
    synced: bool,
    existing: FxHashSet<ObjectKey>,
    pending_pods: FxHashMap<ObjectKey, FxHashSet<ObjectKey>>,
}

impl ClusterMirror {
    /// All ConfigMaps were listed. From now on a ConfigMap that was not applied does not exist.
    pub fn config_maps_synced(&mut self) {
        if std::mem::replace(&mut self.config_maps.synced, true) {
            return;
        }
        let named: Vec<ObjectKey> = self.config_maps.pending_pods.keys().cloned().collect();
        for map in named {
            self.refresh_pods_of_config_map(&map);
        }
    }

    /// The ConfigMap exists.
    pub fn apply_config_map(&mut self, key: &ObjectKey) {
        if self.config_maps.existing.insert(key.clone()) {
            self.refresh_pods_of_config_map(key);
        }
    }

    /// The ConfigMap was deleted.
    pub fn remove_config_map(&mut self, key: &ObjectKey) {
        if self.config_maps.existing.remove(key) {
            self.refresh_pods_of_config_map(key);
        }
    }

    /// Refuses the pod while a ConfigMap that it needs does not exist.
    pub(super) fn require_config_maps(&mut self, key: &ObjectKey, pod: &Pod, spec: &mut PodSpec) {
        match self.config_map_list {
            ObjectList::Complete => {}
            ObjectList::Unknown => return,
            ObjectList::ByCondition => {
                if pod.config_maps().next().is_some() {
                    keep_condition(pod, spec);
                }
                return;
            }
        }
        let maps = &mut self.config_maps;
        let mut missing = Vec::new();
        for name in pod.config_maps() {
            let map = ObjectKey::new(&key.namespace, name);
            if maps.synced && !maps.existing.contains(&map) {
                missing.push(name);
            }
            maps.pending_pods.entry(map).or_default().insert(key.clone());
        }
        if !missing.is_empty() {
            spec.refused.get_or_insert_with(|| refusal(&key.namespace, &missing));
        }
    }

    /// The pod is bound or gone.
    pub(super) fn forget_config_map_user(&mut self, key: &ObjectKey, pod: &Pod) {
        for name in pod.config_maps() {
            let map = ObjectKey::new(&key.namespace, name);
            if let Some(pods) = self.config_maps.pending_pods.get_mut(&map) {
                pods.remove(key);
                if pods.is_empty() {
                    self.config_maps.pending_pods.remove(&map);
                }
            }
        }
    }

    fn refresh_pods_of_config_map(&mut self, map: &ObjectKey) {
        let pods = self.config_maps.pending_pods.get(map).into_iter().flatten();
        let pods: Vec<ObjectKey> = pods.cloned().collect();
        for pod in pods {
            self.refresh_pod(&pod);
        }
    }
}

fn refusal(namespace: &str, missing: &[&str]) -> Refusal {
    let named = &missing[..missing.len().min(NAMES_MAX)];
    Refusal::ConfigMapsMissing {
        namespace: namespace.to_owned(),
        names: named.iter().map(|name| (*name).to_owned()).collect(),
        more: missing.len() - named.len(),
    }
}
