//! The node-scale adjuster: makes cluster autoscalers add nodes for pods that share GPUs.
//!
//! Autoscalers read resource requests. A pod with a GPU share has none for a GPU, so that no autoscaler adds a GPU node for it. For such
//! pods that wait the adjuster creates scaling pods: pods of the default scheduler that request whole GPUs, with the placement
//! constraints of the waiting pod. An autoscaler adds a node for them. A scaling pod is deleted once it has a node, or once its pod waits
//! no longer. Architecture invariant: the adjuster writes nothing but scaling pods, in their own namespace.

mod plan;
mod run;
mod scaling_pod;
mod waiting;

use kai_api::keys;
use kai_engine::model::GpuFraction;

pub use run::run;

/// The settings of the node-scale adjuster.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The adjuster acts for pods whose `spec.schedulerName` is this name.
    pub scheduler_name: String,
    /// Image of scaling pods: kai's.
    pub image: String,
    /// When kubelets pull the image.
    pub pull_policy: String,
    /// Namespace of scaling pods.
    pub namespace: String,
    /// Service account of scaling pods, which get no token.
    pub service_account: String,
    /// The part of a GPU that a pod with a request of GPU memory counts as: the size of the new node's GPUs is not known.
    pub memory_request: GpuFraction,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            scheduler_name: keys::SCHEDULER_NAME.to_owned(),
            image: "registry/local/kai-scheduler/kai:0.0.0".to_owned(),
            pull_policy: "IfNotPresent".to_owned(),
            namespace: keys::SCALE_ADJUST_NAMESPACE.to_owned(),
            service_account: keys::SCALE_ADJUST_NAMESPACE.to_owned(),
            memory_request: GpuFraction::from_billionths(100_000_000),
        }
    }
}
