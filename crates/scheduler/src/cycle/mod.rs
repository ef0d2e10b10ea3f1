//! The role as a whole: the task that owns index and engine, the writers beside it, the audit, and the door for questions.

mod apart;
mod driver;
mod evictions;
mod fair_shares;
mod sources;
mod watch;

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};

use crate::http::{self, Question};
use crate::metrics::Metrics;
use crate::writers::{Board, Lanes, write_board};
use crate::{Error, Settings, audit};

/// Questions that wait for the next cycle. They come from people; more than a few at a time are no use to anybody.
const QUESTIONS_MAX: usize = 16;
/// What the cycle is called in reports on health.
const HEALTH_NAME: &str = "scheduler cycle";
/// A cycle is run every second or so. One that takes minutes is slow and gets somewhere; a process that is ended for it begins anew with
/// the same work, and never gets there. Silence for this long means that a cycle hangs.
const SILENCE_MAX: std::time::Duration = std::time::Duration::from_secs(300);

/// The scheduler, ready to run. It registers its metrics and announces itself once; it may be run again after it lost its lease.
#[derive(Debug)]
pub struct Scheduler {
    settings: Arc<Settings>,
    metrics: Arc<Metrics>,
    ask: mpsc::Sender<Question>,
    /// Held for as long as the scheduler runs.
    questions: Mutex<mpsc::Receiver<Question>>,
    client: kai_cluster::Client,
}

impl Scheduler {
    /// Prepares to run.
    pub fn prepare(context: &kai_cluster::Context, settings: Settings) -> Scheduler {
        let (ask, questions) = mpsc::channel(QUESTIONS_MAX);
        for remark in &settings.remarks {
            tracing::warn!("{remark}");
        }
        let metrics = Metrics::new(&mut context.metrics.registry(), &settings.metrics_namespace);
        Scheduler {
            settings: Arc::new(settings),
            metrics: Arc::new(metrics),
            ask,
            questions: Mutex::new(questions),
            client: context.client.clone(),
        }
    }

    /// What it answers over HTTP: `/get-snapshot`, `/get-job-order` and `/explain?pod=namespace/name`. For the loopback interface only,
    /// since a snapshot shows all of a cluster.
    pub fn router(&self) -> axum::Router {
        http::router(self.client.clone(), Arc::clone(&self.settings), self.ask.clone())
    }

    /// Schedules until it is dropped or can't go on.
    pub async fn run(&self, context: kai_cluster::Context) -> Result<Infallible, Error> {
        let mut questions = self.questions.lock().await;
        context.health.announce(HEALTH_NAME, SILENCE_MAX);
        let board = Board::new();
        let lanes = Arc::new(Lanes::new());
        let driver = driver::Driver::new(&context, &self.settings, &self.metrics, &board, &lanes);
        let error = tokio::select! {
            biased;
            error = driver.run(&mut questions) => error,
            error = write_board(&context, &self.settings, &board, &lanes) => error,
            error = audit::run(&context, self.settings.audit_period, &self.metrics) => error,
        };
        Err(Error::Unauthorized(error))
    }
}

/// Schedules until it is dropped or can't go on, without anything over HTTP.
pub async fn run(context: kai_cluster::Context, settings: Settings) -> Result<Infallible, Error> {
    Scheduler::prepare(&context, settings).run(context.clone()).await
}
