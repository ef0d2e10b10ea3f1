//! The watches that the scheduler reads, and their way into the index.

use std::sync::Arc;
use std::time::Duration;

use kai_cluster::{Context, Subscription};
use tokio::sync::Notify;

use kai_mirror::ClusterMirror;

/// Pods with volume claims wait for these watches; a cluster without volumes, or without the right to see them, must not. The same holds
/// for ConfigMaps.
const VOLUMES_WITHIN: Duration = Duration::from_secs(10);

/// What is read.
pub(super) struct Sources {
    pods: Subscription<kai_api::Pod>,
    nodes: Subscription<kai_api::Node>,
    queues: Subscription<kai_api::Queue>,
    groups: Subscription<kai_api::PodGroup>,
    requests: Subscription<kai_api::BindRequest>,
    topologies: Subscription<kai_api::Topology>,
    classes: Subscription<kai_api::PriorityClass>,
    claims: Subscription<kai_api::PersistentVolumeClaim>,
    volumes: Subscription<kai_api::PersistentVolume>,
    config_maps: Subscription<kai_api::ConfigMap>,
}

impl Sources {
    pub(super) fn new(context: &Context, wake: &Arc<Notify>) -> Sources {
        let informers = &context.informers;
        Sources {
            pods: informers.pods().subscribe(wake),
            nodes: informers.nodes().subscribe(wake),
            queues: informers.queues().subscribe(wake),
            groups: informers.pod_groups().subscribe(wake),
            requests: informers.bind_requests().subscribe(wake),
            topologies: informers.topologies().subscribe(wake),
            classes: informers.priority_classes().subscribe(wake),
            claims: informers.volume_claims().subscribe(wake),
            volumes: informers.volumes().subscribe(wake),
            config_maps: informers.config_maps().subscribe(wake),
        }
    }

    /// Waits for all first lists: deciding on part of a cluster would give away what is taken.
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
        };
        let (volumes, config_maps) = tokio::join!(
            tokio::time::timeout(VOLUMES_WITHIN, volumes),
            tokio::time::timeout(VOLUMES_WITHIN, self.config_maps.informer().synced()),
        );
        if volumes.is_err() {
            tracing::warn!("volumes can't be watched; pods with volume claims wait");
        }
        if config_maps.is_err() {
            tracing::warn!("ConfigMaps can't be watched; pods are bound whether or not theirs exist");
        }
    }

    /// Takes in all that changed; what others refer to comes first. Of many changes the engine learns on the way.
    pub(super) fn take_into(&self, index: &mut ClusterMirror, engine: &mut kai_engine::Cluster) {
        for (key, class) in self.classes.take() {
            match class {
                Some(class) => index.apply_priority_class(&class),
                None => index.remove_priority_class(&key.name),
            }
        }
        for (key, topology) in self.topologies.take() {
            match topology {
                Some(topology) => index.apply_topology(&topology),
                None => index.remove_topology(&key.name),
            }
        }
        for (key, queue) in self.queues.take() {
            match queue {
                Some(queue) => index.apply_queue(&queue),
                None => index.remove_queue(&key.name),
            }
        }
        for (key, node) in self.nodes.take() {
            match node {
                Some(node) => index.apply_node(&node),
                None => index.remove_node(&key.name),
            }
        }
        for (key, volume) in self.volumes.take() {
            match volume {
                Some(volume) => index.apply_volume(&volume),
                None => index.remove_volume(&key.name),
            }
        }
        for (key, claim) in self.claims.take() {
            match claim {
                Some(claim) => index.apply_volume_claim(&key, &claim),
                None => index.remove_volume_claim(&key),
            }
        }
        for (key, config_map) in self.config_maps.take() {
            match config_map {
                Some(_) => index.apply_config_map(&key),
                None => index.remove_config_map(&key),
            }
        }
        if self.config_maps.informer().is_synced() {
            index.watch_config_maps();
        }
        self.take_workloads(index, engine);
    }

    fn take_workloads(&self, index: &mut ClusterMirror, engine: &mut kai_engine::Cluster) {
        let mut hand_over = |index: &mut ClusterMirror| index.hand_over(|event| engine.apply(event));
        for (key, group) in self.groups.take() {
            match group {
                Some(group) => index.apply_group(&key, &group),
                None => index.remove_group(&key),
            }
            hand_over(index);
        }
        for (key, request) in self.requests.take() {
            match request {
                Some(request) => index.apply_bind_request(&key, &request),
                None => index.remove_bind_request(&key),
            }
        }
        for (key, pod) in self.pods.take() {
            match pod {
                Some(pod) => index.apply_pod(&key, &pod),
                None => index.remove_pod(&key),
            }
            hand_over(index);
        }
    }
}
