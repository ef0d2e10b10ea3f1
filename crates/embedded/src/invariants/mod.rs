//! What must hold at every instant of a cluster's life, whatever fails: no GPU, node or queue is promised beyond what it has. And what must
//! hold once things have settled: gangs whole or absent, a reason for all who wait, no helper object without a user.
//!
//! Judged from the objects in the API alone, by arithmetic of its own: it shares no code with the scheduler's decisions.

mod always;
mod bound_pod;
mod gpu_assignments;
mod settled;
mod state;
mod watcher;

use std::sync::Arc;

use state::State;
pub use watcher::Watcher;

/// A law that does not hold, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation(pub String);

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The objects that the laws are about.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Pods that have not ended.
    pub pods: Vec<Arc<kai_api::Pod>>,
    /// Nodes.
    pub nodes: Vec<Arc<kai_api::Node>>,
    /// Queues.
    pub queues: Vec<Arc<kai_api::Queue>>,
    /// Pod groups.
    pub pod_groups: Vec<Arc<kai_api::PodGroup>>,
    /// Bind requests.
    pub bind_requests: Vec<Arc<kai_api::BindRequest>>,
}

impl Snapshot {
    /// The present state of the watches.
    pub fn of(feeds: &kai_cluster::Feeds) -> Snapshot {
        Snapshot {
            pods: feeds.pods().all(),
            nodes: feeds.nodes().all(),
            queues: feeds.queues().all(),
            pod_groups: feeds.pod_groups().all(),
            bind_requests: feeds.bind_requests().all(),
        }
    }

    /// Laws of every instant that do not hold.
    pub fn violations(&self) -> Vec<Violation> {
        State::of(self).violations()
    }

    /// Laws of a settled cluster that do not hold, those of every instant included.
    pub fn violations_when_settled(&self) -> Vec<Violation> {
        let state = State::of(self);
        let mut found = state.violations();
        settled::check(self, &state, &mut found);
        found
    }
}
