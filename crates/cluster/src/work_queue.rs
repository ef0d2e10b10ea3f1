//! A work queue of keys, like client-go's. Each key is in work at most once at a time; a key that is added while in work is queued
//! again afterwards; a key that failed waits with exponential backoff.

use std::collections::BTreeSet;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use kai_api::Backoff;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The first list adds all keys of a cluster at once. An empty map with more capacity than this is freed.
const CAPACITY_KEPT_MAX: usize = 1_024;

/// How work on a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkResult {
    /// The work is complete.
    Done,
    /// The work failed: retry after the backoff.
    Retry,
    /// The work is not complete, but did not fail: requeue the key after this time.
    RequeueAfter(Duration),
}

/// A queue of keys. Clones share it.
#[derive(Debug)]
pub struct WorkQueue<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        WorkQueue {
            shared: Arc::clone(&self.shared),
        }
    }
}

#[derive(Debug)]
struct Shared<K> {
    /// A plain lock: held for map operations only, never across an await.
    state: Mutex<State<K>>,
    wake: Notify,
    backoff: Backoff,
}

#[derive(Debug)]
struct State<K> {
    /// When each waiting key is due.
    due: FxHashMap<K, Instant>,
    by_time: BTreeSet<(Instant, K)>,
    in_work: FxHashSet<K>,
    /// Keys that were added while in work.
    requeue: FxHashSet<K>,
    failures: FxHashMap<K, u32>,
}

impl<K: Clone + Eq + Hash + Ord> WorkQueue<K> {
    /// An empty queue.
    pub fn new(backoff: Backoff) -> WorkQueue<K> {
        WorkQueue {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    due: FxHashMap::default(),
                    by_time: BTreeSet::new(),
                    in_work: FxHashSet::default(),
                    requeue: FxHashSet::default(),
                    failures: FxHashMap::default(),
                }),
                wake: Notify::new(),
                backoff,
            }),
        }
    }

    /// Queues the key. A key in backoff stays there.
    pub fn add(&self, key: K) {
        self.add_after(key, Duration::ZERO);
    }

    /// Queues the key after a pause, unless it is due sooner: all changes until then are handled together.
    pub fn add_after(&self, key: K, pause: Duration) {
        let mut state = self.shared.state.lock();
        if state.in_work.contains(&key) {
            state.requeue.insert(key);
            return;
        }
        if state.failures.contains_key(&key) && state.due.contains_key(&key) {
            return;
        }
        state.schedule(key, Instant::now() + pause);
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Resets the backoff of the key.
    pub fn forget(&self, key: &K) {
        self.shared.state.lock().failures.remove(key);
    }

    /// Waits for the next key that is due. The key is in work until [`WorkQueue::finish`].
    pub async fn next(&self) -> K {
        loop {
            let wait_until = {
                let mut state = self.shared.state.lock();
                match state.by_time.first().cloned() {
                    Some((due, key)) if due <= Instant::now() => {
                        state.by_time.pop_first();
                        state.due.remove(&key);
                        if state.due.is_empty() && state.due.capacity() > CAPACITY_KEPT_MAX {
                            state.due = FxHashMap::default();
                        }
                        state.in_work.insert(key.clone());
                        if !state.by_time.is_empty() {
                            self.shared.wake.notify_one();
                        }
                        return key;
                    }
                    Some((due, _)) => Some(due),
                    None => None,
                }
            };
            match wait_until {
                Some(due) => {
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep_until(due) => {}
                        () = self.shared.wake.notified() => {}
                    }
                }
                None => self.shared.wake.notified().await,
            }
        }
    }

    /// Ends the work on the key.
    pub fn finish(&self, key: K, result: WorkResult) {
        let mut state = self.shared.state.lock();
        state.in_work.remove(&key);
        let added = state.requeue.remove(&key);
        let now = Instant::now();
        match result {
            WorkResult::Done => {
                state.failures.remove(&key);
                if added {
                    state.schedule(key, now);
                }
            }
            WorkResult::RequeueAfter(pause) => {
                state.failures.remove(&key);
                state.schedule(key, if added { now } else { now + pause });
            }
            WorkResult::Retry => {
                let failures = state.failures.entry(key.clone()).or_insert(0);
                *failures = failures.saturating_add(1);
                let pause = self.shared.backoff.pause(*failures);
                state.schedule(key, now + pause);
            }
        }
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Number of keys that are queued or in work.
    pub fn len(&self) -> usize {
        let state = self.shared.state.lock();
        state.due.len() + state.in_work.len()
    }

    /// Whether no key is queued or in work.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs `work` on due keys for ever, on up to `workers_max` keys at a time. A panic of `work` counts as a failure of its key.
    pub async fn run<F, W>(&self, workers_max: usize, work: W)
    where
        K: Send + Sync + std::fmt::Debug + 'static,
        W: Fn(K) -> F + Send + Sync + 'static,
        F: Future<Output = WorkResult> + Send + 'static,
    {
        let work = Arc::new(work);
        let mut running = tokio::task::JoinSet::new();
        let mut names: FxHashMap<tokio::task::Id, K> = FxHashMap::default();
        loop {
            tokio::select! {
                biased;
                key = self.next(), if running.len() < workers_max => {
                    let task = running.spawn(work(key.clone()));
                    names.insert(task.id(), key);
                }
                Some(ended) = running.join_next_with_id(), if !running.is_empty() => {
                    let (id, result) = match ended {
                        Ok((id, result)) => (id, result),
                        Err(error) => {
                            tracing::error!(%error, key = ?names.get(&error.id()), "work on one object panicked; it is tried again");
                            (error.id(), WorkResult::Retry)
                        }
                    };
                    if let Some(key) = names.remove(&id) {
                        self.finish(key, result);
                    }
                }
            }
        }
    }
}

