//! Ruling a search out before it starts: if even with every eligible victim gone the gang can't have its GPUs, or the
//! fairness rules can't let it have enough, there is nothing to search.

use rustc_hash::FxHashMap;

use crate::cycle::Cycle;
use crate::ids::{PodId, QueueId};
use crate::model::{Action, Gpus};
use crate::share::{plus, quota_of, within_deserved};
use crate::tables::QUEUE_GPU;
use crate::victims::solve::Search;

impl Cycle<'_> {
    /// Whether no set of victims can help these pods.
    pub(crate) fn is_hopeless(&self, search: &mut Search<'_>, pods: &[PodId]) -> bool {
        search.lists.room.catch_up(self.ledger, self.resources);
        let needed: Gpus = pods.iter().map(|pod| self.ledger.shape_of(*pod).gpus_by_count()).sum();
        // Parts of devices are rounded to hundredths in the sums, per device.
        let shared_devices = self.ledger.gpu_groups_in_use;
        let shared_pods = pods
            .iter()
            .filter(|pod| self.ledger.shape_of(**pod).is_shared())
            .count();
        let slack = Gpus::hundredths((shared_devices + shared_pods) as i64);
        let must_go = needed - search.lists.room.total - slack;
        if must_go <= Gpus::ZERO {
            return false;
        }
        let could_go = match search.action {
            Action::Reclaim => self.reclaimable(search),
            Action::Preempt => self.held_in(search, search.queue),
            // Moving frees nothing in sum.
            Action::Consolidation => return true,
            Action::Allocate | Action::StaleGangEviction => return false,
        };
        could_go.is_some_and(|could_go| could_go < must_go)
    }

    /// What gangs of a queue that can be victims hold; `None` = not known to be bounded.
    fn held_in(&self, search: &Search<'_>, queue: QueueId) -> Option<Gpus> {
        let victims = search
            .lists
            .victims
            .leaf(queue)
            .iter()
            .filter(|(_, gang)| search.accepts(self, *gang));
        Some(
            victims
                .map(|(_, gang)| Gpus(self.ledger.gang(*gang).allocated[QUEUE_GPU]))
                .sum(),
        )
    }

    /// An upper bound on the GPUs that fairness lets the gang take; `None` = no bound.
    fn reclaimable(&self, search: &Search<'_>) -> Option<Gpus> {
        let reclaimer = search.reclaimer(self);
        let mut bounds: FxHashMap<QueueId, Gpus> = FxHashMap::default();
        for leaf in search.victim_queues(self) {
            let (mine, theirs) = crate::share::sibling_ancestors(self.ledger, search.queue, leaf);
            if bounds.contains_key(&theirs) {
                continue;
            }
            let (mine, row) = (self.ledger.queue(mine), self.ledger.queue(theirs));
            let guaranteed = within_deserved(mine, plus(mine.allocated, reclaimer.request));
            // The queue can lose while it holds more than this of some resource.
            let floor = |resource: usize| {
                let quota = quota_of(&row.quota, resource).deserved.filter(|_| guaranteed);
                [row.allocatable[resource], quota].into_iter().flatten().min()
            };
            let others_bind =
                (0..QUEUE_GPU).all(|resource| floor(resource).is_none_or(|floor| row.allocated[resource] <= floor));
            let floor = floor(QUEUE_GPU).filter(|_| others_bind)?;
            // The last unit may begin above the floor and end below it; units are whole gangs at most.
            let largest = search.largest_victim(self, theirs);
            let above = Gpus(row.allocated[QUEUE_GPU] - floor);
            let bound = if above <= Gpus::ZERO {
                Gpus::ZERO
            } else {
                above + largest - Gpus(1)
            };
            bounds.insert(theirs, bound);
        }
        Some(bounds.values().copied().sum())
    }
}

impl Search<'_> {
    /// The most GPUs that one gang below the queue holds.
    fn largest_victim(&self, cycle: &Cycle<'_>, queue: QueueId) -> Gpus {
        let leaves = self.lists.victims.leaves().into_iter();
        let below = leaves.filter(|leaf| cycle.ledger.queue_path(*leaf).any(|ancestor| ancestor == queue));
        below
            .map(|leaf| self.lists.largest[leaf.index()])
            .max()
            .unwrap_or_default()
    }
}
