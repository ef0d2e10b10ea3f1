//! `kai binder`: carries out bind requests.

use std::convert::Infallible;
use std::process::ExitCode;

use kai_cluster::Context;

use super::run::ElectedRole;
use super::table::{Role, RoleSettings, Watched};

/// KAI's name of the lease: a binder of KAI and one of ours must not both lead.
pub(super) const LEASE: &str = "2ad35f9c.kai.scheduler";

/// The flags of `kai binder`.
pub(crate) type Arguments = ElectedRole<kai_binder::Args>;

/// Runs the role until SIGTERM or SIGINT.
pub(crate) fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    arguments.run(|role| {
        Ok(RoleSettings {
            binder: Some(role.settings()?),
            ..RoleSettings::default()
        })
    })
}

/// The role in the table.
pub(super) struct Binder;

impl Role for Binder {
    type Args = kai_binder::Args;
    type Settings = kai_binder::Settings;

    const NAME: &'static str = "binder";

    fn settings(args: kai_binder::Args, _: &[String]) -> anyhow::Result<kai_binder::Settings> {
        Ok(args.settings()?)
    }

    fn watches(settings: &kai_binder::Settings) -> String {
        format!(
            "watches bind requests in all namespaces, and reservation pods in namespace {}",
            settings.reservation_namespace()
        )
    }

    async fn run(context: Context, settings: kai_binder::Settings, _: Watched) -> anyhow::Result<Infallible> {
        Ok(kai_binder::run(context, settings).await?)
    }
}