impl<K: Clone + Eq + Hash + Ord> State<K> {
    /// Makes the key due at this time, unless it is due sooner.
    fn schedule(&mut self, key: K, due: Instant) {
        match self.due.get(&key) {
            Some(present) if *present <= due => return,
            Some(present) => {
                self.by_time.remove(&(*present, key.clone()));
            }
            None => {}
        }
        self.due.insert(key.clone(), due);
        self.by_time.insert((due, key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> WorkQueue<&'static str> {
        WorkQueue::new(Backoff::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_in_work_once_and_comes_again_if_it_changed() {
        let queue = queue();
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.next().await, "b");
        queue.finish("a", WorkResult::Done);
        assert_eq!(queue.next().await, "a");
        queue.finish("a", WorkResult::Done);
        queue.finish("b", WorkResult::Done);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn changes_within_a_while_are_worked_on_together() {
        let (queue, pause) = (queue(), Duration::from_secs(1));
        let start = Instant::now();
        queue.add_after("a", pause);
        tokio::time::sleep(pause / 2).await;
        queue.add_after("a", pause);
        assert_eq!((queue.next().await, start.elapsed()), ("a", pause));
        queue.add_after("a", pause);
        queue.finish("a", WorkResult::Done);
        assert_eq!(
            (queue.next().await, start.elapsed()),
            ("a", pause),
            "it changed while it was in work"
        );
        queue.finish("a", WorkResult::Done);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_wait_longer_each_time_and_changes_do_not_cut_the_wait_short() {
        let queue = queue();
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        let mut waits = Vec::new();
        for _ in 0..8 {
            let before = Instant::now();
            queue.finish("a", WorkResult::Retry);
            queue.add("a");
            queue.next().await;
            waits.push((Instant::now() - before).as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_a_failure_of_one_key() {
        let queue = queue();
        queue.add("bad");
        queue.add("good");
        let (done, mut seen) = tokio::sync::mpsc::unbounded_channel();
        let running = queue.clone();
        let task = tokio::spawn(async move {
            running
                .run(4, move |key| {
                    let done = done.clone();
                    async move {
                        assert_ne!(key, "bad");
                        let _ = done.send(key);
                        WorkResult::Done
                    }
                })
                .await;
        });
        assert_eq!(seen.recv().await, Some("good"));
        queue.add("also good");
        assert_eq!(seen.recv().await, Some("also good"));
        task.abort();
    }
}
