//! The command line: KAI's flags with their defaults, and a few of our own. `settings` interprets them.

use crate::settings::BindRequests;

/// Flags of the scheduler.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Schedule pods with this schedulerName.
    #[arg(long, default_value = kai_api::keys::SCHEDULER_NAME)]
    pub scheduler_name: String,
    /// Prefix of the names of all metrics.
    #[arg(long, default_value = "kai")]
    pub metrics_namespace: String,
    /// Namespace of reservation pods, as the binder has it.
    #[arg(long, default_value = kai_api::keys::RESERVATION)]
    pub resource_reservation_namespace: String,
    /// Value of the label app on reservation pods, as the binder has it.
    #[arg(long, default_value = kai_api::keys::RESERVATION)]
    pub resource_reservation_app_label: String,
    /// Schedule pods with GPUs on GPU workers only, and other pods on CPU workers only.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub restrict_node_scheduling: bool,
    /// Label key of node pools (partitions).
    #[arg(long, default_value = kai_api::keys::NODE_POOL)]
    pub nodepool_label_key: String,
    /// Label key of the queue.
    #[arg(long, default_value = kai_api::keys::QUEUE)]
    pub queue_label_key: String,
    /// The node pool to schedule; empty for objects without the label.
    #[arg(long, default_value = "")]
    pub partition_label_value: String,
    /// Configuration file (YAML).
    #[arg(long, default_value = "")]
    pub scheduler_conf: String,
    /// Longest time between the starts of two cycles.
    #[arg(long, default_value = "1s")]
    pub schedule_period: String,
    /// Time to gather more changes after the first one, before a cycle starts.
    #[arg(long, default_value = "20ms")]
    pub gather_period: String,
    /// Which pods to bind through a BindRequest.
    #[arg(long, value_enum, default_value_t = BindRequests::WhenNeeded)]
    pub bind_requests: BindRequests,
    /// Time between two audits, which compare the watches with fresh lists; 0 = no audits.
    #[arg(long, default_value = "5m")]
    pub audit_period: String,
    /// Gangs that consolidation may move for one pending gang; -1 = any number.
    #[arg(long, default_value_t = 16, allow_negative_numbers = true)]
    pub max_consolidation_preemptees: i64,
    /// Set the DisruptionTarget condition on pods before they are evicted.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub update_pod_eviction_condition: bool,
    /// Skip a gang if a gang of the same shape that needs no more could not be placed.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub use_scheduling_signatures: bool,
    /// Compute fair shares along the hierarchy of queues; otherwise all leaf queues are siblings.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub full_hierarchy_fairness: bool,
    /// Let reclaim move pods to other nodes; a moved pod does not count as taken from its queue.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub allow_consolidating_reclaim: bool,
    /// Number of workers that write conditions and events.
    #[arg(long, default_value_t = 5)]
    pub num_of_status_recording_workers: usize,
    /// Conditions and events to write per second.
    #[arg(long, default_value_t = 50)]
    pub qps: u32,
    /// Conditions and events to write at once after a quiet time.
    #[arg(long, default_value_t = 300)]
    pub burst: u32,
    /// How long a gang may run below its minimum before it is evicted; negative = forever.
    #[arg(long, default_value = "60s", allow_hyphen_values = true)]
    pub default_staleness_grace_period: String,
    /// Time after its deletion at which a terminating pod counts as stuck.
    #[arg(long, default_value = "2m")]
    pub stuck_in_releasing_threshold: String,
    /// Mode of GPU sharing: NonMemoryEnforced, HamiCore, NvFractions (pods with GPU shares need a node whose condition
    /// gpu-fractioning.nvidia.com/Ready is true) or Disabled (pods with GPU shares wait).
    #[arg(long, default_value_t)]
    pub gpu_sharing_mode: kai_api::GpuSharingMode,
    /// Bound new volumes by the free storage that CSI drivers report (CSIStorageCapacity).
    #[arg(long, default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub schedule_csi_storage: bool,
    /// Label key of nodes for pods without GPUs.
    #[arg(long, default_value = kai_api::keys::NODE_CPU_WORKER)]
    pub cpu_worker_node_label_key: String,
    /// Label key of nodes for pods with GPUs.
    #[arg(long, default_value = kai_api::keys::NODE_GPU_WORKER)]
    pub gpu_worker_node_label_key: String,
    /// Label key of nodes that says whether MIG is enabled; without the label, MIG is enabled where the node offers MIG slices.
    #[arg(long, default_value = kai_api::keys::NODE_MIG_ENABLED)]
    pub mig_worker_node_label_key: String,
    #[command(flatten)]
    ignored: IgnoredFlags,
}

/// Flags of KAI that have no effect here. Manifests may pass them; a value other than the default leads to a warning.
#[derive(Clone, Debug, clap::Args)]
struct IgnoredFlags {
    #[arg(long, hide = true, default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    detailed_fit_errors: bool,
    #[arg(long, hide = true, default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_profiler: bool,
    #[arg(long, hide = true, default_value = "")]
    pyroscope_address: String,
    #[arg(long, hide = true, default_value = "")]
    profiler_port: String,
    #[arg(long, hide = true, default_value = "")]
    pyroscope_mutex_profiler_rate: String,
    #[arg(long, hide = true, default_value = "")]
    pyroscope_block_profiler_rate: String,
    #[arg(long, hide = true, default_value = "")]
    log_flush_frequency: String,
    #[arg(long = "version", hide = true, default_value = "", default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    show_version: String,
}

impl Args {
    /// Warnings about flags that are set and have no effect.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let ignored = &self.ignored;
        let flags = [
            (
                ignored.detailed_fit_errors,
                "--detailed-fit-errors: reasons count nodes by cause; /explain and kai simulate show more",
            ),
            (
                ignored.enable_profiler,
                "--enable-profiler: there is no built-in profiler",
            ),
            (
                !ignored.pyroscope_address.is_empty(),
                "--pyroscope-address: there is no built-in profiler",
            ),
        ];
        let set = flags.into_iter().filter(|(set, _)| *set);
        set.map(|(_, text)| format!("a flag has no effect: {text}")).collect()
    }
}
