//! The process of a role: connects, installs, takes part in elections, serves metrics and health, and runs until a signal stops it.

use std::convert::Infallible;
use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use kai_cluster::{Candidate, Client, Clock, Context, LeaseTimes, ReadinessHold};
use kai_controllers::installation;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::announce::{self, Leader};
use super::process::{self, Connection, IgnoredRates, Process};
use super::table::{self, RoleSettings};
use super::{PageSlot, readiness, serve};
use crate::log;
use crate::page::{Election, Forwarder, Page, RightsOfToken};

/// Which replicas of a role work.
pub(super) enum Leadership {
    /// The replica that holds the leases of the roles, if the flags turn the election on.
    Elected(process::Election),
    /// Every replica.
    EveryReplica,
}

impl Leadership {
    /// The namespace of kai.
    fn namespace(&self) -> &str {
        match self {
            Leadership::Elected(election) => &election.namespace,
            Leadership::EveryReplica => kai_cluster::NAMESPACE,
        }
    }
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

/// The flags of a role whose replicas elect a leader.
#[derive(Debug, Args)]
pub(crate) struct ElectedRole<A: Args> {
    #[command(flatten)]
    process: Process,
    #[command(flatten)]
    election: process::Election,
    #[command(flatten, next_help_heading = "Role")]
    role: A,
    #[command(flatten)]
    _rates: IgnoredRates,
}

impl<A: Args> ElectedRole<A> {
    /// Runs the role until SIGTERM or SIGINT.
    pub(super) fn run(self, settings: impl FnOnce(A) -> anyhow::Result<RoleSettings>) -> anyhow::Result<ExitCode> {
        let settings = settings(self.role)?;
        let no_page = PageAddress::default();
        run(
            self.process,
            Leadership::Elected(self.election),
            no_page,
            None,
            settings,
        )
    }
}

/// The flag `--ui-address`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct PageAddress {
    /// Address that serves the page, such as 127.0.0.1:8082 or :8082; an empty one serves none. Readers on another machine need a token,
    /// and see the namespaces whose pods its account may list.
    #[arg(
        long,
        help_heading = "Serving",
        value_name = "ADDRESS",
        default_value = "",
        hide_default_value = true
    )]
    ui_address: String,
    /// All clones of the flag are one page.
    #[arg(skip)]
    slot: PageSlot,
}

impl PageAddress {
    /// The slot of the scheduler that the page shows; `None` without a page.
    pub(super) fn slot(&self) -> Option<PageSlot> {
        (!self.ui_address.is_empty()).then(|| self.slot.clone())
    }

    /// Serves the page on a thread of its own.
    fn serve(&self, client: &Client, leader: &Leader) -> anyhow::Result<serve::Served> {
        let source = Arc::new(self.slot.clone());
        let authorizer = kai_cluster::ViewAuthorizer::new(Some(client.clone()));
        let page = Page {
            authorizer: Arc::new(RightsOfToken::new(authorizer, source.clone(), Handle::current())),
            source,
            story: None,
            cluster_name: client.address().to_owned(),
            forwarder: self.forwarder(client, leader),
        };
        page.serve(&self.ui_address, "--ui-address")
    }

    /// Leads readers to the replica that shows the cluster, where replicas elect one.
    fn forwarder(&self, client: &Client, leader: &Leader) -> Option<Forwarder> {
        let Leader::Elected(replica, leases) = leader else {
            return None;
        };
        let election = Election {
            client: client.clone(),
            namespace: replica.namespace.clone(),
            // The scheduler is the first role.
            lease: leases.first()?.clone(),
            own_pod: host_of(&replica.identity).to_owned(),
            port: self.ui_address.rsplit_once(':')?.1.parse().ok()?,
            roles: Handle::current(),
        };
        Some(Forwarder::new(election, self.slot.clone()))
    }
}

/// How a process starts.
pub(super) struct Start<'a> {
    pub(super) leadership: Leadership,
    /// The leases, for the log.
    pub(super) leases: Vec<String>,
    pub(super) page: PageAddress,
    pub(super) installation: Option<installation::Settings>,
    /// The roles that the log names.
    pub(super) announced: &'a RoleSettings,
}

/// Carries out the installation step, if there is one, and runs the roles in `settings` until SIGTERM or SIGINT.
pub(super) fn run(
    process: Process,
    leadership: Leadership,
    page: PageAddress,
    installation: Option<installation::Settings>,
    settings: RoleSettings,
) -> anyhow::Result<ExitCode> {
    let announced = settings.clone();
    let start = Start {
        leadership,
        leases: settings.leases(),
        page,
        installation,
        announced: &announced,
    };
    run_with(process, start, |context, replica| lead(replica, context, settings))
}

