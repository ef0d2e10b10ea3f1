//! Judges the cluster after every change that the watches tell of.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use cluster::{Context, Feeds};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

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
    loop {
        wake.notified().await;
        let changes = pods.take().len() + nodes.take().len() + groups.take().len();
        // Before all lists are there, pods may seem to be on nodes that are not.
        if changes == 0 || !feeds.are_synced() {
            continue;
        }
        let violations = Snapshot::of(&feeds).violations();
        found.lock().unwrap_or_else(PoisonError::into_inner).extend(violations);
    }
}
