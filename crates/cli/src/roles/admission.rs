//! `kai admission`: the webhooks.

use std::convert::Infallible;
use std::process::ExitCode;

use clap::Args;
use kai_cluster::Context;
use kai_controllers::admission;

use super::process::{IgnoredRates, Process};
use super::run::{Leadership, PageAddress, run};
use super::table::{Role, RoleSettings, Watched};

/// The flags of `kai admission`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    process: Process,
    #[command(flatten, next_help_heading = "Role")]
    role: admission::Args,
    #[command(flatten)]
    _rates: IgnoredRates,
    /// Has no effect: every replica answers.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    _leader_elect: Option<String>,
}

/// Runs the role until SIGTERM or SIGINT.
pub(crate) fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let settings = RoleSettings {
        admission: Some(arguments.role.settings()?),
        ..RoleSettings::default()
    };
    let no_page = PageAddress::default();
    run(arguments.process, Leadership::EveryReplica, no_page, None, settings)
}

/// The role in the table.
pub(super) struct Admission;

impl Role for Admission {
    type Args = admission::Args;
    type Settings = admission::Settings;

    const NAME: &'static str = "admission";

    fn settings(args: admission::Args, _: &[String]) -> anyhow::Result<admission::Settings> {
        Ok(args.settings()?)
    }

    fn watches(settings: &admission::Settings) -> String {
        format!(
            "answers for pods with schedulerName {}, queues, pod groups and topologies; its service is in namespace {}",
            settings.scheduler_name, settings.system_namespace
        )
    }

    async fn run(context: Context, settings: admission::Settings, _: Watched) -> anyhow::Result<Infallible> {
        Ok(admission::run(context, settings).await?)
    }
}
