//! What can be typed: KAI's flags with their defaults, and a few of our own. What they mean is said in `settings`.

use crate::settings::BindRequests;

/// Flags of the scheduler.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Pods that ask for this scheduler are placed.
    #[arg(long, default_value = kai_api::keys::SCHEDULER_NAME)]
    pub scheduler_name: String,
    /// How the names of all metrics begin.
    #[arg(long, default_value = "kai")]
    pub metrics_namespace: String,
    /// Value of the label app on reservation pods, and the namespace they live in.
    #[arg(long, default_value = kai_api::keys::RESERVATION)]
    pub resource_reservation_app_label: String,
    /// Keep pods with GPUs on GPU workers and pods without on CPU workers.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub restrict_node_scheduling: bool,
    /// Label of the partition.
    #[arg(long, default_value = kai_api::keys::NODE_POOL)]
    pub nodepool_label_key: String,
    /// Label that names the queue.
    #[arg(long, default_value = kai_api::keys::QUEUE)]
    pub queue_label_key: String,
    /// The partition to schedule; empty for objects without the label.
    #[arg(long, default_value = "")]
    pub partition_label_value: String,
    /// Configuration file (YAML).
    #[arg(long, default_value = "")]
    pub scheduler_conf: String,
    /// At least so often a cycle is run.
    #[arg(long, default_value = "1s")]
    pub schedule_period: String,
    /// After a change, wait so long for more before a cycle is run.
    #[arg(long, default_value = "20ms")]
    pub gather_period: String,
    /// Which pods are bound through a BindRequest.
    #[arg(long, value_enum, default_value_t = BindRequests::WhenNeeded)]
    pub bind_requests: BindRequests,
    /// Compare the watches with fresh lists so often; 0 = never.
    #[arg(long, default_value = "5m")]
    pub audit_period: String,
    /// How many gangs consolidation may move for one; -1 = any number.
    #[arg(long, default_value_t = 16, allow_negative_numbers = true)]
    pub max_consolidation_preemptees: i64,
    /// Set the DisruptionTarget condition on pods before they are evicted.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub update_pod_eviction_condition: bool,
    /// Skip gangs no easier than one of the same shape that found no place.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub use_scheduling_signatures: bool,
    /// Share out along the whole tree of queues; otherwise all leaves are equals.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub full_hierarchy_fairness: bool,
    /// Let reclaim move gangs that stay within their rights.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub allow_consolidating_reclaim: bool,
    /// Workers that write conditions and events.
    #[arg(long, default_value_t = 5)]
    pub num_of_status_recording_workers: usize,
    /// Conditions and events per second.
    #[arg(long, default_value_t = 50)]
    pub qps: u32,
    /// Conditions and events that may be written at once after a quiet time.
    #[arg(long, default_value_t = 300)]
    pub burst: u32,
    /// How long a gang may run below its minimum; negative = for ever.
    #[arg(long, default_value = "60s", allow_hyphen_values = true)]
    pub default_staleness_grace_period: String,
    /// How long past its deletion time a pod counts as stuck.
    #[arg(long, default_value = "2m")]
    pub stuck_in_releasing_threshold: String,
    /// Label of nodes for pods without GPUs.
    #[arg(long, default_value = kai_api::keys::NODE_CPU_WORKER)]
    pub cpu_worker_node_label_key: String,
    /// Label of nodes for pods with GPUs.
    #[arg(long, default_value = kai_api::keys::NODE_GPU_WORKER)]
    pub gpu_worker_node_label_key: String,
    /// Label that says whether a node has MIG on; without it, one that offers MIG slices has.
    #[arg(long, default_value = kai_api::keys::NODE_MIG_ENABLED)]
    pub mig_worker_node_label_key: String,
    #[command(flatten)]
    moot: Moot,
}

/// Flags of KAI that mean nothing here. Manifests may pass them; who sets one to some effect is told that it has none.
#[derive(Clone, Debug, clap::Args)]
struct Moot {
    #[arg(long, hide = true, default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    detailed_fit_errors: bool,
    #[arg(long, hide = true, default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    schedule_csi_storage: bool,
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
    /// What to tell about flags that were set to some effect and have none.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let moot = &self.moot;
        let flags = [
            (
                moot.detailed_fit_errors,
                "--detailed-fit-errors: reasons count nodes by cause; /explain and kai simulate tell more",
            ),
            (
                moot.schedule_csi_storage,
                "--schedule-csi-storage: the capacity of storage is not looked at; pods wait until their claims are bound",
            ),
            (moot.enable_profiler, "--enable-profiler: there is no profiler inside"),
            (
                !moot.pyroscope_address.is_empty(),
                "--pyroscope-address: there is no profiler inside",
            ),
        ];
        let set = flags.into_iter().filter(|(set, _)| *set);
        set.map(|(_, text)| format!("a flag has no effect: {text}")).collect()
    }
}
