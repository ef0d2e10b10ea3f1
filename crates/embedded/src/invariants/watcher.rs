//! Checks the invariants after every change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kai_cluster::{Context, Informers};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::kubelet::Kubelets;

use super::gpu_assignments::GpuAssignments;
use super::gpu_limits;
use super::state::State;
use super::{PodsToLeave, Snapshot, Violation};

/// A queue may be beyond its limit for this time. The scheduler takes a victim as gone once it has sent the deletion; the binding of another
/// pod can reach the server before it.
const LIMIT_SLACK: Duration = Duration::from_secs(5);

/// Checks the invariants after every change, until dropped.
#[derive(Debug)]
pub struct Watcher {
    informers: Arc<Informers>,
    kubelets: Kubelets,
    /// Held for reads and inserts only.
    found: Arc<Mutex<BTreeSet<Violation>>>,
    /// Held for one check.
    assignments: Arc<Mutex<GpuAssignments>>,
    to_leave: PodsToLeave,
    task: AbortHandle,
}

impl Watcher {
    /// Starts to check the API's objects and these kubelets. Must be called within a runtime.
    pub fn start(context: &Context, kubelets: &Kubelets) -> Watcher {
        let informers = Arc::clone(&context.informers);
        let (found, assignments) = (Arc::default(), Arc::default());
        let to_leave = PodsToLeave::default();
        let checking = check(
            Arc::clone(&informers),
            kubelets.clone(),
            Arc::clone(&found),
            Arc::clone(&assignments),
            Arc::clone(&to_leave),
        );
        let task = tokio::spawn(checking);
        Watcher {
            informers,
            kubelets: kubelets.clone(),
            found,
            assignments,
            to_leave,
            task: task.abort_handle(),
        }
    }

    /// Pods whose deletion the scheduler has sent, to add to.
    pub fn pods_to_leave(&self) -> PodsToLeave {
        Arc::clone(&self.to_leave)
    }

    /// Violations so far, each once.
    pub fn found(&self) -> Vec<Violation> {
        let found = self.found.lock();
        found.iter().cloned().collect()
    }

    /// Violations so far, and the present violations of a settled cluster.
    pub fn found_when_settled(&self) -> Vec<Violation> {
        let mut all: BTreeSet<Violation> = self.found().into_iter().collect();
        let snapshot = Snapshot::of(&self.informers, self.kubelets.reservation_pods(), self.pods_to_leave());
        all.extend(snapshot.violations_when_settled());
        let state = State::of(&snapshot);
        let mut assignments = self.assignments.lock();
        let facts = self.kubelets.gpu_facts();
        let mut found = Vec::new();
        gpu_limits::check(&facts, &state, &mut found);
        assignments.update(facts.pod_gpus, &state);
        assignments.check(&state, &mut found);
        assignments.check_settled(&state, &mut found);
        all.extend(found);
        all.into_iter().collect()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn check(
    informers: Arc<Informers>,
    kubelets: Kubelets,
    found: Arc<Mutex<BTreeSet<Violation>>>,
    assignments: Arc<Mutex<GpuAssignments>>,
    to_leave: PodsToLeave,
) {
    let wake = Arc::new(Notify::new());
    let pods = informers.pods().subscribe(&wake);
    let nodes = informers.nodes().subscribe(&wake);
    let groups = informers.pod_groups().subscribe(&wake);
    let queues = informers.queues().subscribe(&wake);
    let mut state = State::new(kubelets.reservation_pods(), to_leave);
    let mut exceeded_since: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        wake.notified().await;
        for (key, queue) in queues.take() {
            state.apply_queue(key, queue.as_ref());
        }
        for (key, group) in groups.take() {
            state.apply_pod_group(key, group.as_ref());
        }
        for (key, node) in nodes.take() {
            state.apply_node(key, node.as_ref());
        }
        for (key, pod) in pods.take() {
            state.apply_pod(key, pod.as_ref());
        }
        // Before all watches have synced, a pod may refer to a node that is not listed yet.
        if !informers.are_synced() {
            continue;
        }
        let mut violations = state.violations();
        let exceeded = state.exceeded_queues();
        exceeded_since.retain(|queue, _| exceeded.iter().any(|(exceeded, _)| exceeded == queue));
        for (queue, violation) in exceeded {
            let since = *exceeded_since.entry(queue).or_insert_with(Instant::now);
            if since.elapsed() > LIMIT_SLACK {
                violations.push(violation);
            }
        }
        {
            let mut assignments = assignments.lock();
            let facts = kubelets.gpu_facts();
            gpu_limits::check(&facts, &state, &mut violations);
            assignments.update(facts.pod_gpus, &state);
            assignments.check(&state, &mut violations);
        }
        found.lock().extend(violations);
    }
}
