//! What the flags mean.

use std::time::Duration;

use kai_api::Backoff;
use serde_json::Value;

use crate::books::Identity;

/// How the binder works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Pods of this scheduler are ours.
    pub scheduler_name: String,
    /// Where reservation pods live.
    pub reservation_namespace: String,
    /// Their service account.
    pub reservation_service_account: String,
    /// Their label `app`.
    pub reservation_app_label: String,
    /// Their image.
    pub reservation_image: String,
    /// What their container runs on nodes without the agent.
    pub reservation_arguments: Vec<String>,
    /// What their container runs on nodes with the agent: it only has to sleep.
    pub sleeper_arguments: Vec<String>,
    /// How long one may take to get its GPU.
    pub allocation_timeout: Duration,
    /// CPU, memory and the like of their container, as `requests` and `limits`; the mode's default fills what is missing.
    pub reservation_resources: Value,
    /// Their priority class; empty for none.
    pub reservation_priority_class: String,
    /// Security context of the pod; `None` for the default of the mode.
    pub pod_security_context: Option<Value>,
    /// Security context of the container; `None` for the default of the mode.
    pub container_security_context: Option<Value>,
    /// Their runtime class on nodes without the agent; empty for none.
    pub runtime_class: String,
    /// Who says which GPU a reservation pod holds.
    pub reservation_mode: ReservationMode,
    /// Which reservation pods get what a Jetson needs.
    pub tegra: TegraMode,
    /// Directories of the driver's libraries on Tegra nodes.
    pub tegra_library_paths: Vec<String>,
    /// Directory of the device nodes on Tegra nodes.
    pub tegra_device_path: String,
    /// Where scaling pods live.
    pub scale_adjust_namespace: String,
    /// Whether GPUs are named to containers as CDI devices.
    pub cdi: Choice,
    /// Whether the memory limit of HAMi's library is set.
    pub hami_core: bool,
    /// Bind requests in work at a time.
    pub workers_max: usize,
    /// Pauses after failures.
    pub backoff: Backoff,
}

/// Who says which GPU a reservation pod holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ReservationMode {
    /// The agent where the node has its label, else the pod itself.
    #[default]
    Auto,
    /// The node agent; the pod only sleeps.
    Agent,
    /// The pod itself, by NVML.
    Nvml,
}

/// Which reservation pods get what a Jetson needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TegraMode {
    /// Those on nodes that are one.
    #[default]
    Auto,
    /// All that find their GPU themselves.
    Always,
    /// None.
    Never,
}

/// Yes, no, or what the cluster looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Choice {
    /// What the cluster looks like.
    #[default]
    Auto,
    /// Yes.
    True,
    /// No.
    False,
}

impl Settings {
    pub(crate) fn identity(&self) -> Identity<'_> {
        Identity {
            scheduler_name: &self.scheduler_name,
            reservation_namespace: &self.reservation_namespace,
            app_label: &self.reservation_app_label,
        }
    }
}
