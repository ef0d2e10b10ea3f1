//! ConfigMaps that waiting pods name. A pod whose ConfigMap does not exist could not start: bound, it would hold its GPU for nothing. It
//! waits until the ConfigMap is there, as in KAI.

use kai_api::{ObjectKey, Pod};
use kai_engine::model::PodSpec;
use rustc_hash::{FxHashMap, FxHashSet};

use super::ClusterMirror;

/// Missing ConfigMaps that a reason lists by name.
const NAMES_MAX: usize = 5;

/// The ConfigMaps that there are, and the pods that wait with one that they need.
#[derive(Debug, Default)]
pub(super) struct ConfigMaps {
    /// Whether ConfigMaps can be seen at all; otherwise no pod waits for one.
    watched: bool,
    present: FxHashSet<ObjectKey>,
    users: FxHashMap<ObjectKey, FxHashSet<ObjectKey>>,
}

impl ClusterMirror {
    /// All ConfigMaps were listed: from now on a ConfigMap that was not told of does not exist.
    pub fn watch_config_maps(&mut self) {
        if std::mem::replace(&mut self.config_maps.watched, true) {
            return;
        }
        let named: Vec<ObjectKey> = self.config_maps.users.keys().cloned().collect();
        for map in named {
            self.refresh_config_map_users(&map);
        }
    }

    /// The ConfigMap exists.
    pub fn apply_config_map(&mut self, key: &ObjectKey) {
        if self.config_maps.present.insert(key.clone()) {
            self.refresh_config_map_users(key);
        }
    }

    /// The ConfigMap was deleted.
    pub fn remove_config_map(&mut self, key: &ObjectKey) {
        if self.config_maps.present.remove(key) {
            self.refresh_config_map_users(key);
        }
    }

    /// Refuses the pod while a ConfigMap that it needs does not exist.
    pub(super) fn need_config_maps(&mut self, key: &ObjectKey, pod: &Pod, spec: &mut PodSpec) {
        let maps = &mut self.config_maps;
        let mut missing = Vec::new();
        for name in pod.config_maps() {
            let map = ObjectKey::new(&key.namespace, name);
            if maps.watched && !maps.present.contains(&map) {
                missing.push(name);
            }
            maps.users.entry(map).or_default().insert(key.clone());
        }
        if !missing.is_empty() {
            spec.refused.get_or_insert_with(|| refusal(&key.namespace, &missing));
        }
    }

    /// The pod does not wait any more.
    pub(super) fn leave_config_maps(&mut self, key: &ObjectKey, pod: &Pod) {
        for name in pod.config_maps() {
            let map = ObjectKey::new(&key.namespace, name);
            if let Some(users) = self.config_maps.users.get_mut(&map) {
                users.remove(key);
                if users.is_empty() {
                    self.config_maps.users.remove(&map);
                }
            }
        }
    }

    fn refresh_config_map_users(&mut self, map: &ObjectKey) {
        let users = self.config_maps.users.get(map).into_iter().flatten();
        let users: Vec<ObjectKey> = users.cloned().collect();
        for pod in users {
            self.refresh_pod(&pod);
        }
    }
}

/// KAI's words first, since its users look for them.
fn refusal(namespace: &str, missing: &[&str]) -> String {
    let more = match missing.len().saturating_sub(NAMES_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let shown = &missing[..missing.len().min(NAMES_MAX)];
    format!(
        "Missing required configmaps: {}{more}; create them in namespace {namespace}, or mark them as optional in the pod",
        shown.join(", ")
    )
}
