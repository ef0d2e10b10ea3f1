//! Views of the cluster as it changes.

use std::sync::Arc;
use std::time::Duration;

use kai_engine::remedies::Explanation;
use kai_mirror::ExplanationView;
use kai_view::{ClusterView, Pod, Text};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::inspect::live::LiveCluster;

/// The shortest time between two views. Changes within it are shown together.
const PERIOD: Duration = Duration::from_millis(500);
/// A view without changes: ages grow.
const AGES: Duration = Duration::from_secs(5);

/// Asks what would let a pod start.
#[derive(Clone)]
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

/// Sends views and answers until the screen is gone. A question is answered beside the views: trials on a large cluster take seconds. A newer
/// question replaces one that waits for an earlier answer.
pub(super) async fn follow(
    mut live: LiveCluster,
    mut questions: watch::Receiver<Option<Question>>,
    news: mpsc::Sender<News>,
) {
    let changes = live.changes();
    // One at a time: each has a copy of the engine.
    let mut trials: JoinSet<(Text, Option<Explanation>)> = JoinSet::new();
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
            let answer = tokio::select! {
                () = &mut next => break,
                asked = questions.changed(), if trials.is_empty() => {
                    if asked.is_err() {
                        return;
                    }
                    let question = questions.borrow_and_update().clone();
                    let Some(Question { pod }) = question else { continue };
                    match live.trials(&pod) {
                        Some(found) => {
                            trials.spawn_blocking(move || (pod.uid, found()));
                            continue;
                        }
                        None => News::Explained(pod.uid, None),
                    }
                }
                Some(ended) = trials.join_next() => match ended {
                    Ok((uid, found)) => News::Explained(uid, found.map(|found| Box::new(live.named(&found)))),
                    // A panic: it was reported, and the next view asks again.
                    Err(_) => continue,
                },
            };
            if news.send(answer).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::live::tests::with_a_waiting_pod;

    /// No trials end while the only thread for them is taken.
    #[test]
    fn views_go_on_while_a_question_is_answered() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let live = with_a_waiting_pod().await;
            let changes = live.changes();
            let (questions, asked) = watch::channel(None);
            let (news, mut latest) = mpsc::channel(1);
            tokio::spawn(follow(live, asked, news));
            let Some(News::View(view)) = latest.recv().await else {
                panic!("the first news is a view");
            };
            let (release, held) = std::sync::mpsc::channel::<()>();
            let holder = tokio::task::spawn_blocking(move || held.recv());
            let pod = view.pods.iter().flatten().find(|pod| pod.name == "waits").unwrap();
            questions.send_replace(Some(Question { pod: pod.clone() }));
            for _ in 0..2 {
                changes.notify_one();
                assert!(matches!(latest.recv().await, Some(News::View(_))));
            }
            release.send(()).unwrap();
            holder.await.unwrap().unwrap();
            let answer = loop {
                match latest.recv().await {
                    Some(News::View(_)) => {}
                    Some(News::Explained(uid, answer)) => break (uid, answer),
                    None => panic!("the feed ended"),
                }
            };
            assert_eq!(answer.0, pod.uid);
            assert!(answer.1.is_some());
        });
    }
}
