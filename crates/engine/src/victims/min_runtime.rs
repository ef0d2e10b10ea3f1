//! Minimum runtime: for some time after its start a gang can't be preempted or reclaimed.

use crate::cycle::Cycle;
use crate::ids::{GangId, QueueId};
use crate::model::{Action, Millis, MinRuntimeResolve};

impl Cycle<'_> {
    /// Whether the victim has run for less than the minimum that protects it from `action` for a gang of `queue`.
    pub(crate) fn is_within_min_runtime(&self, action: Action, queue: QueueId, victim: GangId) -> bool {
        let row = self.ledger.gang(victim);
        let (Some(started), Some(victim_queue)) = (row.last_start, row.queue) else {
            return false;
        };
        let min_runtime = match action {
            Action::Preempt => self.inherited(
                victim_queue,
                |queue| queue.preempt_min_runtime,
                self.config.preempt_min_runtime,
            ),
            Action::Reclaim => self.reclaim_min_runtime(queue, victim_queue),
            Action::Allocate | Action::Consolidation | Action::StaleGangEviction | Action::BackgroundPods => {
                return false;
            }
        };
        self.now < started + min_runtime
    }

    /// The value of a queue or of its nearest ancestor that has one.
    fn inherited(
        &self,
        leaf: QueueId,
        field: impl Fn(&crate::tables::Queue) -> Option<Millis>,
        default: Millis,
    ) -> Millis {
        self.ledger
            .queue_path(leaf)
            .find_map(|queue| field(self.ledger.queue(queue)))
            .unwrap_or(default)
    }

    fn reclaim_min_runtime(&self, reclaimer: QueueId, victim: QueueId) -> Millis {
        let (field, default) = (
            |queue: &crate::tables::Queue| queue.reclaim_min_runtime,
            self.config.reclaim_min_runtime,
        );
        if self.config.reclaim_min_runtime_resolve == MinRuntimeResolve::Queue {
            return self.inherited(victim, field, default);
        }
        let path = |leaf| {
            let mut path: Vec<QueueId> = self.ledger.queue_path(leaf).collect();
            path.reverse();
            path
        };
        let (theirs, ours) = (path(victim), path(reclaimer));
        let common = theirs.iter().zip(&ours).take_while(|(a, b)| a == b).count();
        if common == 0 {
            // The queues have no common ancestor: the root of the victim's tree decides.
            return field(self.ledger.queue(theirs[0])).unwrap_or(default);
        }
        let below = common.min(theirs.len() - 1);
        theirs[..=below]
            .iter()
            .rev()
            .find_map(|queue| field(self.ledger.queue(*queue)))
            .unwrap_or(default)
    }
}
