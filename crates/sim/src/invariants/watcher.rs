//! Judges the cluster after every change that the watches tell of.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use cluster::{Context, Feeds};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::state::State;
use super::{Snapshot, Violation};

/// Judges the cluster until dropped.
#[derive(Debug)]
pub struct Watcher {
    feeds: Arc<Feeds>,
    /// A plain lock: held to add and to read only.
    found: Arc<Mutex<BTreeSet<Violation>>>,
    task: AbortHandle,
}

impl Watcher {
    /// Starts to judge. Must be called within a runtime.
    pub fn start(context: &Context) -> Watcher {
        let feeds = Arc::clone(&context.feeds);
        let found = Arc::new(Mutex::new(BTreeSet::new()));
        let task = tokio::spawn(judge(Arc::clone(&feeds), Arc::clone(&found)));
        Watcher {
            feeds,
            found,
            task: task.abort_handle(),
        }
    }

    /// Violations so far, each once.
    pub fn found(&self) -> Vec<Violation> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.iter().cloned().collect()
    }

    /// Violations so far, and those of a settled cluster right now.
    pub fn found_when_settled(&self) -> Vec<Violation> {
        let mut all: BTreeSet<Violation> = self.found().into_iter().collect();
        all.extend(Snapshot::of(&self.feeds).violations_when_settled());
        all.into_iter().collect()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn judge(feeds: Arc<Feeds>, found: Arc<Mutex<BTreeSet<Violation>>>) {
    let wake = Arc::new(Notify::new());
    let pods = feeds.pods().subscribe(&wake);
    let nodes = feeds.nodes().subscribe(&wake);
    let groups = feeds.pod_groups().subscribe(&wake);
    let queues = feeds.queues().subscribe(&wake);
    let mut state = State::default();
    loop {
        wake.notified().await;
        for (key, queue) in queues.take() {
            state.saw_queue(key, queue.as_ref());
        }
        for (key, group) in groups.take() {
            state.saw_group(key, group.as_ref());
        }
        for (key, node) in nodes.take() {
            state.saw_node(key, node.as_ref());
        }
        for (key, pod) in pods.take() {
            state.saw_pod(key, pod.as_ref());
        }
        // Before all lists are there, pods may seem to be on nodes that are not.
        if !feeds.are_synced() {
            continue;
        }
        let violations = state.violations();
        found.lock().unwrap_or_else(PoisonError::into_inner).extend(violations);
    }
}
