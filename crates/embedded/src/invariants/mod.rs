//! Invariants of a cluster, which tests check while they inject faults.
//!
//! - `always`: at every instant, no node, GPU or queue is allocated beyond its capacity or limit.
//! - `gpu_assignments`: at every instant, the same by the GPUs that pods really use.
//! - `gpu_limits`: at every instant, no container runs without the limit of GPU memory that it was promised.
//! - `settled`: once all controllers have finished, gangs run with their minimum or not at all, every waiting pod has a reason, and every
//!   reservation pod has a user.
//!
//! The checks read the objects of the API and the simulated kubelets. They share no code with the scheduler's decisions. [`Watcher`] runs
//! them after every change.

mod always;
mod bound_pod;
mod gpu_assignments;
mod gpu_limits;
mod settled;
mod state;
mod watcher;

use std::collections::BTreeSet;
use std::sync::Arc;

use kai_api::ObjectKey;
use parking_lot::Mutex;
use state::State;
pub use watcher::Watcher;

/// A violated invariant, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation(pub String);

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Pods whose deletion the scheduler has sent. They count no longer in their queue, also while the call is on its way to the server.
pub type PodsToLeave = Arc<Mutex<BTreeSet<ObjectKey>>>;

/// The objects that the invariants are about.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Pods that are not terminal.
    pub pods: Vec<Arc<kai_api::Pod>>,
    /// Succeeded pods of gangs.
    pub succeeded_pods: Vec<Arc<kai_api::Pod>>,
    /// Nodes.
    pub nodes: Vec<Arc<kai_api::Node>>,
    /// Queues.
    pub queues: Vec<Arc<kai_api::Queue>>,
    /// Pod groups.
    pub pod_groups: Vec<Arc<kai_api::PodGroup>>,
    /// Bind requests.
    pub bind_requests: Vec<Arc<kai_api::BindRequest>>,
    /// Which of the pods are reservation pods.
    pub reservation_pods: kai_api::ReservationPods,
    /// Pods that count no longer in their queue.
    pub to_leave: PodsToLeave,
}

impl Snapshot {
    /// The present objects of the watches.
    pub fn of(
        informers: &kai_cluster::Informers,
        reservation_pods: &kai_api::ReservationPods,
        to_leave: PodsToLeave,
    ) -> Snapshot {
        Snapshot {
            pods: informers.pods().all(),
            succeeded_pods: informers.pods().all_terminal(),
            nodes: informers.nodes().all(),
            queues: informers.queues().all(),
            pod_groups: informers.pod_groups().all(),
            bind_requests: informers.bind_requests().all(),
            reservation_pods: reservation_pods.clone(),
            to_leave,
        }
    }

    /// Violated invariants of every instant.
    pub fn violations(&self) -> Vec<Violation> {
        let state = State::of(self);
        let mut found = state.violations();
        found.extend(state.exceeded_queues().into_iter().map(|(_, violation)| violation));
        found
    }

    /// Violated invariants of a settled cluster, including those of every instant.
    pub fn violations_when_settled(&self) -> Vec<Violation> {
        let state = State::of(self);
        let mut found = self.violations();
        settled::check(self, &state, &mut found);
        found
    }
}
