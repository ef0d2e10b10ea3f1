//! All roles of the cluster's side in one process, on one set of watches. `kai all`, the playground and the end-to-end tests are this.

use std::convert::Infallible;
use std::net::SocketAddr;

use anyhow::{Context as _, anyhow};
use kai_cluster::Context;
use tokio::task::JoinSet;

/// What each role does. A role that is `None` runs elsewhere, or not at all.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The scheduler.
    pub scheduler: Option<kai_scheduler::Settings>,
    /// The binder.
    pub binder: Option<kai_binder::Settings>,
    /// Pod grouper and status controllers.
    pub controllers: Option<kai_controllers::Settings>,
    /// Webhooks.
    pub admission: Option<kai_controllers::admission::Settings>,
    /// Where the scheduler answers questions about the cluster; a loopback address, since its answers show all of it.
    pub questions: Option<SocketAddr>,
}

impl Settings {
    /// Every role, as it is without flags.
    pub fn every_role() -> anyhow::Result<Settings> {
        Settings::of_flags(|_| Vec::new())
    }

    /// Every role with the flags that `flags` has for its name.
    pub fn of_flags(flags: impl Fn(&str) -> Vec<String>) -> anyhow::Result<Settings> {
        let mut admission = parsed::<kai_controllers::admission::Args>("admission", &flags)?.settings()?;
        // Off where nobody says otherwise, as in KAI, when the role is run alone; whoever runs all of kai wants to share GPUs.
        if !flags("admission")
            .iter()
            .any(|flag| flag.starts_with("--gpu-sharing-enabled"))
        {
            admission.gpu_sharing = kai_controllers::admission::Feature::On;
        }
        Ok(Settings {
            scheduler: Some(parsed::<kai_scheduler::Args>("scheduler", &flags)?.try_into()?),
            binder: Some(parsed::<kai_binder::Args>("binder", &flags)?.settings()?),
            controllers: Some(parsed::<kai_controllers::Args>("controllers", &flags)?.settings()?),
            admission: Some(admission),
            questions: None,
        })
    }
}

/// The roles that have flags.
pub const ROLES: [&str; 4] = ["scheduler", "binder", "controllers", "admission"];

/// Reads one role's flags as if they stood alone.
fn parsed<A: clap::Args>(role: &'static str, flags: impl Fn(&str) -> Vec<String>) -> anyhow::Result<A> {
    let line = std::iter::once(role.to_owned()).chain(flags(role));
    let matches = A::augment_args(clap::Command::new(role)).try_get_matches_from(line)?;
    Ok(A::from_arg_matches(&matches)?)
}

/// Runs the roles until one of them fails for good; dropping it stops them all.
pub async fn run(context: Context, settings: Settings) -> anyhow::Result<Infallible> {
    let mut roles: JoinSet<anyhow::Result<()>> = JoinSet::new();
    let questions = settings.questions;
    if let Some(settings) = settings.scheduler {
        let role = scheduler(context.clone(), settings, questions);
        roles.spawn(async move { role.await.map(drop).context("scheduler") });
    }
    if let Some(settings) = settings.binder {
        let role = kai_binder::run(context.clone(), settings);
        roles.spawn(async move { role.await.map(drop).context("binder") });
    }
    if let Some(settings) = settings.controllers {
        let role = kai_controllers::run(context.clone(), settings);
        roles.spawn(async move { role.await.map(drop).context("controllers") });
    }
    if let Some(settings) = settings.admission {
        let role = kai_controllers::admission::run(context.clone(), settings);
        roles.spawn(async move { role.await.map(drop).context("admission") });
    }
    match roles.join_next().await {
        Some(Ok(Err(error))) => Err(error),
        Some(Ok(Ok(()))) => Err(anyhow!("a role ended by itself")),
        Some(Err(error)) => Err(anyhow!("a role died: {error}")),
        None => Err(anyhow!("there is no role to run")),
    }
}

async fn scheduler(
    context: Context,
    settings: kai_scheduler::Settings,
    questions: Option<SocketAddr>,
) -> anyhow::Result<Infallible> {
    let scheduler = kai_scheduler::Scheduler::prepare(&context, settings);
    let Some(address) = questions else {
        return Ok(scheduler.run(context).await?);
    };
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .with_context(|| format!("listening on {address} for questions; choose another with --plugin-server-port"))?;
    let router = scheduler.router();
    tokio::select! {
        ended = scheduler.run(context) => Ok(ended?),
        ended = async { axum::serve(listener, router).await } => Err(anyhow!("answering questions ended: {ended:?}")),
    }
}
