//! `kai all`: every role of the cluster's side in one process. It has the flags that people set on small clusters; large clusters run
//! the roles one by one, each with all of its flags. If there is a Config, the roles follow it and the scheduling shards.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use kai_controllers::installation::InstallationArgs;
use kai_controllers::operator::{ImageReference, Installation, Runner};

use super::operator;
use super::process::{Election, Process};
use super::run::{Leadership, PageAddress, Start, run, run_with};
use super::scheduler::DebugEndpoints;
use super::supervise::{RoleFlags, supervise};
use super::table::{ROLES, RoleSettings};

/// The Config that the roles follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ConfigChoice {
    /// The Config kai-config and all scheduling shards, if that Config exists.
    KaiConfig,
    /// None: the flags of this process alone.
    None,
}

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
    #[command(flatten)]
    page: PageAddress,
    /// Run no webhooks. Pods can't request fractions of GPUs then.
    #[arg(long, help_heading = "Roles")]
    no_admission: bool,
    /// A further flag of one role, as in `--role scheduler=--schedule-period=2s`. May be repeated.
    #[arg(long = "role", help_heading = "Roles", value_name = "ROLE=FLAG")]
    flags: Vec<String>,
    /// The Config that the roles follow, with its scheduling shards. Flags of --role come before its settings. A change restarts the
    /// roles that it concerns.
    #[arg(long, help_heading = "Roles", value_enum, default_value_t = ConfigChoice::KaiConfig)]
    config: ConfigChoice,
}

/// Runs the roles until SIGTERM or SIGINT.
pub(crate) fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let settings = arguments.settings()?;
    let install = arguments.installation.settings(&arguments.election.namespace);
    if arguments.config == ConfigChoice::None {
        return run(
            arguments.process,
            Leadership::Elected(arguments.election),
            arguments.page,
            install,
            settings,
        );
    }
    let (flags, installation) = (
        arguments.role_flags(),
        operated_installation(&arguments.election.namespace)?,
    );
    let mut leases = settings.leases();
    leases.push(operator::LEASE.to_owned());
    let announced = settings.clone();
    let start = Start {
        leadership: Leadership::Elected(arguments.election),
        leases,
        page: arguments.page,
        installation: install,
        announced: &announced,
    };
    run_with(arguments.process, start, |context, replica| {
        supervise(context, replica, settings, flags, installation)
    })
}

/// The process itself is the installation: its Deployment has the image. A Config that names a part of an image gets the rest here.
pub(super) fn operated_installation(namespace: &str) -> anyhow::Result<Installation> {
    let image = format!("registry/local/kai-scheduler/kai:{}", kai_cluster::VERSION);
    let image: ImageReference = image.parse().map_err(anyhow::Error::msg)?;
    Ok(Installation {
        namespace: namespace.to_owned(),
        image,
        pull_policy: "IfNotPresent".to_owned(),
        pull_secrets: Vec::new(),
        runner: Runner::Process,
    })
}

impl Arguments {
    fn role_flags(&self) -> RoleFlags {
        let pair = |flag: &String| {
            let (role, flag) = flag.split_once('=')?;
            Some((role.to_owned(), flag.to_owned()))
        };
        RoleFlags {
            typed: self.flags.iter().filter_map(pair).collect(),
            with_admission: !self.no_admission,
            debug_address: self.debug.address(),
            page: self.page.slot(),
            create_default_queues: self.creates_default_queues(),
        }
    }

    /// The installation directory says which queues a new cluster gets.
    fn creates_default_queues(&self) -> bool {
        self.installation.installation.is_none()
    }

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
        settings.page = self.page.slot();
        if self.no_admission {
            settings.admission = None;
        }
        if let Some(controllers) = &mut settings.controllers {
            controllers.create_default_queues = self.creates_default_queues();
        }
        Ok(settings)
    }
}
