//! `kai controllers`: pod grouper and status controllers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Args;
use kai_cluster::Context;

use super::process::{Election, IgnoredRates, Process};
use super::run::{Leadership, run};
use super::table::{Role, RoleSettings};

/// KAI's names of the leases of its three controllers: a controller of KAI and ours must not both lead.
const POD_GROUPER_LEASE: &str = "54dff599.kai.scheduler";
const POD_GROUP_CONTROLLER_LEASE: &str = "o1x22tjj.kai.scheduler";
const QUEUE_CONTROLLER_LEASE: &str = "ov3xj497.kai.scheduler";

/// The controllers one by one, each with its lease. The last one creates the default objects.
pub(super) fn parts(settings: kai_controllers::Settings) -> Vec<(&'static str, kai_controllers::Settings)> {
    let kai_controllers::Settings {
        grouper,
        pod_groups,
        queues,
        create_defaults,
        warnings,
    } = settings;
    let one = kai_controllers::Settings::default;
    let all = [
        (
            POD_GROUPER_LEASE,
            grouper.is_some(),
            kai_controllers::Settings { grouper, ..one() },
        ),
        (
            POD_GROUP_CONTROLLER_LEASE,
            pod_groups.is_some(),
            kai_controllers::Settings { pod_groups, ..one() },
        ),
        (
            QUEUE_CONTROLLER_LEASE,
            queues.is_some(),
            kai_controllers::Settings { queues, ..one() },
        ),
    ];
    let enabled = all.into_iter().filter(|(_, enabled, _)| *enabled);
    let mut parts: Vec<_> = enabled.map(|(lease, _, part)| (lease, part)).collect();
    if let Some((_, part)) = parts.last_mut() {
        part.create_defaults = create_defaults;
        part.warnings = warnings;
    }
    parts
}

/// The flags of `kai controllers`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    process: Process,
    #[command(flatten)]
    election: Election,
    #[command(flatten, next_help_heading = "Role")]
    role: kai_controllers::Args,
    #[command(flatten)]
    _rates: IgnoredRates,
}

/// Runs the role until SIGTERM or SIGINT.
pub(crate) fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let settings = RoleSettings {
        controllers: Some(arguments.role.settings()?),
        ..RoleSettings::default()
    };
    run(arguments.process, Leadership::Elected(arguments.election), settings)
}

/// The role in the table.
pub(super) struct Controllers;

impl Role for Controllers {
    type Args = kai_controllers::Args;
    type Settings = kai_controllers::Settings;

    const NAME: &'static str = "controllers";

    fn settings(args: kai_controllers::Args, _: &[String]) -> anyhow::Result<kai_controllers::Settings> {
        Ok(args.settings()?)
    }

    fn watches(settings: &kai_controllers::Settings) -> String {
        let objects = [
            settings.grouper.as_ref().map(|_| "pods and their owners"),
            settings.pod_groups.as_ref().map(|_| "pod groups"),
            settings.queues.as_ref().map(|_| "queues"),
        ];
        let objects: Vec<&str> = objects.into_iter().flatten().collect();
        format!("watches {} in all namespaces", objects.join(", "))
    }

    async fn run(
        context: Context,
        settings: kai_controllers::Settings,
        _: Option<SocketAddr>,
    ) -> anyhow::Result<Infallible> {
        Ok(kai_controllers::run(context, settings).await?)
    }
}
