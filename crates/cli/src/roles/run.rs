//! The process of a role: connects, takes part in the election, serves metrics and health, and runs until a signal stops it.

use std::convert::Infallible;
use std::future::Future;
use std::process::ExitCode;

use kai_cluster::{Candidate, Client, Clock, Context, LeaseTimes};
use tokio::task::JoinSet;

use super::announce::{self, Leader};
use super::process::{Connection, Election, Process};
use super::serve;
use super::table::{self, RoleSettings};
use crate::log;

/// Which replicas of a role work.
pub(super) enum Leadership {
    /// The replica that holds the leases of the roles, if the flags turn the election on.
    Elected(Election),
    /// Every replica.
    EveryReplica,
}

/// A replica that takes part in elections.
#[derive(Clone, Debug)]
pub(super) struct Replica {
    /// Namespace of the leases.
    pub(super) namespace: String,
    pub(super) identity: String,
}

impl Replica {
    fn candidate(&self, lease: &str) -> Candidate {
        Candidate {
            namespace: self.namespace.clone(),
            name: lease.to_owned(),
            identity: self.identity.clone(),
            times: LeaseTimes::default(),
            clock: Clock::System,
        }
    }
}

/// Runs the roles in `settings` until SIGTERM or SIGINT.
pub(super) fn run(process: Process, leadership: Leadership, settings: RoleSettings) -> anyhow::Result<ExitCode> {
    let leases = settings.leases();
    let announced = settings.clone();
    run_with(process, leadership, leases, &announced, |context, replica| {
        lead(replica, context, settings)
    })
}

/// Runs `work` until SIGTERM or SIGINT. It gets a replica if there are elections. `announced` are the roles that the log names.
pub(super) fn run_with<F>(
    process: Process,
    leadership: Leadership,
    leases: Vec<String>,
    announced: &RoleSettings,
    work: impl FnOnce(Context, Option<Replica>) -> F,
) -> anyhow::Result<ExitCode>
where
    F: Future<Output = anyhow::Result<Infallible>>,
{
    log::start(&process.log)?;
    for warning in process.warnings() {
        tracing::warn!("{warning}");
    }
    let leader = match leadership {
        Leadership::EveryReplica => Leader::EveryReplica,
        Leadership::Elected(election) if !election.leader_elect => Leader::Alone,
        Leadership::Elected(election) => {
            let namespace = election.namespace;
            let identity = identity();
            Leader::Elected(Replica { namespace, identity }, leases)
        }
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
        announce::announce(&client, &leader, &ports, announced);
        let replica = match leader {
            Leader::Elected(replica, _) => Some(replica),
            Leader::Alone | Leader::EveryReplica => None,
        };
        tokio::select! {
            never = announce::reach(&client) => match never {},
            failed = work(context, replica) => failed.map(|never| match never {}),
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

/// Runs every role while this replica holds the role's lease. Webhooks run on every replica.
pub(super) async fn lead(
    replica: Option<Replica>,
    context: Context,
    settings: RoleSettings,
) -> anyhow::Result<Infallible> {
    let Some(replica) = replica else {
        return table::run(context, settings).await;
    };
    let mut running = JoinSet::new();
    for (lease, part) in settings.parts() {
        let (context, replica) = (context.clone(), replica.clone());
        running.spawn(async move {
            match lease {
                Some(lease) => lead_one(&replica, &lease, context, |context| table::run(context, part)).await,
                None => table::run(context, part).await,
            }
        });
    }
    match running.join_next().await {
        Some(Ok(ended)) => ended,
        Some(Err(error)) => Err(anyhow::anyhow!("a role died: {error}")),
        None => Err(anyhow::anyhow!("there is no role to run")),
    }
}

/// Runs `work` while this replica holds the lease. Ends when it loses the lease: the process ends, Kubernetes restarts it, and it starts
/// without the assumptions of its time as leader.
pub(super) async fn lead_one<F>(
    replica: &Replica,
    lease: &str,
    context: Context,
    work: impl FnOnce(Context) -> F,
) -> anyhow::Result<Infallible>
where
    F: Future<Output = anyhow::Result<Infallible>>,
{
    let led = context.client.while_leading(replica.candidate(lease), |leadership| {
        work(context.guarded(&leadership))
    });
    led.await.unwrap_or_else(|| {
        Err(anyhow::anyhow!(
            "another replica may hold the lease {lease} now; this one ends"
        ))
    })
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
