//! The gangs after a cycle.

use crate::cluster::Cluster;
use crate::report::{GangView, Status};

impl Cluster {
    /// Gangs that the engine knows by an event, by namespace and name.
    pub fn gangs(&self) -> Vec<GangView<'_>> {
        let rows = self.gang_ids.values().map(|gang| self.ledger.gang(*gang));
        let mut views = Vec::with_capacity(self.gang_ids.len());
        let known = rows.filter(|gang| gang.known).map(|gang| {
            let count = |statuses: &[Status]| statuses.iter().map(|status| gang.count(*status)).sum();
            GangView {
                gang: &gang.key,
                queue: self.ledger.symbols.text(gang.queue_name),
                priority: gang.priority,
                preemptibility: gang.preemptibility,
                created: gang.created,
                required: gang.required_pods(),
                pods: gang.pod_sets.iter().map(crate::tables::PodSet::alive).sum(),
                running: count(&[Status::Running]),
                starting: count(&[Status::Binding, Status::Bound]),
                waiting: count(&[Status::Pending, Status::Gated, Status::Pipelined]),
                releasing: count(&[Status::Releasing, Status::StuckInReleasing]),
                last_start: gang.last_start,
                last_eviction: gang.last_eviction,
                stale_since: gang.stale_since,
            }
        });
        views.extend(known);
        views.sort_unstable_by_key(|view| view.gang);
        views
    }
}
