//! The free storage from which drivers make new volumes. It counts only if the settings say so, and only for drivers that report it.

use std::sync::Arc;

use kai_api::{CsiDriver, CsiStorageCapacity, Object, ObjectKey, ObjectReference, StorageCapacity, StorageClass};
use kai_engine::model::StorageSegment;
use kai_engine::steps;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{ClusterMirror, uid_of};

/// What drivers report.
#[derive(Debug, Default)]
pub(super) struct Storage {
    /// Drivers that report their capacity.
    drivers: FxHashSet<Box<str>>,
    /// By object: the class and its storage.
    capacities: FxHashMap<ObjectKey, (Box<str>, StorageCapacity)>,
    by_class: FxHashMap<Box<str>, FxHashSet<ObjectKey>>,
}

impl Storage {
    /// Whether the storage of the class is counted.
    pub(super) fn is_counted(&self, class: &StorageClass) -> bool {
        class.provisioner().is_some_and(|driver| self.drivers.contains(driver))
    }

    /// The free storage of the class with room for a volume of this size, in an order that does not depend on history.
    pub(super) fn segments(&self, class: &str, bytes: i64) -> Vec<Arc<StorageSegment>> {
        let mut keys: Vec<&ObjectKey> = self.by_class.get(class).into_iter().flatten().collect();
        keys.sort_unstable();
        steps::count(keys.len());
        let capacities = keys.into_iter().map(|key| &self.capacities[key].1);
        let segment = |capacity: &StorageCapacity| StorageSegment {
            nodes: capacity.nodes.clone(),
            bytes: capacity.bytes,
        };
        let with_room = capacities.filter(|capacity| capacity.volume_bytes_max >= bytes);
        with_room.map(|capacity| Arc::new(segment(capacity))).collect()
    }

    /// Returns the class of the storage.
    fn remove(&mut self, key: &ObjectKey) -> Option<Box<str>> {
        let (class, _) = self.capacities.remove(key)?;
        if let Some(keys) = self.by_class.get_mut(&class) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_class.remove(&class);
            }
        }
        Some(class)
    }
}

impl ClusterMirror {
    /// The CSIDriver was added or changed.
    pub fn apply_csi_driver(&mut self, driver: &CsiDriver) {
        let name = driver.metadata().plain_name();
        let drivers = &mut self.volumes.storage.drivers;
        let is_changed = match self.counts_storage && driver.reports_capacity() {
            true => drivers.insert(name.into()),
            false => drivers.remove(name),
        };
        if is_changed {
            self.refresh_pods_of_driver(name);
        }
    }

    /// The CSIDriver was deleted.
    pub fn remove_csi_driver(&mut self, name: &str) {
        if self.volumes.storage.drivers.remove(name) {
            self.refresh_pods_of_driver(name);
        }
    }

    /// The CSIStorageCapacity was added or changed.
    pub fn apply_storage_capacity(&mut self, key: &ObjectKey, capacity: &CsiStorageCapacity) {
        let read = capacity.read().unwrap_or_else(|problem| {
            self.report_problem(|| ObjectReference::of(capacity), uid_of(capacity), problem);
            None
        });
        self.remove_storage_capacity(key);
        let Some(read) = read else { return };
        let class: Box<str> = capacity.storage_class_name().into();
        self.volumes.pools.class_changed(&class);
        let storage = &mut self.volumes.storage;
        storage.by_class.entry(class.clone()).or_default().insert(key.clone());
        storage.capacities.insert(key.clone(), (class, read));
    }

    /// The CSIStorageCapacity was deleted.
    pub fn remove_storage_capacity(&mut self, key: &ObjectKey) {
        if let Some(class) = self.volumes.storage.remove(key) {
            self.volumes.pools.class_changed(&class);
        }
    }

    /// Refreshes the pods whose claims have a class of the driver.
    fn refresh_pods_of_driver(&mut self, driver: &str) {
        let classes = self.volumes.classes.iter();
        let of_driver = classes.filter(|(_, class)| class.provisioner() == Some(driver));
        let names: Vec<Box<str>> = of_driver.map(|(name, _)| name.clone()).collect();
        for class in names {
            self.refresh_pods_of_class(&class);
        }
    }
}
