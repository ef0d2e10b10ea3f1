//! The binder at work: the queues, what they share, and the loop that feeds them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kai_api::ObjectKey;
use kai_cluster::{Client, Clock, Context, EventRecorder, Health, Informers, WorkQueue};
use tokio::time::Instant;

use crate::locks::Locks;
use crate::metrics::Metrics;
use crate::notices::COMPONENT;
use crate::placeholders::Placeholders;
use crate::reservations::CrowdedNodes;
use crate::waits::Waits;
use crate::{Error, GroupKey, Settings};

/// Name under which the binder says that it is well.
pub(crate) const PART: &str = "binder";
/// The sweep says so every half minute; several missed ones mean that it hangs.
const SILENCE_MAX: Duration = Duration::from_secs(180);
/// Groups cared for at a time.
const CARE_WORKERS_MAX: usize = 4;

/// What binds and care share.
#[derive(Debug)]
pub(crate) struct Binder {
    pub(crate) client: Client,
    pub(crate) informers: Arc<Informers>,
    pub(crate) clock: Clock,
    pub(crate) health: Health,
    pub(crate) events: EventRecorder,
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
    pub(crate) binds: WorkQueue<ObjectKey>,
    pub(crate) care: WorkQueue<GroupKey>,
    pub(crate) locks: Locks,
    pub(crate) waits: Waits,
    pub(crate) placeholders: Placeholders,
    pub(crate) crowded: CrowdedNodes,
    pub(crate) progress: Progress,
    /// Whether the GPU operator uses CDI, and since when this is known.
    pub(crate) operator_cdi: tokio::sync::Mutex<Option<(bool, Instant)>>,
}

/// How long each bind is at it, and how many calls failed in a row.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// A plain lock: held for map operations only.
    binds: Mutex<BTreeMap<ObjectKey, (Instant, u32)>>,
}

impl Progress {
    /// How long the bind is at it.
    pub(crate) fn age(&self, key: &ObjectKey) -> Duration {
        self.lock()
            .entry(key.clone())
            .or_insert_with(|| (Instant::now(), 0))
            .0
            .elapsed()
    }

    /// Counts a failed call; answers with how many there were.
    pub(crate) fn trouble(&self, key: &ObjectKey) -> u32 {
        let mut binds = self.lock();
        let (_, troubles) = binds.entry(key.clone()).or_insert_with(|| (Instant::now(), 0));
        *troubles = troubles.saturating_add(1);
        *troubles
    }

    /// The bind is done with, one way or the other.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, (Instant, u32)>> {
        self.binds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Binder {
    fn new(context: Context, settings: Settings) -> Binder {
        let binds = WorkQueue::new(settings.backoff);
        let care = WorkQueue::new(settings.backoff);
        Binder {
            events: EventRecorder::new(&context.client, COMPONENT, context.clock),
            metrics: Metrics::new(&context.metrics),
            locks: Locks::new(&binds, &care),
            waits: Waits::default(),
            placeholders: Placeholders::default(),
            crowded: CrowdedNodes::default(),
            progress: Progress::default(),
            operator_cdi: tokio::sync::Mutex::default(),
            client: context.client,
            informers: context.informers,
            clock: context.clock,
            health: context.health,
            settings,
            binds,
            care,
        }
    }
}

/// Carries out bind requests until it is dropped. What it was doing then is taken up by the next one.
pub async fn run(context: Context, settings: Settings) -> Result<Infallible, Error> {
    context.health.announce(PART, SILENCE_MAX);
    let workers_max = settings.workers_max;
    let binder = Arc::new(Binder::new(context, settings));
    let binds = binder.binds.clone();
    let care = binder.care.clone();
    let (one, other) = (Arc::clone(&binder), Arc::clone(&binder));
    let binding = binds.run(workers_max, move |key| {
        let binder = Arc::clone(&one);
        async move { binder.work_on(key).await }
    });
    let caring = care.run(CARE_WORKERS_MAX, move |key| {
        let binder = Arc::clone(&other);
        async move { binder.care_for(key).await }
    });
    tokio::join!(binding, caring, binder.watch(), binder.look_for_ended());
    // The queues never end.
    std::future::pending().await
}
