//! A cluster for the page that is followed by watches, for `kai ui`. One task owns it; a view is computed when somebody asks.

use std::sync::Arc;
use std::time::Duration;

use kai_engine::remedies::Explanation;
use kai_page::{BoxFuture, Source};
use kai_view::{ClusterView, ExplanationView};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::inspect::live::LiveCluster;

/// The shortest time between two views. Requests within it get the same one.
const PERIOD: Duration = Duration::from_millis(500);
/// A view without changes is as old as this at most: ages grow.
const AGE_MAX: Duration = Duration::from_secs(5);
/// Requests that may wait. People send them, a few at a time.
const REQUESTS_MAX: usize = 16;
/// Explanations that are found out at a time. Each has a copy of the engine.
const EXPLANATIONS_MAX: usize = 2;

/// Asks what would let a pod start.
struct Question {
    namespace: String,
    pod: String,
    reply: oneshot::Sender<Option<ExplanationView>>,
}

/// Asks the task that owns the cluster.
#[derive(Clone)]
pub(crate) struct LiveSource {
    views: mpsc::Sender<oneshot::Sender<Arc<ClusterView>>>,
    questions: mpsc::Sender<Question>,
}

impl LiveSource {
    /// Starts the task, which ends with the last clone of the result.
    pub(crate) fn start(live: LiveCluster) -> LiveSource {
        let (views, viewed) = mpsc::channel(REQUESTS_MAX);
        let (questions, asked) = mpsc::channel(REQUESTS_MAX);
        tokio::spawn(answer(Shown::new(live), viewed, asked));
        LiveSource { views, questions }
    }
}

impl Source for LiveSource {
    fn view(&self) -> BoxFuture<'_, Option<Arc<ClusterView>>> {
        Box::pin(async {
            let (reply, answer) = oneshot::channel();
            self.views.send(reply).await.ok()?;
            answer.await.ok()
        })
    }

    fn explain(&self, namespace: &str, pod: &str) -> BoxFuture<'_, Option<ExplanationView>> {
        let (namespace, pod) = (namespace.to_owned(), pod.to_owned());
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            let question = Question { namespace, pod, reply };
            self.questions.send(question).await.ok()?;
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

/// The cluster with its last view.
struct Shown {
    live: LiveCluster,
    has_changed: bool,
    computed: Option<Computed>,
}

impl Shown {
    fn new(live: LiveCluster) -> Shown {
        Shown {
            live,
            has_changed: true,
            computed: None,
        }
    }

    /// The last view, or a new one if that is old.
    fn view(&mut self) -> Arc<ClusterView> {
        let is_current = |computed: &&Computed| {
            let age = computed.at.elapsed();
            // A large cluster takes longer for a view: half of the time stays for everything else.
            age < PERIOD.max(computed.took) || (!self.has_changed && age < AGE_MAX)
        };
        if let Some(computed) = self.computed.as_ref().filter(is_current) {
            return Arc::clone(&computed.view);
        }
        self.has_changed = false;
        let began = Instant::now();
        let view = tokio::task::block_in_place(|| Arc::new(self.live.view()));
        let (at, took) = (Instant::now(), began.elapsed());
        self.computed = Some(Computed {
            view: Arc::clone(&view),
            at,
            took,
        });
        view
    }

    /// The trials for a pod; `None` if it does not wait.
    fn trials(&mut self, namespace: &str, pod: &str) -> Option<impl FnOnce() -> Option<Explanation> + Send + use<>> {
        let view = self.view();
        let mut pods = view.pods.iter().flatten();
        let pod = pods.find(|known| known.namespace == namespace && known.name == pod)?;
        self.live.trials(pod)
    }
}

/// Explanations are found out beside the views: trials on a large cluster take seconds.
async fn answer(
    mut shown: Shown,
    mut views: mpsc::Receiver<oneshot::Sender<Arc<ClusterView>>>,
    mut questions: mpsc::Receiver<Question>,
) {
    let changes = shown.live.changes();
    let mut trials = JoinSet::new();
    loop {
        tokio::select! {
            () = changes.notified(), if !shown.has_changed => shown.has_changed = true,
            reply = views.recv() => {
                let Some(reply) = reply else { return };
                // A caller that has gone needs no answer.
                drop(reply.send(shown.view()));
            }
            Some(question) = questions.recv(), if trials.len() < EXPLANATIONS_MAX => {
                let Question { namespace, pod, reply } = question;
                match shown.trials(&namespace, &pod) {
                    Some(found) => drop(trials.spawn_blocking(move || (found(), reply))),
                    None => drop(reply.send(None)),
                }
            }
            // The reply of trials that panicked is dropped: the caller gets no explanation.
            Some(Ok((found, reply))) = trials.join_next() => {
                drop(reply.send(found.map(|found| shown.live.named(&found))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use super::*;
    use crate::inspect::live::tests::with_a_waiting_pod;

    /// No trials end while the only thread for them is taken.
    #[test]
    fn a_view_does_not_wait_for_an_explanation() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let source = LiveSource::start(with_a_waiting_pod().await);
            let (release, held) = std::sync::mpsc::channel::<()>();
            let holder = tokio::task::spawn_blocking(move || held.recv());
            let mut explanation = pin!(source.explain("default", "waits"));
            for _ in 0..20 {
                let asked = poll_fn(|context| Poll::Ready(explanation.as_mut().poll(context).is_pending())).await;
                assert!(asked, "the trials can't run yet");
                assert!(source.view().await.is_some());
            }
            release.send(()).unwrap();
            holder.await.unwrap().unwrap();
            assert!(explanation.await.is_some());
        });
    }
}