/// Carries out the installation step, if there is one, and runs `work` until SIGTERM or SIGINT. `work` gets a replica if there are elections,
/// and begins the steps of its start ([`kai_cluster::Health::hold`]) when it is first polled.
pub(super) fn run_with<F>(
    process: Process,
    start: Start<'_>,
    work: impl FnOnce(Context, Option<Replica>) -> F,
) -> anyhow::Result<ExitCode>
where
    F: Future<Output = anyhow::Result<Infallible>>,
{
    log::start(&process.log)?;
    for warning in process.warnings() {
        tracing::warn!("{warning}");
    }
    let namespace = start.leadership.namespace().to_owned();
    let leader = match start.leadership {
        Leadership::EveryReplica => Leader::EveryReplica,
        Leadership::Elected(election) if !election.leader_elect => Leader::Alone,
        Leadership::Elected(election) => {
            let namespace = election.namespace;
            let identity = identity();
            Leader::Elected(Replica { namespace, identity }, start.leases)
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = connect(&process.connection).await?;
        let context = Context::new(client.clone(), Clock::System).in_namespace(&namespace);
        let steps = StartSteps::begin(&context);
        let serving = serve::health_and_metrics(&process.listen_address, &context, process.readers())?;
        let probes = serve::health(&process.health_probe_bind_address, &context)?;
        let page = start.page.serve(&client, &leader)?;
        let ports = announce::Ports {
            metrics_and_health: serving.address(),
            probes: probes.address(),
            page: page.address(),
        };
        announce::announce(&client, &leader, &ports, start.announced);
        let replica = match leader {
            Leader::Elected(replica, _) => Some(replica),
            Leader::Alone | Leader::EveryReplica => None,
        };
        tokio::select! {
            never = announce::reach(&client) => match never {},
            failed = install_and(client.clone(), start.installation, steps, || work(context, replica)) => failed.map(|never| match never {}),
            served = serving.ended() => Err(anyhow::anyhow!("serving metrics ended: {served:?}")),
            served = page.ended() => Err(anyhow::anyhow!("serving the page ended: {served:?}")),
            served = probes.ended() => Err(anyhow::anyhow!("serving probes ended: {served:?}")),
            never = kai_node::release_unused_code() => match never {},
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

/// Carries out the installation step and runs `work`. Objects that need kai's webhooks are installed while `work` runs.
async fn install_and<F>(
    client: Client,
    installation: Option<installation::Settings>,
    steps: StartSteps,
    work: impl FnOnce() -> F,
) -> anyhow::Result<Infallible>
where
    F: Future<Output = anyhow::Result<Infallible>>,
{
    let remaining = match installation {
        Some(installation) => Some(installation::run(&client, &installation).await?),
        None => None,
    };
    let finishing = async {
        if let Some(remaining) = remaining {
            remaining.finish(&client).await?;
        }
        drop(steps.installation);
        std::future::pending::<anyhow::Result<Infallible>>().await
    };
    tokio::select! {
        failed = readiness::begun(work(), &steps.roles) => failed,
        failed = finishing => failed,
    }
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
        let start = context.health.hold("start of a role");
        running.spawn(async move {
            match lease {
                Some(lease) => lead_one(&replica, &lease, &start, context, |context| table::run(context, part)).await,
                None => readiness::begun(table::run(context, part), &start).await,
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
/// without the assumptions of its time as leader. Releases `start` when `work` has begun, or when another replica leads: a replica that
/// does not lead is ready when its webhooks answer.
pub(super) async fn lead_one<F>(
    replica: &Replica,
    lease: &str,
    start: &ReadinessHold,
    context: Context,
    work: impl FnOnce(Context) -> F,
) -> anyhow::Result<Infallible>
where
    F: Future<Output = anyhow::Result<Infallible>>,
{
    let leadership = kai_cluster::Leadership::none();
    let gauge = context.metrics.leader(lease);
    let candidate = replica.candidate(lease);
    let leading = context.client.while_leading_with(&leadership, candidate, |leadership| {
        gauge.set(true);
        readiness::begun(work(context.guarded(&leadership)), start)
    });
    let standing_by = async {
        leadership.wait_until_decided().await;
        if !leadership.is_held() {
            start.release();
        }
        std::future::pending::<anyhow::Result<Infallible>>().await
    };
    tokio::select! {
        biased;
        led = leading => led.unwrap_or_else(|| {
            Err(anyhow::anyhow!("another replica may hold the lease {lease} now; this one ends"))
        }),
        never = standing_by => never,
    }
}

/// The host name in an identity: in a pod, the name of the pod.
pub(crate) fn host_of(identity: &str) -> &str {
    identity.rsplit_once('_').map_or(identity, |(host, _)| host)
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
