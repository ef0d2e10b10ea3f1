//! `kai controllers`: pod grouper and status controllers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::ExitCode;

use kai_cluster::Context;

use super::run::ElectedRole;
use super::table::{Role, RoleSettings};

const LEASE: &str = "kai-controllers";

/// The flags of `kai controllers`.
pub(crate) type Arguments = ElectedRole<kai_controllers::Args>;

/// Runs the role until SIGTERM or SIGINT.
pub(crate) fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    arguments.run(LEASE, |role| {
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
