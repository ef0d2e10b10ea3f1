//! Subscriptions to the watches of all kinds that a mirror needs.

use std::sync::Arc;
use std::time::Duration;

use kai_cluster::{Informers, Subscription};
use tokio::sync::Notify;

use kai_mirror::{ClusterMirror, MirrorSettings};

/// How long to wait for the lists of volumes and ConfigMaps at start. The scheduler starts without them where it lacks the permission to
/// watch them; then pods with volume claims stay pending.
const OPTIONAL_SYNC_TIMEOUT: Duration = Duration::from_secs(10);

/// One subscription per kind.
#[derive(Debug)]
pub struct Sources {
    pods: Subscription<kai_api::Pod>,
    nodes: Subscription<kai_api::Node>,
    queues: Subscription<kai_api::Queue>,
    groups: Subscription<kai_api::PodGroup>,
    requests: Subscription<kai_api::BindRequest>,
    topologies: Subscription<kai_api::Topology>,
    classes: Subscription<kai_api::PriorityClass>,
    claims: Subscription<kai_api::PersistentVolumeClaim>,
    volumes: Subscription<kai_api::PersistentVolume>,
    storage_classes: Subscription<kai_api::StorageClass>,
    csi_nodes: Subscription<kai_api::CsiNode>,
    config_maps: Subscription<kai_api::ConfigMap>,
    /// Only if storage is counted.
    storage: Option<Storage>,
}

/// What drivers say about their storage.
#[derive(Debug)]
struct Storage {
    drivers: Subscription<kai_api::CsiDriver>,
    capacities: Subscription<kai_api::CsiStorageCapacity>,
}

impl Sources {
    /// Subscribes to all informers. Each change wakes the reader.
    pub fn new(informers: &Informers, wake: &Arc<Notify>, settings: &MirrorSettings) -> Sources {
        Sources {
            pods: informers.pods().subscribe_with_terminal(wake),
            nodes: informers.nodes().subscribe(wake),
            queues: informers.queues().subscribe(wake),
            groups: informers.pod_groups().subscribe(wake),
            requests: informers.bind_requests().subscribe(wake),
            topologies: informers.topologies().subscribe(wake),
            classes: informers.priority_classes().subscribe(wake),
            claims: informers.volume_claims().subscribe(wake),
            volumes: informers.volumes().subscribe(wake),
            storage_classes: informers.storage_classes().subscribe(wake),
            csi_nodes: informers.csi_nodes().subscribe(wake),
            config_maps: informers.config_maps().subscribe(wake),
            storage: settings.counts_storage.then(|| Storage {
                drivers: informers.csi_drivers().subscribe(wake),
                capacities: informers.storage_capacities().subscribe(wake),
            }),
        }
    }

    /// Waits for the initial lists. On a part of the cluster the engine would give away resources that are in use.
    pub(super) async fn synced(&self) {
        self.nodes.informer().synced().await;
        self.pods.informer().synced().await;
        self.requests.informer().synced().await;
        self.queues.informer().synced().await;
        self.groups.informer().synced().await;
        self.topologies.informer().synced().await;
        self.classes.informer().synced().await;
        let volumes = async {
            self.claims.informer().synced().await;
            self.volumes.informer().synced().await;
            self.storage_classes.informer().synced().await;
        };
        let storage = async {
            if let Some(storage) = &self.storage {
                storage.drivers.informer().synced().await;
                storage.capacities.informer().synced().await;
            }
        };
        let (volumes, csi_nodes, storage, config_maps) = tokio::join!(
            tokio::time::timeout(OPTIONAL_SYNC_TIMEOUT, volumes),
            tokio::time::timeout(OPTIONAL_SYNC_TIMEOUT, self.csi_nodes.informer().synced()),
            tokio::time::timeout(OPTIONAL_SYNC_TIMEOUT, storage),
            tokio::time::timeout(OPTIONAL_SYNC_TIMEOUT, self.config_maps.informer().synced()),
        );
        if volumes.is_err() {
            tracing::warn!(
                "volumes, their claims or storage classes can't be watched; pods with volume claims stay pending"
            );
        }
        if csi_nodes.is_err() {
            tracing::warn!(
                "CSINodes can't be watched; pods are bound whether or not their nodes can attach more volumes"
            );
        }
        if storage.is_err() {
            tracing::warn!("CSIDrivers or CSIStorageCapacities can't be watched; --schedule-csi-storage does not work");
        }
        if config_maps.is_err() {
            tracing::warn!("ConfigMaps can't be watched; pods are bound whether or not theirs exist");
        }
    }

