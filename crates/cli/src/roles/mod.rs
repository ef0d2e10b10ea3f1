//! The roles of the cluster's side as subcommands: connect, take part in the election, serve metrics and health, run until told to stop.

mod arguments;
mod serve;

use std::future::Future;
use std::process::ExitCode;

use cluster::{Candidate, Client, Clock, Context, Times};

pub(crate) use arguments::{
    AdmissionArguments, AllArguments, BinderArguments, Connection, ControllersArguments, Process, SchedulerArguments,
};

use crate::all::{self, Settings};
use crate::log;

/// `kai all`.
pub(crate) fn all(arguments: AllArguments) -> anyhow::Result<ExitCode> {
    let settings = arguments.settings()?;
    run(arguments.process, "kai-all", settings)
}

/// `kai scheduler`.
pub(crate) fn scheduler(arguments: SchedulerArguments) -> anyhow::Result<ExitCode> {
    let scheduler: scheduler::Settings = arguments.role.try_into()?;
    let lease = scheduler.lease_name();
    let settings = Settings {
        scheduler: Some(scheduler),
        ..Settings::default()
    };
    run(arguments.process, &lease, settings)
}

/// `kai binder`.
pub(crate) fn binder(arguments: BinderArguments) -> anyhow::Result<ExitCode> {
    let settings = Settings {
        binder: Some(arguments.role.settings()?),
        ..Settings::default()
    };
    run(arguments.process, "2ad35f9c.kai.scheduler", settings)
}

/// `kai controllers`.
pub(crate) fn controllers(arguments: ControllersArguments) -> anyhow::Result<ExitCode> {
    let settings = Settings {
        controllers: Some(arguments.role.settings()?),
        ..Settings::default()
    };
    run(arguments.process, "kai-controllers", settings)
}

/// `kai admission`. Every replica answers; there is no leader.
pub(crate) fn admission(arguments: AdmissionArguments) -> anyhow::Result<ExitCode> {
    let settings = Settings {
        admission: Some(arguments.role.settings()?),
        ..Settings::default()
    };
    run(arguments.process, "", settings)
}

fn run(process: Process, lease: &str, settings: Settings) -> anyhow::Result<ExitCode> {
    log::start(&process.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::connect(&process.connection.access()).await?;
        let context = Context::new(client, Clock::System);
        let serving = serve::health_and_metrics(&process.listen_address, &context).await?;
        let work = lead(&process, lease, context, settings);
        tokio::select! {
            failed = work => failed.map(|never| match never {}),
            served = serving => Err(anyhow::anyhow!("serving metrics ended: {served:?}")),
            () = stopped() => Ok(ExitCode::SUCCESS),
        }
    })
}

/// Webhooks answer on every replica; the rest runs on the one that leads.
async fn lead(
    process: &Process,
    lease: &str,
    context: Context,
    mut settings: Settings,
) -> anyhow::Result<std::convert::Infallible> {
    if !process.leader_elect || lease.is_empty() {
        return all::run(context, settings).await;
    }
    let everywhere = Settings {
        admission: settings.admission.take(),
        ..Settings::default()
    };
    let candidate = Candidate {
        namespace: process.namespace.clone(),
        name: lease.to_owned(),
        identity: identity(),
        times: Times::default(),
        clock: context.clock,
    };
    let leading = context.client.while_leading(candidate, |claim| {
        let context = context.guarded(&claim);
        let settings = settings.clone();
        async move { all::run(context, settings).await }
    });
    tokio::select! {
        failed = leading => failed,
        failed = if_any(everywhere.admission.is_some(), all::run(context.clone(), everywhere)) => failed,
    }
}

async fn if_any<T>(any: bool, run: impl Future<Output = T>) -> T {
    match any {
        true => run.await,
        false => std::future::pending().await,
    }
}

/// Host name and a random part: a restarted pod must not take itself for its predecessor.
fn identity() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "kai".to_owned());
    format!("{host}_{}", uuid::Uuid::new_v4())
}

/// Waits for SIGTERM or SIGINT.
async fn stopped() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        }
        Err(error) => {
            tracing::warn!(%error, "SIGTERM can't be handled; the process ends without notice");
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}
