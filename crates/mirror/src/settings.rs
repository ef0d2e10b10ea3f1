//! Settings of the mirror: which pods, nodes and queues belong to this scheduler.

use kai_api::{PodIdentity, keys};

use crate::Partition;

/// Which part of the cluster the mirror shows to the engine.
#[derive(Clone, Debug)]
pub struct MirrorSettings {
    /// Pods that name this scheduler are placed.
    pub scheduler_name: String,
    /// Namespace of reservation pods.
    pub reservation_namespace: String,
    /// The part of the cluster to schedule.
    pub partition: Partition,
    /// The labels of GPU and CPU workers, if pods are kept to them.
    pub restrict_nodes: Option<WorkerLabels>,
    /// The label that says whether a node has MIG on.
    pub mig_label: String,
    /// Whether the tree of queues counts, or only its leaves.
    pub full_hierarchy_fairness: bool,
}

/// Labels that say what a node is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerLabels {
    /// For pods with GPUs.
    pub gpu: String,
    /// For pods without.
    pub cpu: String,
}

impl Default for MirrorSettings {
    /// The values of an installation that changes nothing.
    fn default() -> MirrorSettings {
        let identity = PodIdentity::default();
        MirrorSettings {
            scheduler_name: identity.scheduler_name,
            reservation_namespace: identity.reservation_namespace,
            partition: Partition::new(keys::NODE_POOL, ""),
            restrict_nodes: None,
            mig_label: keys::NODE_MIG_ENABLED.to_owned(),
            full_hierarchy_fairness: true,
        }
    }
}
