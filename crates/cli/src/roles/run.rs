//! The process of a role: connects, takes part in the election, serves metrics and health, and runs until a signal stops it.

use std::convert::Infallible;
use std::process::ExitCode;

use clap::Args;
use kai_cluster::{Candidate, Client, Clock, Context, LeaseTimes};

use super::announce::{self, Leader};
use super::process::{Connection, Election, IgnoredRates, Process};
use super::serve;
use super::table::{self, RoleSettings};
use crate::log;

/// Which replicas of a role work.
pub(super) enum Leadership {
    /// The replica that holds the lease of this name, if the flags turn the election on.
    Elected(String, Election),
    /// Every replica.
    EveryReplica,
}

impl Leadership {
    pub(super) fn elected(lease: impl Into<String>, election: Election) -> Leadership {
        Leadership::Elected(lease.into(), election)
    }
}

/// The flags of a role whose replicas elect a leader.
#[derive(Debug, Args)]
pub(crate) struct ElectedRole<A: Args> {
    #[command(flatten)]
    process: Process,
    #[command(flatten)]
    election: Election,
    #[command(flatten, next_help_heading = "Role")]
    role: A,
    #[command(flatten)]
    _rates: IgnoredRates,
}

impl<A: Args> ElectedRole<A> {
    /// Runs the role until SIGTERM or SIGINT.
    pub(super) fn run(
        self,
        lease: &str,
        settings: impl FnOnce(A) -> anyhow::Result<RoleSettings>,
    ) -> anyhow::Result<ExitCode> {
        let settings = settings(self.role)?;
        run(self.process, Leadership::elected(lease, self.election), settings)
    }
}

/// Runs the roles in `settings` until SIGTERM or SIGINT.
pub(super) fn run(process: Process, leadership: Leadership, settings: RoleSettings) -> anyhow::Result<ExitCode> {
    log::start(&process.log)?;
    for warning in process.warnings() {
        tracing::warn!("{warning}");
    }
    let leader = match leadership {
        Leadership::EveryReplica => Leader::EveryReplica,
        Leadership::Elected(_, election) if !election.leader_elect => Leader::Alone,
        Leadership::Elected(lease, election) => Leader::Elected(Candidate {
            namespace: election.namespace,
            name: lease,
            identity: identity(),
            times: LeaseTimes::default(),
            clock: Clock::System,
        }),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = connect(&process.connection).await?;
        let context = Context::new(client.clone(), Clock::System);
        let serving = serve::health_and_metrics(&process.listen_address, &context, process.readers())?;
        let probes = serve::health(&process.health_probe_bind_address, &context)?;
        let ports = announce::Ports {
            metrics_and_health: serving.address(),
            probes: probes.address(),
        };
        announce::announce(&client, &leader, &ports, &settings);
        let candidate = match leader {
            Leader::Elected(candidate) => Some(candidate),
            Leader::Alone | Leader::EveryReplica => None,
        };
        tokio::select! {
            never = announce::reach(&client) => match never {},
            failed = lead(candidate, context, settings) => failed.map(|never| match never {}),
            served = serving.ended() => Err(anyhow::anyhow!("serving metrics ended: {served:?}")),
            served = probes.ended() => Err(anyhow::anyhow!("serving probes ended: {served:?}")),
            () = stopped() => Ok(ExitCode::SUCCESS),
        }
    })
}

/// Connects to the API server. The error tells a user without a cluster about the playground.
async fn connect(connection: &Connection) -> anyhow::Result<Client> {
    Client::connect(&connection.access())
        .await
        .map_err(|error| anyhow::anyhow!("{error}; without a cluster, `kai playground` runs one in this process"))
}

/// Runs the webhooks on every replica, and the other roles on the leader only.
async fn lead(
    candidate: Option<Candidate>,
    context: Context,
    mut settings: RoleSettings,
) -> anyhow::Result<Infallible> {
    let Some(candidate) = candidate else {
        return table::run(context, settings).await;
    };
    let everywhere = settings.admission.take().map(|admission| RoleSettings {
        admission: Some(admission),
        ..RoleSettings::default()
    });
    let leading = async {
        let led = context.client.while_leading(candidate, |leadership| {
            table::run(context.guarded(&leadership), settings)
        });
        // The process ends. Kubernetes restarts it, and it starts without the assumptions of its time as leader.
        led.await
            .unwrap_or_else(|| Err(anyhow::anyhow!("another replica may lead now; this one ends")))
    };
    let answering = async {
        match everywhere {
            Some(settings) => table::run(context.clone(), settings).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        failed = leading => failed,
        failed = answering => failed,
    }
}

/// Host name and a random part, so that a restarted pod does not take the lease of its predecessor for its own.
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
