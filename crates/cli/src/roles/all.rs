//! `kai all`: every role of the cluster's side in one process. It has the flags that people set on small clusters; large clusters run
//! the roles one by one, each with all of its flags.

use std::process::ExitCode;

use clap::Args;
use kai_controllers::installation::InstallationArgs;

use super::process::{Election, Process};
use super::run::{Leadership, install_and_run};
use super::scheduler::DebugEndpoints;
use super::table::{ROLES, RoleSettings};

const LEASE: &str = "kai-all";

/// The flags of `kai all`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    process: Process,
    #[command(flatten)]
    election: Election,
    #[command(flatten)]
    installation: InstallationArgs,
    #[command(flatten)]
    debug: DebugEndpoints,
    /// Run no webhooks. Pods can't request fractions of GPUs then.
    #[arg(long, help_heading = "Roles")]
    no_admission: bool,
    /// A further flag of one role, as in `--role scheduler=--schedule-period=2s`. May be repeated.
    #[arg(long = "role", help_heading = "Roles", value_name = "ROLE=FLAG")]
    flags: Vec<String>,
}

/// Runs the roles until SIGTERM or SIGINT.
pub(crate) fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let settings = arguments.settings()?;
    let installation = arguments.installation.settings(&arguments.election.namespace);
    install_and_run(
        arguments.process,
        Leadership::elected(LEASE, arguments.election),
        installation,
        settings,
    )
}

impl Arguments {
    fn settings(&self) -> anyhow::Result<RoleSettings> {
        for flag in &self.flags {
            let role = flag.split_once('=').map(|(role, _)| role);
            if !role.is_some_and(|role| ROLES.contains(&role)) {
                anyhow::bail!(
                    "--role {flag}: write ROLE=FLAG with one of the roles {}",
                    ROLES.join(", ")
                );
            }
        }
        let mut settings = RoleSettings::of_flags(|name| {
            let pairs = self.flags.iter().filter_map(|flag| flag.split_once('='));
            pairs
                .filter(|(role, _)| *role == name)
                .map(|(_, flag)| flag.to_owned())
                .collect()
        })?;
        settings.debug_address = self.debug.address();
        if self.no_admission {
            settings.admission = None;
        }
        if let (Some(_), Some(controllers)) = (&self.installation.installation, &mut settings.controllers) {
            // The installation directory says which queues a new cluster gets.
            controllers.create_default_queues = false;
        }
        Ok(settings)
    }
}
