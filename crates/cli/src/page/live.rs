//! A cluster for the page that is followed by watches, for `kai ui`. One task owns it; a view is computed when somebody asks.

use std::sync::Arc;
use std::time::Duration;

use kai_page::{BoxFuture, Source};
use kai_view::{ClusterView, ExplanationView};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::inspect::live::LiveCluster;

/// The shortest time between two views. Requests within it get the same one.
const PERIOD: Duration = Duration::from_millis(500);
/// A view without changes is as old as this at most: ages grow.
const AGE_MAX: Duration = Duration::from_secs(5);
/// Requests that may wait. People send them, a few at a time.
const REQUESTS_MAX: usize = 16;

enum Request {
    View(oneshot::Sender<Arc<ClusterView>>),
    Explain {
        namespace: String,
        pod: String,
        reply: oneshot::Sender<Option<ExplanationView>>,
    },
}

/// Asks the task that owns the cluster.
#[derive(Clone)]
pub(crate) struct LiveSource {
    requests: mpsc::Sender<Request>,
}

impl LiveSource {
    /// Starts the task, which ends with the last clone of the result.
    pub(crate) fn start(live: LiveCluster) -> LiveSource {
        let (requests, asked) = mpsc::channel(REQUESTS_MAX);
        tokio::spawn(answer(live, asked));
        LiveSource { requests }
    }
}

impl Source for LiveSource {
    fn view(&self) -> BoxFuture<'_, Option<Arc<ClusterView>>> {
        Box::pin(async {
            let (reply, answer) = oneshot::channel();
            self.requests.send(Request::View(reply)).await.ok()?;
            answer.await.ok()
        })
    }

    fn explain(&self, namespace: &str, pod: &str) -> BoxFuture<'_, Option<ExplanationView>> {
        let (namespace, pod) = (namespace.to_owned(), pod.to_owned());
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            let request = Request::Explain { namespace, pod, reply };
            self.requests.send(request).await.ok()?;
            answer.await.ok()?
        })
    }
}

/// The last view.
struct Computed {
    view: Arc<ClusterView>,
    at: Instant,
    /// How long it took.
    took: Duration,
}

async fn answer(mut live: LiveCluster, mut asked: mpsc::Receiver<Request>) {
    let changes = live.changes();
    let mut has_changed = true;
    let mut computed: Option<Computed> = None;
    loop {
        let request = tokio::select! {
            () = changes.notified(), if !has_changed => {
                has_changed = true;
                continue;
            }
            request = asked.recv() => request,
        };
        let Some(request) = request else { return };
        let is_current = |computed: &Computed| {
            let age = computed.at.elapsed();
            // A large cluster takes longer for a view: half of the time stays for everything else.
            age < PERIOD.max(computed.took) || (!has_changed && age < AGE_MAX)
        };
        let view = match computed.as_ref().filter(|computed| is_current(computed)) {
            Some(computed) => Arc::clone(&computed.view),
            None => {
                has_changed = false;
                let began = Instant::now();
                let view = tokio::task::block_in_place(|| Arc::new(live.view()));
                let (at, took) = (Instant::now(), began.elapsed());
                computed = Some(Computed {
                    view: Arc::clone(&view),
                    at,
                    took,
                });
                view
            }
        };
        match request {
            // A caller that has gone needs no answer.
            Request::View(reply) => drop(reply.send(view)),
            Request::Explain { namespace, pod, reply } => {
                let mut pods = view.pods.iter().flatten();
                let pod = pods.find(|known| known.namespace == namespace && known.name == pod);
                let explanation = match pod.and_then(|pod| live.trials(pod)) {
                    Some(trials) => tokio::task::spawn_blocking(trials).await.ok().flatten(),
                    None => None,
                };
                drop(reply.send(explanation.map(|explanation| live.named(&explanation))));
            }
        }
    }
}
