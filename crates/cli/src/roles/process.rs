//! Flags that the processes of all roles have in common.

use std::path::PathBuf;

use clap::Args;
use kai_cluster::ClientConfig;

use super::serve::Readers;
use crate::log::LogArguments;

/// How to reach the API server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// Kubeconfig file. Without it, kai uses the pod's service account or the user's own kubeconfig.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

impl Connection {
    pub(crate) fn access(&self) -> ClientConfig {
        self.kubeconfig
            .clone()
            .map_or(ClientConfig::Infer, ClientConfig::Kubeconfig)
    }
}

/// Connection, ports and log of a process.
#[derive(Debug, Args)]
pub(crate) struct Process {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Address that serves /metrics, /readyz and /livez; an empty one serves none.
    #[arg(long, help_heading = "Serving", value_name = "ADDRESS", default_value = ":8080", visible_aliases = ["metrics-bind-address", "metrics-listen-address"])]
    pub(crate) listen_address: String,
    /// Serve /metrics without a token. Otherwise a reader on another machine needs the token of an account with the ClusterRole
    /// kai-metrics-reader.
    #[arg(long)]
    open_metrics: bool,
    /// A second address for /readyz and /livez, for probes that must not reach the port of the metrics.
    #[arg(
        long,
        help_heading = "Serving",
        value_name = "ADDRESS",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) health_probe_bind_address: String,
    #[command(flatten)]
    pub(crate) log: LogArguments,
    /// Has no effect: kai asks the API server for its features. Accepted because KAI's manifests have it.
    #[arg(long, hide = true)]
    feature_gates: Option<String>,
}

impl Process {
    pub(super) fn readers(&self) -> Readers {
        match self.open_metrics {
            true => Readers::Everybody,
            false => Readers::Known,
        }
    }

    /// Warnings about flags that were given and have no effect.
    pub(super) fn warnings(&self) -> Vec<String> {
        let gates = self.feature_gates.iter().filter(|gates| !gates.is_empty());
        gates
            .map(|gates| format!("a flag has no effect: --feature-gates={gates}: features are asked of the API server"))
            .collect()
    }
}

/// Rates of calls, which KAI's manifests set. They have no effect: the API server limits its clients itself.
#[derive(Debug, Args)]
pub(crate) struct IgnoredRates {
    #[arg(long, hide = true)]
    qps: Option<u32>,
    #[arg(long, hide = true)]
    burst: Option<u32>,
}

/// Leader election among the replicas of a role.
#[derive(Debug, Args)]
#[command(next_help_heading = "Election")]
pub(crate) struct Election {
    /// Elect a leader among several replicas; only the leader writes.
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    pub(crate) leader_elect: bool,
    /// Namespace of kai, which holds the lease.
    #[arg(long, default_value = "kai-scheduler", env = "NAMESPACE")]
    pub(crate) namespace: String,
}
