//! The settings of the binder, as the flags give them.

use std::time::Duration;

use kai_api::{Backoff, GpuSharingMode, PodIdentity};
use serde_json::Value;

/// Settings of the binder.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The scheduler whose pods the binder binds, and the reservation pods.
    pub identity: PodIdentity,
    /// Service account of reservation pods.
    pub reservation_service_account: String,
    /// Image of reservation pods.
    pub reservation_image: String,
    /// Pull policy of that image.
    pub reservation_pull_policy: String,
    /// Arguments of the reservation container on nodes without the node agent.
    pub reservation_arguments: Vec<String>,
    /// Arguments of the reservation container on nodes with the node agent, where it only sleeps.
    pub sleeper_arguments: Vec<String>,
    /// How long a reservation pod may take to get its GPU.
    pub allocation_timeout: Duration,
    /// How long the claims of a pod may take to get their volumes.
    pub volume_binding_timeout: Duration,
    /// `requests` and `limits` of the reservation container; the mode's defaults fill in missing amounts.
    pub reservation_resources: Value,
    /// Priority class of reservation pods; empty for none.
    pub reservation_priority_class: String,
    /// Security context of reservation pods; `None` for the mode's default.
    pub pod_security_context: Option<Value>,
    /// Security context of the reservation container; `None` for the mode's default.
    pub container_security_context: Option<Value>,
    /// Runtime class of reservation pods on nodes without the node agent; empty for none.
    pub runtime_class: String,
    /// Which process annotates a reservation pod with its GPU.
    pub reservation_mode: ReservationMode,
    /// Which reservation pods get the libraries, devices and privileges that a Jetson needs.
    pub tegra: TegraMode,
    /// Directories of the driver's libraries on Tegra nodes.
    pub tegra_library_paths: Vec<String>,
    /// Directory of the device nodes on Tegra nodes.
    pub tegra_device_path: String,
    /// Namespace of the scaling pods, which make a cluster autoscaler add nodes.
    pub scale_adjust_namespace: String,
    /// Whether containers get GPUs as CDI devices.
    pub cdi: Choice,
    /// How pods share GPUs.
    pub gpu_sharing: GpuSharingMode,
    /// BindRequests in work at a time.
    pub workers_max: usize,
    /// Backoff of both work queues.
    pub backoff: Backoff,
}

/// Which process annotates a reservation pod with its GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ReservationMode {
    /// The node agent on nodes with its label, otherwise the pod itself.
    #[default]
    Auto,
    /// The node agent; the pod only sleeps.
    Agent,
    /// The pod itself, by NVML.
    Nvml,
}

/// Which reservation pods get the libraries, devices and privileges that a Jetson needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TegraMode {
    /// Pods on Jetsons.
    #[default]
    Auto,
    /// All pods that find their GPU themselves.
    Always,
    /// No pods.
    Never,
}

/// Yes, no, or detect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Choice {
    /// Detect it from the cluster.
    #[default]
    Auto,
    /// Yes.
    True,
    /// No.
    False,
}

impl Settings {
    /// Namespace of reservation pods.
    pub fn reservation_namespace(&self) -> &str {
        &self.identity.reservation_pods.namespace
    }
}
