//! Judges the cluster after every change that the watches tell of.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use kai_cluster::{Context, Informers};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::kubelet::Kubelets;

use super::physical::Physical;
use super::state::State;
use super::{Snapshot, Violation};

/// Judges the cluster until dropped.
#[derive(Debug)]
pub struct Watcher {
    informers: Arc<Informers>,
    kubelets: Kubelets,
    /// A plain lock: held to add and to read only.
    found: Arc<Mutex<BTreeSet<Violation>>>,
    /// A plain lock: held to judge by it.
    physical: Arc<Mutex<Physical>>,
    task: AbortHandle,
}

impl Watcher {
    /// Starts to judge what the API and these kubelets say. Must be called within a runtime.
    pub fn start(context: &Context, kubelets: &Kubelets) -> Watcher {
        let informers = Arc::clone(&context.informers);
        let (found, physical) = (Arc::default(), Arc::default());
        let judging = judge(
            Arc::clone(&informers),
            kubelets.clone(),
            Arc::clone(&found),
            Arc::clone(&physical),
        );
        let task = tokio::spawn(judging);
        Watcher {
            informers,
            kubelets: kubelets.clone(),
            found,
            physical,
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
        let snapshot = Snapshot::of(&self.informers);
        all.extend(snapshot.violations_when_settled());
        let state = State::of(&snapshot);
        let mut physical = self.physical.lock().unwrap_or_else(PoisonError::into_inner);
        physical.saw(self.kubelets.holdings(), &state);
        let mut found = Vec::new();
        physical.judge(&state, &mut found);
        physical.judge_settled(&state, &mut found);
        all.extend(found);
        all.into_iter().collect()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn judge(
    informers: Arc<Informers>,
    kubelets: Kubelets,
    found: Arc<Mutex<BTreeSet<Violation>>>,
    physical: Arc<Mutex<Physical>>,
) {
    let wake = Arc::new(Notify::new());
    let pods = informers.pods().subscribe(&wake);
    let nodes = informers.nodes().subscribe(&wake);
    let groups = informers.pod_groups().subscribe(&wake);
    let queues = informers.queues().subscribe(&wake);
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
        if !informers.are_synced() {
            continue;
        }
        let mut violations = state.violations();
        {
            let mut physical = physical.lock().unwrap_or_else(PoisonError::into_inner);
            physical.saw(kubelets.holdings(), &state);
            physical.judge(&state, &mut violations);
        }
        found.lock().unwrap_or_else(PoisonError::into_inner).extend(violations);
    }
}
