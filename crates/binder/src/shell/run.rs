//! Runs the binder: the work queues, the state that they share, and the watch loop that fills them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use kai_api::ObjectKey;
use kai_cluster::{Client, Clock, Context, EventRecorder, Health, Informers, RoleFuture, WorkQueue};
use tokio::time::Instant;

use crate::bind::progress::Progress;
use crate::bind::report::COMPONENT;
use crate::reservation::locks::GroupLocks;
use crate::reservation::pending::PendingReservations;
use crate::reservation::placeholders::Placeholders;
use crate::reservation::pods::FullNodes;
use crate::shell::metrics::Metrics;
use crate::{Error, GpuGroupKey, Settings};

/// The binder's name in the health report.
pub(crate) const HEALTH_COMPONENT: &str = "binder";
/// The resync reports every half minute; several missed reports mean that the binder hangs.
const SILENCE_MAX: Duration = Duration::from_secs(180);
/// Groups that are garbage-collected at a time.
const GC_WORKERS_MAX: usize = 4;

/// The state that binds and garbage collection share.
#[derive(Debug)]
pub(crate) struct Binder {
    pub(crate) client: Client,
    pub(crate) informers: Arc<Informers>,
    pub(crate) clock: Clock,
    pub(crate) health: Health,
    pub(crate) events: EventRecorder,
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
    pub(crate) bind_queue: WorkQueue<ObjectKey>,
    pub(crate) gc_queue: WorkQueue<GpuGroupKey>,
    pub(crate) locks: GroupLocks,
    pub(crate) pending: PendingReservations,
    pub(crate) placeholders: Placeholders,
    pub(crate) full_nodes: FullNodes,
    pub(crate) progress: Progress,
    /// Cached: whether the GPU operator uses CDI, and when that was read.
    pub(crate) operator_cdi: tokio::sync::Mutex<Option<(bool, Instant)>>,
    /// The owner of reservation pods, once it is read.
    pub(crate) owner: tokio::sync::OnceCell<Option<serde_json::Value>>,
}

impl Binder {
    fn new(context: Context, settings: Settings) -> Binder {
        let bind_queue = WorkQueue::new(settings.backoff);
        let gc_queue = WorkQueue::new(settings.backoff);
        Binder {
            events: EventRecorder::new(&context.client, COMPONENT, context.clock),
            metrics: Metrics::new(&context.metrics),
            locks: GroupLocks::new(&bind_queue, &gc_queue),
            pending: PendingReservations::default(),
            placeholders: Placeholders::default(),
            full_nodes: FullNodes::default(),
            progress: Progress::default(),
            operator_cdi: tokio::sync::Mutex::default(),
            owner: tokio::sync::OnceCell::default(),
            client: context.client,
            informers: context.informers,
            clock: context.clock,
            health: context.health,
            settings,
            bind_queue,
            gc_queue,
        }
    }
}

/// Carries out BindRequests until the future is dropped. The next binder continues unfinished binds.
pub fn run(context: Context, settings: Settings) -> RoleFuture<'static, Error> {
    Box::pin(carry_out_requests(context, settings))
}

async fn carry_out_requests(context: Context, settings: Settings) -> Result<Infallible, Error> {
    context.health.announce(HEALTH_COMPONENT, SILENCE_MAX);
    let workers_max = settings.workers_max;
    let binder = Arc::new(Binder::new(context, settings));
    let bind_queue = binder.bind_queue.clone();
    let gc_queue = binder.gc_queue.clone();
    let (for_binds, for_gc) = (Arc::clone(&binder), Arc::clone(&binder));
    let binding = bind_queue.run(workers_max, move |key| {
        let binder = Arc::clone(&for_binds);
        async move { binder.reconcile_request(key).await }
    });
    let collecting = gc_queue.run(GC_WORKERS_MAX, move |key| {
        let binder = Arc::clone(&for_gc);
        async move { binder.reconcile_group(key).await }
    });
    tokio::join!(binding, collecting, binder.watch(), binder.collect_ended_reservations());
    // The queues never end.
    std::future::pending().await
}