    /// Applies all changes to the mirror, referenced objects before those that refer to them. Passes batches of events on to the engine.
    pub fn apply_changes(&self, mirror: &mut ClusterMirror, engine: &mut kai_engine::Cluster) {
        for (key, class) in self.classes.take() {
            match class {
                Some(class) => mirror.apply_priority_class(&class),
                None => mirror.remove_priority_class(&key.name),
            }
        }
        for (key, topology) in self.topologies.take() {
            match topology {
                Some(topology) => mirror.apply_topology(&topology),
                None => mirror.remove_topology(&key.name),
            }
        }
        for (key, queue) in self.queues.take() {
            match queue {
                Some(queue) => mirror.apply_queue(&queue),
                None => mirror.remove_queue(&key.name),
            }
        }
        for (key, node) in self.nodes.take() {
            match node {
                Some(node) => mirror.apply_node(&node),
                None => mirror.remove_node(&key.name),
            }
        }
        for (key, class) in self.storage_classes.take() {
            match class {
                Some(class) => mirror.apply_storage_class(&class),
                None => mirror.remove_storage_class(&key.name),
            }
        }
        for (key, node) in self.csi_nodes.take() {
            match node {
                Some(node) => mirror.apply_csi_node(&node),
                None => mirror.remove_csi_node(&key.name),
            }
        }
        if let Some(storage) = &self.storage {
            for (key, driver) in storage.drivers.take() {
                match driver {
                    Some(driver) => mirror.apply_csi_driver(&driver),
                    None => mirror.remove_csi_driver(&key.name),
                }
            }
            for (key, capacity) in storage.capacities.take() {
                match capacity {
                    Some(capacity) => mirror.apply_storage_capacity(&key, &capacity),
                    None => mirror.remove_storage_capacity(&key),
                }
            }
        }
        for (key, volume) in self.volumes.take() {
            match volume {
                Some(volume) => mirror.apply_volume(&volume),
                None => mirror.remove_volume(&key.name),
            }
        }
        for (key, claim) in self.claims.take() {
            match claim {
                Some(claim) => mirror.apply_volume_claim(&key, &claim),
                None => mirror.remove_volume_claim(&key),
            }
        }
        for (key, config_map) in self.config_maps.take() {
            match config_map {
                Some(_) => mirror.apply_config_map(&key),
                None => mirror.remove_config_map(&key),
            }
        }
        if self.config_maps.informer().is_synced() {
            mirror.config_maps_synced();
        }
        self.apply_workload_changes(mirror, engine);
    }

    fn apply_workload_changes(&self, mirror: &mut ClusterMirror, engine: &mut kai_engine::Cluster) {
        let mut drain = |mirror: &mut ClusterMirror| mirror.drain_event_batch(|event| engine.apply(event));
        for (key, group) in self.groups.take() {
            match group {
                Some(group) => mirror.apply_pod_group(&key, &group),
                None => mirror.remove_pod_group(&key),
            }
            drain(mirror);
        }
        for (key, request) in self.requests.take() {
            match request {
                Some(request) => mirror.apply_bind_request(&key, &request),
                None => mirror.remove_bind_request(&key),
            }
        }
        for (key, pod) in self.pods.take() {
            match pod {
                Some(pod) => mirror.apply_pod(&key, &pod),
                None => mirror.remove_pod(&key),
            }
            drain(mirror);
        }
    }
}
