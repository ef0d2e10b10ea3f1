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
use crate::inspect::remote::SchedulerEndpoints;

/// The shortest time between two views. Changes within it are shown together.
const PERIOD: Duration = Duration::from_millis(500);
/// The time between two requests to the scheduler.
const SCHEDULER_PERIOD: Duration = Duration::from_secs(1);
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
    /// The answer to a question: the uid of the pod, and `None` if it does not wait, lists are missing or the scheduler can't tell.
    Explained(Text, Option<Box<ExplanationView>>),
    /// The scheduler does not answer; the last view stays.
    Lost(String),
}

/// Sends the views and answers of the scheduler itself until the screen is gone.
pub(super) async fn follow_scheduler(
    scheduler: SchedulerEndpoints,
    mut questions: watch::Receiver<Option<Question>>,
    news: mpsc::Sender<News>,
) {
    let mut ticks = tokio::time::interval(SCHEDULER_PERIOD);
    let mut answers = JoinSet::new();
    loop {
        let told = tokio::select! {
            _ = ticks.tick() => match scheduler.view().await {
                Ok(view) => News::View(Arc::new(view)),
                Err(error) => News::Lost(format!("{error:#}")),
            },
            asked = questions.changed(), if answers.is_empty() => {
                if asked.is_err() {
                    return;
                }
                let Some(Question { pod }) = questions.borrow_and_update().clone() else { continue };
                let (scheduler, news) = (scheduler.clone(), news.clone());
                answers.spawn(async move {
                    let found = scheduler.explain(&pod.namespace, &pod.name).await.ok();
                    let _ = news.send(News::Explained(pod.uid, found.map(Box::new))).await;
                    // Each view asks again, and the trials take a thread of the scheduler.
                    tokio::time::sleep(2 * SCHEDULER_PERIOD).await;
                });
                continue;
            }
            Some(_) = answers.join_next() => continue,
        };
        if news.send(told).await.is_err() {
            return;
        }
    }
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

    /// A scheduler that answers two views, and then no more.
    #[tokio::test(start_paused = true)]
    async fn the_schedulers_own_view_is_followed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let view = include_str!("../../tests/data/top.json");
        let explanation = r#"{"nearestNodes":[],"remedies":[],"noRemedy":"none","cut":false,"trials":1}"#;
        let routes = axum::Router::new()
            .route("/view", axum::routing::get(move || async move { view }))
            .route("/explain", axum::routing::get(move || async move { explanation }));
        let server = tokio::spawn(async move { axum::serve(listener, routes).await });
        let (questions, asked) = watch::channel(None);
        let (news, mut latest) = mpsc::channel(1);
        tokio::spawn(follow_scheduler(SchedulerEndpoints::at(&url), asked, news));
        let Some(News::View(view)) = latest.recv().await else {
            panic!("the first news is a view");
        };
        let pod = view.pods.iter().flatten().next().unwrap().clone();
        questions.send_replace(Some(Question { pod: pod.clone() }));
        let explained = loop {
            match latest.recv().await.unwrap() {
                News::View(_) => {}
                News::Explained(uid, found) => break (uid, found.unwrap().no_remedy),
                News::Lost(error) => panic!("{error}"),
            }
        };
        assert_eq!(explained, (pod.uid, Some("none".to_owned())));
        server.abort();
        assert!(server.await.is_err());
        while !matches!(latest.recv().await, Some(News::Lost(_))) {}
    }

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
                    Some(News::Lost(error)) => panic!("{error}"),
                    None => panic!("the feed ended"),
                }
            };
            assert_eq!(answer.0, pod.uid);
            assert!(answer.1.is_some());
        });
    }
}
