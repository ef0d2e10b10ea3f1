//! `kai scheduler`: decides which pod gets which node and GPU.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use kai_cluster::Context;

use super::process::{Election, Process};
use super::run::{Leadership, PageAddress, run};
use super::table::{Role, RoleSettings, Watched};

/// The flags of `kai scheduler`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    process: Process,
    #[command(flatten)]
    election: Election,
    #[command(flatten)]
    debug: DebugEndpoints,
    #[command(flatten)]
    page: PageAddress,
    #[command(flatten, next_help_heading = "Role")]
    role: kai_scheduler::Args,
}

/// The port of the debug endpoints, if no flag says otherwise.
pub(crate) const DEBUG_PORT: u16 = 8081;

/// Where the scheduler serves its debug endpoints.
#[derive(Debug, Args)]
pub(crate) struct DebugEndpoints {
    /// Port on the loopback interface for /view, /decisions, /explain, /get-job-order and /get-snapshot; 0 for none.
    #[arg(long, help_heading = "Serving", default_value_t = DEBUG_PORT)]
    plugin_server_port: u16,
}

impl DebugEndpoints {
    pub(super) fn address(&self) -> Option<SocketAddr> {
        (self.plugin_server_port > 0).then(|| (Ipv4Addr::LOCALHOST, self.plugin_server_port).into())
    }
}

/// Runs the role until SIGTERM or SIGINT.
pub(crate) fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let scheduler: kai_scheduler::Settings = arguments.role.try_into()?;
    let settings = RoleSettings {
        scheduler: Some(scheduler),
        debug_address: arguments.debug.address(),
        page: arguments.page.slot(),
        ..RoleSettings::default()
    };
    run(
        arguments.process,
        Leadership::Elected(arguments.election),
        arguments.page,
        None,
        settings,
    )
}

/// The role in the table.
pub(super) struct Scheduler;

impl Role for Scheduler {
    type Args = kai_scheduler::Args;
    type Settings = kai_scheduler::Settings;

    const NAME: &'static str = "scheduler";

    fn settings(args: kai_scheduler::Args, _: &[String]) -> anyhow::Result<kai_scheduler::Settings> {
        Ok(args.try_into()?)
    }

    fn watches(settings: &kai_scheduler::Settings) -> String {
        format!(
            "watches pods with schedulerName {} in all namespaces, and the nodes, pod groups and queues of shard {}",
            settings.scheduler_name,
            settings.partition.name()
        )
    }

    async fn run(context: Context, settings: kai_scheduler::Settings, watched: Watched) -> anyhow::Result<Infallible> {
        let scheduler = kai_scheduler::Scheduler::prepare(&context, settings);
        let _shown = watched.page.map(|page| page.show(scheduler.watcher()));
        let Some(address) = watched.debug_address else {
            return Ok(scheduler.run(context).await?);
        };
        let listener = tokio::net::TcpListener::bind(address).await.map_err(|error| {
            anyhow!(
                "listening on {address} for debug endpoints: {error}; choose another port with --plugin-server-port"
            )
        })?;
        let router = scheduler.router();
        tokio::select! {
            ended = scheduler.run(context) => Ok(ended?),
            ended = async { axum::serve(listener, router).await } => Err(anyhow!("serving debug endpoints ended: {ended:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers show the whole cluster to every client that can connect.
    #[test]
    fn questions_are_answered_on_this_machine_only() {
        let address = |plugin_server_port| DebugEndpoints { plugin_server_port }.address();
        assert!(address(8081).is_some_and(|address| address.ip().is_loopback()));
        assert_eq!(address(0), None);
    }
}
