//! Settings of the mirror: which pods, nodes and queues belong to this scheduler.

use kai_api::{GpuSharingMode, PodIdentity, ReservationPods, keys};

use crate::{BackgroundSelector, Partition};

/// Which objects the mirror passes on to the engine. Fixed for the lifetime of a mirror.
#[derive(Clone, Debug)]
pub struct MirrorSettings {
    /// The engine places pods with this `schedulerName`.
    pub scheduler_name: String,
    /// Which pods are reservation pods.
    pub reservation_pods: ReservationPods,
    /// The part of the cluster to schedule.
    pub partition: Partition,
    /// If set, GPU pods need a node with the GPU worker label, and other pods one with the CPU worker label.
    pub restrict_nodes: Option<WorkerLabels>,
    /// The node label that says whether MIG is enabled.
    pub mig_label: String,
    /// Whether fair shares follow the hierarchy of queues. Otherwise all leaf queues are siblings.
    pub full_hierarchy_fairness: bool,
    /// Whether the mirror is given the reservation pods. Without them no GPU group counts as unreserved, and no reservation is suspected.
    pub reservation_pod_list: ObjectList,
    /// Whether the mirror is given the volume claims and volumes. Without them volumes do not restrict pods.
    pub volume_list: ObjectList,
    /// Whether new volumes are bounded by the free storage that their drivers report.
    pub counts_storage: bool,
    /// Whether the mirror is given the ConfigMaps, once [`ClusterMirror::config_maps_synced`](crate::ClusterMirror::config_maps_synced) says so.
    pub config_map_list: ObjectList,
    /// The mode of GPU sharing: on which nodes pods with GPU shares start, or that they wait.
    pub gpu_sharing: GpuSharingMode,
    /// Which pods are background pods.
    pub background: BackgroundSelector,
}

impl MirrorSettings {
    /// Which pods are those of the scheduler.
    pub fn identity(&self) -> PodIdentity {
        PodIdentity {
            scheduler_name: self.scheduler_name.clone(),
            reservation_pods: self.reservation_pods.clone(),
        }
    }
}

/// Whether the mirror is given all objects of a kind. A scheduler watches every kind; the files of `kai simulate` may leave kinds out, and a
/// person who looks at a cluster may lack the right to list them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObjectList {
    /// An object that was not applied does not exist.
    #[default]
    Complete,
    /// The objects of the kind are unknown: the absence of an object has no effect.
    Unknown,
    /// The objects of the kind are unknown, but a scheduler that has them wrote conditions: a pod that names such an object and has the
    /// condition `PodScheduled=False` is refused with the condition's message. Never for the scheduler itself, whose own conditions would
    /// then keep its pods waiting.
    ByCondition,
}

/// Keys of the labels that mark worker nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerLabels {
    /// Marks nodes for pods with GPUs.
    pub gpu: String,
    /// Marks nodes for pods without GPUs.
    pub cpu: String,
}

impl Default for WorkerLabels {
    /// KAI's keys.
    fn default() -> WorkerLabels {
        WorkerLabels {
            gpu: "node-role.kubernetes.io/gpu-worker".to_owned(),
            cpu: "node-role.kubernetes.io/cpu-worker".to_owned(),
        }
    }
}

impl Default for MirrorSettings {
    /// The defaults of an installation.
    fn default() -> MirrorSettings {
        let identity = PodIdentity::default();
        MirrorSettings {
            scheduler_name: identity.scheduler_name,
            reservation_pods: identity.reservation_pods,
            partition: Partition::new(keys::NODE_POOL, ""),
            restrict_nodes: None,
            mig_label: keys::NODE_MIG_ENABLED.to_owned(),
            full_hierarchy_fairness: true,
            reservation_pod_list: ObjectList::Complete,
            volume_list: ObjectList::Complete,
            counts_storage: false,
            config_map_list: ObjectList::Complete,
            gpu_sharing: GpuSharingMode::default(),
            background: BackgroundSelector::default(),
        }
    }
}
