//! Views of the cluster as it changes.

use std::sync::Arc;
use std::time::Duration;

use kai_mirror::ExplanationView;
use kai_view::{ClusterView, Pod, Text};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::inspect::live::LiveCluster;

/// The shortest time between two views. Changes within it are shown together.
const PERIOD: Duration = Duration::from_millis(500);
/// A view without changes: ages grow.
const AGES: Duration = Duration::from_secs(5);

/// Asks what would let a pod start.
pub(super) struct Question {
    pub(super) pod: Pod,
}

/// What the screen has to show.
pub(super) enum News {
    /// The cluster has changed.
    View(Arc<ClusterView>),
    /// The answer to a question: the uid of the pod, and `None` if it does not wait or lists are missing.
    Explained(Text, Option<Box<ExplanationView>>),
}

/// Sends views and answers until the screen is gone.
pub(super) async fn follow(mut live: LiveCluster, mut questions: mpsc::Receiver<Question>, news: mpsc::Sender<News>) {
    let changes = live.changes();
    loop {
        let began = Instant::now();
        let view = tokio::task::block_in_place(|| Arc::new(live.view()));
        if news.send(News::View(view)).await.is_err() {
            return;
        }
        // A large cluster takes longer for a view: half of the time stays for everything else.
        let pause = PERIOD.max(began.elapsed());
        let next = async {
            tokio::time::sleep(pause).await;
            let _ = tokio::time::timeout(AGES, changes.notified()).await;
        };
        tokio::pin!(next);
        loop {
            tokio::select! {
                () = &mut next => break,
                question = questions.recv() => {
                    let Some(Question { pod }) = question else { return };
                    let trials = live.trials(&pod);
                    let explanation = match trials {
                        Some(trials) => tokio::task::spawn_blocking(trials).await.ok().flatten(),
                        None => None,
                    };
                    let answer = explanation.map(|explanation| Box::new(live.named(&explanation)));
                    if news.send(News::Explained(pod.uid, answer)).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}
