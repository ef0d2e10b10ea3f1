//! The tasks of the scheduler role: the driver that owns mirror and engine, the writer of statuses, the audit, the source of past usage, and the
//! debug endpoints.

mod blocking;
#[cfg(test)]
mod both_doors;
mod cycle_timer;
mod driver;
mod evictions;
mod fair_shares;
mod sources;

pub use sources::Sources;

use std::convert::Infallible;
use std::sync::Arc;

use kai_cluster::RoleFuture;
use tokio::sync::{Mutex, mpsc};

use crate::debug_endpoints::{self, DebugRequest, ViewHandle};
use crate::metrics::Metrics;
use crate::writers::{StatusQueue, WriteLimiter, write_statuses};
use crate::{Error, Settings, audit, usage};

/// Debug requests that may wait for the next cycle. People send them, a few at a time.
const DEBUG_REQUESTS_MAX: usize = 16;
/// The name of the cycle in the health endpoint.
const HEALTH_NAME: &str = "scheduler cycle";
/// The liveness probe fails after this time without a finished cycle. Cycles run about every second. A cycle of a minute is slow but makes
/// progress, and a restart would repeat its work; a cycle of this length hangs.
const SILENCE_MAX: std::time::Duration = std::time::Duration::from_secs(300);

/// The scheduler, ready to run. [`Scheduler::prepare`] registers its metrics once; the process may run it again after it lost its lease.
#[derive(Debug)]
pub struct Scheduler {
    settings: Arc<Settings>,
    metrics: Arc<Metrics>,
    driver: ViewHandle,
    /// [`Scheduler::run`] holds the lock while it runs.
    debug_requests: Mutex<mpsc::Receiver<DebugRequest>>,
    client: kai_cluster::Client,
    clock: kai_cluster::Clock,
}

impl Scheduler {
    /// Registers the metrics and logs warnings about the settings.
    pub fn prepare(context: &kai_cluster::Context, settings: Settings) -> Scheduler {
        let (debug_sender, debug_requests) = mpsc::channel(DEBUG_REQUESTS_MAX);
        for warning in &settings.warnings {
            tracing::warn!("{warning}");
        }
        let metrics = Metrics::new(&mut context.metrics.registry(), &settings.metrics_namespace);
        Scheduler {
            settings: Arc::new(settings),
            metrics: Arc::new(metrics),
            driver: ViewHandle::new(debug_sender),
            debug_requests: Mutex::new(debug_requests),
            client: context.client.clone(),
            clock: context.clock,
        }
    }

    /// The debug endpoints `/get-snapshot`, `/get-job-order`, `/explain?pod=namespace/name`, `/view` and `/decisions?after=number`. Serve them
    /// on the loopback interface only: they show the whole cluster.
    pub fn router(&self) -> axum::Router {
        debug_endpoints::router(
            self.client.clone(),
            self.clock,
            Arc::clone(&self.settings),
            self.driver.clone(),
        )
    }

    /// The cluster as this scheduler sees it, for the page.
    pub fn watcher(&self) -> ViewHandle {
        self.driver.clone()
    }

    /// Schedules until the future is dropped or the API server rejects our credentials.
    pub fn run(&self, context: kai_cluster::Context) -> RoleFuture<'_, Error> {
        Box::pin(self.schedule(context))
    }

    async fn schedule(&self, context: kai_cluster::Context) -> Result<Infallible, Error> {
        let mut debug_requests = self.debug_requests.lock().await;
        context.health.announce(HEALTH_NAME, SILENCE_MAX);
        let status_queue = StatusQueue::new();
        let write_limiter = Arc::new(WriteLimiter::new());
        let (feed, source) = usage::link(&context, &self.settings, &self.metrics);
        let driver = driver::Driver::new(
            &context,
            &self.settings,
            &self.metrics,
            &status_queue,
            &write_limiter,
            self.driver.running_flag(),
            feed,
        );
        let error = tokio::select! {
            biased;
            error = driver.run(&mut debug_requests) => error,
            error = write_statuses(&context, &self.settings, &status_queue, &write_limiter) => error,
            error = audit::run(&context, self.settings.audit_period, &self.metrics) => error,
            never = source.run() => match never {},
        };
        Err(Error::Unauthorized(error))
    }
}

/// Prepares and runs a scheduler without debug endpoints.
pub async fn run(context: kai_cluster::Context, settings: Settings) -> Result<Infallible, Error> {
    Scheduler::prepare(&context, settings).run(context.clone()).await
}
