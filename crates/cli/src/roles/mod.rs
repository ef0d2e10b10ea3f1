//! The roles of the cluster's side as subcommands: connect, take part in the election, serve metrics and health, run until told to stop.

mod arguments;
mod serve;
mod start;

use std::process::ExitCode;

use kai_cluster::{Candidate, Client, Clock, Context, LeaseTimes};

pub(crate) use arguments::{
    AdmissionArguments, AllArguments, BinderArguments, Connection, ControllersArguments, SchedulerArguments,
};
use arguments::{Election, Process};

use crate::all::{self, Settings};
use crate::log;
use start::Leader;

/// KAI's name for it: two binders of different make must not both lead.
const BINDER_LEASE: &str = "2ad35f9c.kai.scheduler";

/// `kai all`.
pub(crate) fn all(arguments: AllArguments) -> anyhow::Result<ExitCode> {
    let settings = arguments.settings()?;
    run(arguments.process, Some(("kai-all", arguments.election)), settings)
}

/// `kai scheduler`.
pub(crate) fn scheduler(arguments: SchedulerArguments) -> anyhow::Result<ExitCode> {
    let scheduler: kai_scheduler::Settings = arguments.role.try_into()?;
    let lease = scheduler.lease_name();
    let settings = Settings {
        scheduler: Some(scheduler),
        questions: arguments.questions.address(),
        ..Settings::default()
    };
    run(arguments.process, Some((&lease, arguments.election)), settings)
}

/// `kai binder`.
pub(crate) fn binder(arguments: BinderArguments) -> anyhow::Result<ExitCode> {
    let settings = Settings {
        binder: Some(arguments.role.settings()?),
        ..Settings::default()
    };
    run(arguments.process, Some((BINDER_LEASE, arguments.election)), settings)
}

/// `kai controllers`.
pub(crate) fn controllers(arguments: ControllersArguments) -> anyhow::Result<ExitCode> {
    let settings = Settings {
        controllers: Some(arguments.role.settings()?),
        ..Settings::default()
    };
    run(
        arguments.process,
        Some(("kai-controllers", arguments.election)),
        settings,
    )
}

/// `kai admission`. Every replica answers; there is no leader.
pub(crate) fn admission(arguments: AdmissionArguments) -> anyhow::Result<ExitCode> {
    let settings = Settings {
        admission: Some(arguments.role.settings()?),
        ..Settings::default()
    };
    run(arguments.process, None, settings)
}

fn run(process: Process, election: Option<(&str, Election)>, settings: Settings) -> anyhow::Result<ExitCode> {
    log::start(&process.log)?;
    for remark in process.remarks() {
        tracing::warn!("{remark}");
    }
    let elects = election.is_some();
    let candidate = election
        .filter(|(_, election)| election.leader_elect)
        .map(|(lease, election)| Candidate {
            namespace: election.namespace,
            name: lease.to_owned(),
            identity: identity(),
            times: LeaseTimes::default(),
            clock: Clock::System,
        });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = connect(&process.connection).await?;
        let context = Context::new(client.clone(), Clock::System);
        let serving = serve::health_and_metrics(&process.listen_address, &context, process.readers())?;
        let probes = serve::health(&process.health_probe_bind_address, &context)?;
        let ports = start::Ports {
            metrics_and_health: serving.address(),
            probes: probes.address(),
        };
        let leader = match &candidate {
            Some(candidate) => Leader::Elected(candidate),
            None if elects => Leader::Alone,
            None => Leader::EveryReplica,
        };
        start::announce(&client, &leader, &ports, &settings);
        tokio::select! {
            never = start::reach(&client) => match never {},
            failed = lead(candidate, context, settings) => failed.map(|never| match never {}),
            served = serving.ended() => Err(anyhow::anyhow!("serving metrics ended: {served:?}")),
            served = probes.ended() => Err(anyhow::anyhow!("serving probes ended: {served:?}")),
            () = stopped() => Ok(ExitCode::SUCCESS),
        }
    })
}

/// The cluster's client, or what a user without a cluster can do.
async fn connect(connection: &Connection) -> anyhow::Result<Client> {
    Client::connect(&connection.access())
        .await
        .map_err(|error| anyhow::anyhow!("{error}; without a cluster, `kai playground` runs one in this process"))
}

/// Webhooks answer on every replica; the rest runs on the one that leads.
async fn lead(
    candidate: Option<Candidate>,
    context: Context,
    mut settings: Settings,
) -> anyhow::Result<std::convert::Infallible> {
    let Some(candidate) = candidate else {
        return all::run(context, settings).await;
    };
    let everywhere = settings.admission.take().map(|admission| Settings {
        admission: Some(admission),
        ..Settings::default()
    });
    let leading = async {
        let led = context
            .client
            .while_leading(candidate, |claim| all::run(context.guarded(&claim), settings));
        // Kubernetes starts the process anew, with nothing of what it assumed.
        led.await
            .unwrap_or_else(|| Err(anyhow::anyhow!("another replica may lead now; this one ends")))
    };
    let answering = async {
        match everywhere {
            Some(settings) => all::run(context.clone(), settings).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        failed = leading => failed,
        failed = answering => failed,
    }
}

/// Host name and a random part: a restarted pod must not take itself for its predecessor.
fn identity() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "kai".to_owned());
    format!("{host}_{}", uuid::Uuid::new_v4())
}

/// Waits for SIGTERM or SIGINT.
pub(crate) async fn stopped() {
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
