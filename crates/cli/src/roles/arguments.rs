//! What can be typed after a role.

use std::path::PathBuf;

use clap::Args;
use cluster::Access;

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
    pub(crate) fn access(&self) -> Access {
        self.kubeconfig.clone().map_or(Access::Infer, Access::Kubeconfig)
    }
}

/// What every role's process has.
#[derive(Debug, Args)]
pub(crate) struct Process {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Where to serve /metrics, /readyz and /livez; nothing for nowhere.
    #[arg(long, value_name = "ADDRESS", default_value = ":8080", visible_aliases = ["metrics-bind-address", "metrics-listen-address"])]
    pub(crate) listen_address: String,
    /// Several replicas run, and one of them leads.
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub(crate) leader_elect: bool,
    /// Namespace of kai, where the lease is.
    #[arg(long, default_value = "kai-scheduler", env = "NAMESPACE")]
    pub(crate) namespace: String,
    #[command(flatten)]
    pub(crate) log: LogArguments,
}

macro_rules! role {
    ($(#[$doc:meta])* $name:ident, $args:ty) => {
        $(#[$doc])*
        #[derive(Debug, Args)]
        pub(crate) struct $name {
            #[command(flatten)]
            pub(crate) process: Process,
            #[command(flatten)]
            pub(crate) role: $args,
        }
    };
}

role!(
    /// `kai scheduler`.
    SchedulerArguments,
    scheduler::Args
);
role!(
    /// `kai binder`.
    BinderArguments,
    binder::Args
);
role!(
    /// `kai controllers`.
    ControllersArguments,
    controllers::Args
);
role!(
    /// `kai admission`.
    AdmissionArguments,
    controllers::admission::Args
);

/// `kai all`: the flags that people set on small clusters. Large ones run the roles one by one, with all of theirs.
#[derive(Debug, Args)]
pub(crate) struct AllArguments {
    #[command(flatten)]
    pub(crate) process: Process,
    /// Without webhooks: parts of GPUs can't be asked for then.
    #[arg(long)]
    no_admission: bool,
    /// More flags of one role, as in `--role scheduler=--schedule-period=2s`. May be repeated.
    #[arg(long = "role", value_name = "ROLE=FLAG")]
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
        if self.no_admission {
            settings.admission = None;
        }
        Ok(settings)
    }
}
