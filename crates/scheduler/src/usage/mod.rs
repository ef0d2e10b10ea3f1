//! Usage over time for the engine: from the scheduler's own history, or from Prometheus.
//!
//! The driver owns a [`UsageFeed`] and asks it between cycles; it never waits for it, except at its start. A task of its own, the
//! [`UsageSource`], queries Prometheus, or loads and saves the history. Without either, fair shares follow present usage only.

mod http;
mod query;
mod storage;

use std::convert::Infallible;
use std::sync::Arc;

use kai_engine::model::{Event, Millis};
use kai_usage::{History, Observation, Source, UsageByQueue, UsageSettings};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Settings;
use crate::metrics::Metrics;

/// What the source has brought.
#[derive(Clone, Debug, Default)]
enum Brought {
    /// Nothing yet.
    #[default]
    Nothing,
    /// Nothing: the first attempt failed, and there is no use in waiting for the next one.
    Failed,
    /// The saved history; empty = none.
    Saved(Arc<str>),
    /// Usage by Prometheus, at this time.
    Usage(Arc<UsageByQueue>, Instant),
}

/// The driver's end.
#[derive(Debug)]
pub(crate) struct UsageFeed {
    settings: Option<Arc<UsageSettings>>,
    brought: watch::Receiver<Brought>,
    /// The history, once the saved one was loaded.
    history: Option<History>,
    /// To the task that saves it.
    saved: watch::Sender<Option<Arc<History>>>,
    /// What the engine has.
    present: UsageByQueue,
    started: Instant,
    last_update: Option<Instant>,
    last_save: Instant,
    has_saved: bool,
    is_stale: bool,
}

/// The task's end.
pub(crate) struct UsageSource {
    context: kai_cluster::Context,
    settings: Arc<Settings>,
    metrics: Arc<Metrics>,
    brings: watch::Sender<Brought>,
    saves: watch::Receiver<Option<Arc<History>>>,
}

/// Both ends of a source as the settings have it.
pub(crate) fn link(
    context: &kai_cluster::Context,
    settings: &Arc<Settings>,
    metrics: &Arc<Metrics>,
) -> (UsageFeed, UsageSource) {
    let (brings, brought) = watch::channel(Brought::Nothing);
    let (saved, saves) = watch::channel(None);
    let feed = UsageFeed {
        settings: settings.usage.clone().map(Arc::new),
        brought,
        history: None,
        saved,
        present: UsageByQueue::new(),
        started: Instant::now(),
        last_update: None,
        last_save: Instant::now(),
        has_saved: false,
        is_stale: false,
    };
    let source = UsageSource {
        context: context.clone(),
        settings: Arc::clone(settings),
        metrics: Arc::clone(metrics),
        brings,
        saves,
    };
    (feed, source)
}

impl UsageSource {
    /// Runs until the future is dropped.
    pub(crate) async fn run(mut self) -> Infallible {
        let settings = Arc::clone(&self.settings);
        match settings.usage.as_ref().map(|usage| (usage, &usage.source)) {
            None => std::future::pending().await,
            Some((_, Source::Embedded)) => self.keep_history().await,
            Some((usage, Source::Prometheus(prometheus))) => self.query(usage, prometheus).await,
        }
    }

    /// The first attempt failed.
    fn fail_first(&self) {
        self.brings.send_if_modified(|brought| {
            let first = matches!(brought, Brought::Nothing);
            if first {
                *brought = Brought::Failed;
            }
            first
        });
    }
}

impl UsageFeed {
    /// Waits for the first usage: a cycle without it could evict pods by a share that the next cycle takes back. The wait ends with the
    /// first failure, and after `waitTimeout`.
    pub(crate) async fn started(&mut self) {
        let Some(settings) = &self.settings else { return };
        let first = self.brought.wait_for(|brought| !matches!(brought, Brought::Nothing));
        if tokio::time::timeout(settings.wait_timeout, first).await.is_err() {
            tracing::warn!("past usage is not known in time; until it is, fair shares follow present usage only");
        }
        // To wait is not to take.
        self.brought.mark_changed();
    }

    /// Adds what queues hold from now on to the history, and passes it on to be saved when it is time.
    pub(crate) fn observe(&mut self, now: Millis, engine: &kai_engine::Cluster) {
        let Some(history) = &mut self.history else { return };
        history.observe(now, observation(engine));
        let period = match self.has_saved {
            true => storage::SAVE_PERIOD,
            false => storage::FIRST_SAVE,
        };
        if self.last_save.elapsed() >= period {
            (self.last_save, self.has_saved) = (Instant::now(), true);
            self.saved.send_replace(Some(Arc::new(history.clone())));
        }
    }

    /// Brings the engine's usage up to date, and reports usage that is stale. Call it before a cycle: like any change, it takes back what the last
    /// cycle promised, which views still show.
    pub(crate) fn update(&mut self, now: Millis, engine: &mut kai_engine::Cluster, metrics: &Metrics) {
        let Some(settings) = self.settings.clone() else { return };
        if self.brought.has_changed().unwrap_or(false) {
            let brought = self.brought.borrow_and_update().clone();
            match brought {
                Brought::Nothing | Brought::Failed => {}
                Brought::Saved(text) => self.history = Some(loaded(&settings, &text, now)),
                Brought::Usage(usage, at) => {
                    self.apply(engine, (*usage).clone());
                    self.last_update = Some(at);
                }
            }
        }
        let is_due = self
            .last_update
            .is_none_or(|at| at.elapsed() >= settings.fetch_interval);
        if let Some(history) = self.history.as_ref().filter(|_| is_due) {
            let usage = history.usage(now);
            self.apply(engine, usage);
            self.last_update = Some(Instant::now());
        }
        self.report_age(&settings, metrics);
    }

    fn apply(&mut self, engine: &mut kai_engine::Cluster, usage: UsageByQueue) {
        for change in kai_usage::changes(&self.present, &usage) {
            engine.apply(Event::Usage(change));
        }
        self.present = usage;
    }

    fn report_age(&mut self, settings: &UsageSettings, metrics: &Metrics) {
        let age = self.last_update.unwrap_or(self.started).elapsed();
        let is_stale = age > settings.staleness;
        metrics.usage().set_age(age, is_stale);
        if is_stale == std::mem::replace(&mut self.is_stale, is_stale) {
            return;
        }
        match (is_stale, self.last_update) {
            (false, _) => tracing::info!("past usage is up to date again"),
            (true, Some(_)) => tracing::error!(
                age_seconds = age.as_secs(),
                "past usage is stale; fair shares follow the last known usage"
            ),
            (true, None) => tracing::error!("past usage is not known; fair shares follow present usage only"),
        }
    }
}

/// A history that goes on from the saved one.
fn loaded(settings: &UsageSettings, text: &str, now: Millis) -> History {
    let mut history = History::new(settings.window.clone(), settings.decay);
    if let Err(error) = history.load(text, now) {
        tracing::warn!(error, "the saved history of usage can't be read; a new one begins");
    }
    history
}

fn observation(engine: &kai_engine::Cluster) -> Observation {
    let queues = engine.queues();
    Observation {
        capacity: engine.capacity(),
        allocated: queues
            .iter()
            .map(|queue| (queue.name.to_owned(), queue.allocated))
            .collect(),
    }
}
