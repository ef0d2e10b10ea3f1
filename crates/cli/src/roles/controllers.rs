//! `kai controllers`: pod grouper and status controllers.

use std::convert::Infallible;
use std::process::ExitCode;

use kai_cluster::Context;

use super::run::ElectedRole;
use super::table::{Role, RoleSettings, Watched};

/// KAI's names of the leases of its controllers: a controller of KAI and ours must not both lead.
const POD_GROUPER_LEASE: &str = "54dff599.kai.scheduler";
const POD_GROUP_CONTROLLER_LEASE: &str = "o1x22tjj.kai.scheduler";
const QUEUE_CONTROLLER_LEASE: &str = "ov3xj497.kai.scheduler";
const NODE_SCALE_ADJUSTER_LEASE: &str = "7n7h49uc.kai.scheduler";

/// The controllers one by one, each with its lease. The last one creates the default objects.
pub(super) fn parts(settings: kai_controllers::Settings) -> Vec<(&'static str, kai_controllers::Settings)> {
    let kai_controllers::Settings {
        grouper,
        pod_groups,
        queues,
        scale_adjuster,
        create_defaults,
        create_default_queues,
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
        (
            NODE_SCALE_ADJUSTER_LEASE,
            scale_adjuster.is_some(),
            kai_controllers::Settings {
                scale_adjuster,
                ..one()
            },
        ),
    ];
    let enabled = all.into_iter().filter(|(_, enabled, _)| *enabled);
    let mut parts: Vec<_> = enabled.map(|(lease, _, part)| (lease, part)).collect();
    if let Some((_, part)) = parts.last_mut() {
        part.create_defaults = create_defaults;
        part.create_default_queues = create_default_queues;
        part.warnings = warnings;
    }
    parts
}

/// The flags of `kai controllers`.
pub(crate) type Arguments = ElectedRole<kai_controllers::Args>;

/// Runs the role until SIGTERM or SIGINT.
pub(crate) fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    arguments.run(|role| {
        Ok(RoleSettings {
            controllers: Some(role.settings()?),
            ..RoleSettings::default()
        })
    })
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
            settings.scale_adjuster.as_ref().map(|_| "pods that wait for nodes"),
        ];
        let objects: Vec<&str> = objects.into_iter().flatten().collect();
        format!("watches {} in all namespaces", objects.join(", "))
    }

    async fn run(context: Context, settings: kai_controllers::Settings, _: Watched) -> anyhow::Result<Infallible> {
        Ok(kai_controllers::run(context, settings).await?)
    }
}
