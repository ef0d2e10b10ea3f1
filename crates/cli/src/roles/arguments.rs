//! What can be typed after a role.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use kai_cluster::ClientConfig;

use super::serve::Readers;
use crate::all::{ROLES, Settings};
use crate::log::LogArguments;

/// How to reach the API server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// How to reach the API server; without it the pod's service account, or the user's own kubeconfig.
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

/// What every role's process has.
#[derive(Debug, Args)]
pub(crate) struct Process {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Where to serve /metrics, /readyz and /livez; nothing for nowhere.
    #[arg(long, help_heading = "Serving", value_name = "ADDRESS", default_value = ":8080", visible_aliases = ["metrics-bind-address", "metrics-listen-address"])]
    pub(crate) listen_address: String,
    /// Let everybody who can connect read /metrics. Without it, from elsewhere than this machine, it takes the token of an account
    /// that may: bind it to the ClusterRole kai-metrics-reader.
    #[arg(long)]
    open_metrics: bool,
    /// A second address for /readyz and /livez, for probes that are not to see the metrics' port.
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
    /// Means nothing here: features are asked of the API server. Taken, so that KAI's manifests work.
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

    /// What to tell about flags that were given and have no effect.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let gates = self.feature_gates.iter().filter(|gates| !gates.is_empty());
        gates
            .map(|gates| format!("a flag has no effect: --feature-gates={gates}: features are asked of the API server"))
            .collect()
    }
}

/// The API server bounds its clients itself.
#[derive(Debug, Args)]
pub(crate) struct IgnoredRates {
    #[arg(long, hide = true)]
    qps: Option<u32>,
    #[arg(long, hide = true)]
    burst: Option<u32>,
}

/// Replicas, of which one leads.
#[derive(Debug, Args)]
#[command(next_help_heading = "Election")]
pub(crate) struct Election {
    /// Several replicas run, and one of them leads.
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    pub(crate) leader_elect: bool,
    /// Namespace of kai, where the lease is.
    #[arg(long, default_value = "kai-scheduler", env = "NAMESPACE")]
    pub(crate) namespace: String,
}

/// Where the scheduler answers questions.
#[derive(Debug, Args)]
pub(crate) struct Questions {
    /// Port on the loopback interface for /get-snapshot, /get-job-order and /explain; 0 for none.
    #[arg(long, help_heading = "Serving", default_value_t = 8081)]
    plugin_server_port: u16,
}

impl Questions {
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        (self.plugin_server_port > 0).then(|| (Ipv4Addr::LOCALHOST, self.plugin_server_port).into())
    }
}

/// `kai scheduler`.
#[derive(Debug, Args)]
pub(crate) struct SchedulerArguments {
    #[command(flatten)]
    pub(crate) process: Process,
    #[command(flatten)]
    pub(crate) election: Election,
    #[command(flatten)]
    pub(crate) questions: Questions,
    #[command(flatten, next_help_heading = "Role")]
    pub(crate) role: kai_scheduler::Args,
}

/// `kai binder`.
#[derive(Debug, Args)]
pub(crate) struct BinderArguments {
    #[command(flatten)]
    pub(crate) process: Process,
    #[command(flatten)]
    pub(crate) election: Election,
    #[command(flatten, next_help_heading = "Role")]
    pub(crate) role: kai_binder::Args,
    #[command(flatten)]
    _rates: IgnoredRates,
}

/// `kai controllers`.
#[derive(Debug, Args)]
pub(crate) struct ControllersArguments {
    #[command(flatten)]
    pub(crate) process: Process,
    #[command(flatten)]
    pub(crate) election: Election,
    #[command(flatten, next_help_heading = "Role")]
    pub(crate) role: kai_controllers::Args,
    #[command(flatten)]
    _rates: IgnoredRates,
}

/// `kai admission`.
#[derive(Debug, Args)]
pub(crate) struct AdmissionArguments {
    #[command(flatten)]
    pub(crate) process: Process,
    #[command(flatten, next_help_heading = "Role")]
    pub(crate) role: kai_controllers::admission::Args,
    #[command(flatten)]
    _rates: IgnoredRates,
    /// Every replica answers.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    _leader_elect: Option<String>,
}

/// `kai all`: the flags that people set on small clusters. Large ones run the roles one by one, with all of theirs.
#[derive(Debug, Args)]
pub(crate) struct AllArguments {
    #[command(flatten)]
    pub(crate) process: Process,
    #[command(flatten)]
    pub(crate) election: Election,
    #[command(flatten)]
    questions: Questions,
    /// Without webhooks: parts of GPUs can't be asked for then.
    #[arg(long, help_heading = "Roles")]
    no_admission: bool,
    /// More flags of one role, as in `--role scheduler=--schedule-period=2s`. May be repeated.
    #[arg(long = "role", help_heading = "Roles", value_name = "ROLE=FLAG")]
    flags: Vec<String>,
}

impl AllArguments {
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        for flag in &self.flags {
            let of = flag.split_once('=').map(|(of, _)| of);
            if !of.is_some_and(|of| ROLES.contains(&of)) {
                anyhow::bail!(
                    "--role {flag}: write ROLE=FLAG with one of the roles {}",
                    ROLES.join(", ")
                );
            }
        }
        let mut settings = Settings::of_flags(|role| {
            let pairs = self.flags.iter().filter_map(|flag| flag.split_once('='));
            pairs
                .filter(|(of, _)| *of == role)
                .map(|(_, flag)| flag.to_owned())
                .collect()
        })?;
        settings.questions = self.questions.address();
        if self.no_admission {
            settings.admission = None;
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They show all of the cluster, to whoever can connect.
    #[test]
    fn questions_are_answered_on_this_machine_only() {
        let address = |plugin_server_port| Questions { plugin_server_port }.address();
        assert!(address(8081).is_some_and(|address| address.ip().is_loopback()));
        assert_eq!(address(0), None);
    }
}
