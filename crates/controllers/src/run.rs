//! Runs all controllers in one future.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::time::Duration;

use kai_cluster::{Context, RoleFuture};

use crate::{Error, Settings, defaults, grouper, scale_adjuster, status};

/// Interval between attempts to create the default queues and priority classes.
const DEFAULTS_PAUSE: Duration = Duration::from_secs(10);

/// Runs the controllers until dropped.
pub fn run(context: Context, settings: Settings) -> RoleFuture<'static, Error> {
    Box::pin(run_controllers(context, settings))
}

async fn run_controllers(context: Context, settings: Settings) -> Result<Infallible, Error> {
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let defaults = async {
        if settings.create_defaults {
            create_defaults(&context, settings.create_default_queues).await;
        }
        pending().await
    };
    let grouper = settings.grouper.map(|settings| grouper::run(context.clone(), settings));
    let pod_groups = settings
        .pod_groups
        .map(|settings| status::pod_groups::run(context.clone(), settings));
    let queues = settings
        .queues
        .map(|settings| status::queues::run(context.clone(), settings));
    let scale_adjuster = settings
        .scale_adjuster
        .map(|settings| scale_adjuster::run(context.clone(), settings));
    tokio::select! {
        biased;
        never = defaults => never,
        ended = or_never(grouper) => ended,
        ended = or_never(pod_groups) => ended,
        ended = or_never(queues) => ended,
        ended = or_never(scale_adjuster) => ended,
    }
}

/// Tries until it succeeds: the CRDs may not exist yet when the first role starts.
async fn create_defaults(context: &Context, with_queues: bool) {
    while let Err(error) = defaults::create(context, with_queues).await {
        tracing::warn!(%error, "creating the default queues and priority classes failed");
        tokio::time::sleep(DEFAULTS_PAUSE).await;
    }
}

async fn or_never<T>(future: Option<impl Future<Output = T>>) -> T {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}
