//! The process of a role: connects, takes part in the election, serves metrics and health, and runs until a signal stops it.

use std::convert::Infallible;
use std::process::ExitCode;

use clap::Args;
use kai_cluster::{Candidate, Client, Clock, Context, LeaseTimes, ReadinessHold};
use kai_controllers::installation;

use super::announce::{self, Leader};
use super::process::{Connection, Election, IgnoredRates, Process};
use super::table::{self, RoleSettings};
use super::{readiness, serve};
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
    install_and_run(process, leadership, None, settings)
}

/// Carries out the installation step, then runs the roles in `settings` until SIGTERM or SIGINT.
pub(super) fn install_and_run(
    process: Process,
    leadership: Leadership,
    installation: Option<installation::Settings>,
    settings: RoleSettings,
) -> anyhow::Result<ExitCode> {
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
        let start = StartSteps::begin(&context);
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
            failed = install_and_lead(candidate, context, installation, settings, start) => failed.map(|never| match never {}),
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

/// The steps of the start after which readiness depends on the roles alone.
struct StartSteps {
    installation: ReadinessHold,
    roles: ReadinessHold,
}

impl StartSteps {
    fn begin(context: &Context) -> StartSteps {
        StartSteps {
            installation: context.health.hold("installation"),
            roles: context.health.hold("start of the roles"),
        }
    }
}

/// Carries out the installation step and runs the roles. Objects that need kai's webhooks are installed while the roles run.
async fn install_and_lead(
    candidate: Option<Candidate>,
    context: Context,
    installation: Option<installation::Settings>,
    settings: RoleSettings,
    start: StartSteps,
) -> anyhow::Result<Infallible> {
    let client = context.client.clone();
    let remaining = match installation {
        Some(installation) => Some(installation::run(&client, &installation).await?),
        None => None,
    };
    let finishing = async {
        if let Some(remaining) = remaining {
            remaining.finish(&client).await?;
        }
        drop(start.installation);
        std::future::pending::<anyhow::Result<Infallible>>().await
    };
    tokio::select! {
        failed = lead(candidate, context, settings, &start.roles) => failed,
        failed = finishing => failed,
    }
}

/// Runs the webhooks on every replica, and the other roles on the leader only.
async fn lead(
    candidate: Option<Candidate>,
    context: Context,
    mut settings: RoleSettings,
    start: &ReadinessHold,
) -> anyhow::Result<Infallible> {
    let Some(candidate) = candidate else {
        return readiness::begun(table::run(context, settings), start).await;
    };
    let everywhere = settings.admission.take().map(|admission| RoleSettings {
        admission: Some(admission),
        ..RoleSettings::default()
    });
    let leadership = kai_cluster::Leadership::none();
    let leading = async {
        let led = context.client.while_leading_with(&leadership, candidate, |leadership| {
            readiness::begun(table::run(context.guarded(&leadership), settings), start)
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
    let standing_by = async {
        leadership.wait_until_decided().await;
        // A replica that does not lead is ready when its webhooks answer.
        if !leadership.is_held() {
            start.release();
        }
        std::future::pending().await
    };
    tokio::select! {
        biased;
        failed = answering => failed,
        failed = leading => failed,
        failed = standing_by => failed,
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
