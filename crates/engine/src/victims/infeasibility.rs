//! A proof that a search can't succeed, made before it starts: the GPUs that are available and those that the action may
//! take from victims are together fewer than the gang requests.

use rustc_hash::FxHashMap;

use crate::cycle::Cycle;
use crate::ids::{PodId, QueueId};
use crate::model::{Action, Gpus};
use crate::reasons::Resource;
use crate::share::within_deserved;
use crate::victims::capacity::rounding_slack;
use crate::victims::solve::Search;

impl Cycle<'_> {
    /// Whether no set of victims frees enough GPUs for these pods.
    pub(crate) fn is_infeasible(&self, search: &mut Search<'_>, pods: &[PodId]) -> bool {
        search.state.base_capacity.catch_up(self.ledger, self.resources);
        let needed: Gpus = pods.iter().map(|pod| self.ledger.shape_of(*pod).gpus_by_count()).sum();
        let must_go = needed - search.state.base_capacity.total - rounding_slack(self.ledger, pods);
        if must_go <= Gpus::ZERO {
            return false;
        }
        let could_go = match search.action {
            Action::Reclaim => self.reclaimable_gpus(search),
            Action::Preempt => Some(self.victims_gpus(search, search.queue)),
            // Consolidation moves pods: the sum of free GPUs stays the same.
            Action::Consolidation => return true,
            Action::Allocate | Action::StaleGangEviction | Action::BackgroundPods => return false,
        };
        could_go.is_some_and(|could_go| could_go < must_go)
    }

    /// GPUs of the gangs of a leaf queue that can be victims.
    fn victims_gpus(&self, search: &Search<'_>, queue: QueueId) -> Gpus {
        let victims = search
            .state
            .victims
            .leaf(queue)
            .iter()
            .filter(|(_, gang)| search.can_be_victim(self, *gang));
        victims.map(|(_, gang)| self.ledger.gang(*gang).allocated.gpus).sum()
    }

    /// An upper bound on the GPUs that the rules of reclaim let the gang take; `None` = no bound.
    fn reclaimable_gpus(&self, search: &Search<'_>) -> Option<Gpus> {
        let reclaimer = search.reclaimer(self);
        let mut bounds: FxHashMap<QueueId, Gpus> = FxHashMap::default();
        for leaf in search.victim_queues(self) {
            let (mine, theirs) = crate::share::sibling_ancestors(self.ledger, search.queue, leaf);
            if bounds.contains_key(&theirs) {
                continue;
            }
            let (mine, row) = (self.ledger.queue(mine), self.ledger.queue(theirs));
            let guaranteed = within_deserved(mine, mine.allocated + reclaimer.request);
            // The queue can lose pods as long as it holds more than this of some resource.
            let floor = |resource: Resource| {
                let quota = row.quota[resource].deserved.filter(|_| guaranteed);
                [row.allocatable[resource], quota].into_iter().flatten().min()
            };
            let is_at_floor = |resource: Resource| floor(resource).is_none_or(|floor| row.allocated[resource] <= floor);
            let only_gpus_above_floor = is_at_floor(Resource::Cpu) && is_at_floor(Resource::Memory);
            let floor = floor(Resource::Gpu).filter(|_| only_gpus_above_floor)?;
            // The last unit may take the queue below the floor; a unit is at most a whole gang.
            let largest = search.largest_victim(self, theirs);
            let above = row.allocated.gpus - Gpus(floor);
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
    /// The most GPUs that a single gang below the queue holds.
    fn largest_victim(&self, cycle: &Cycle<'_>, queue: QueueId) -> Gpus {
        let leaves = self.state.victims.leaves().into_iter();
        let below = leaves.filter(|leaf| cycle.ledger.queue_path(*leaf).any(|ancestor| ancestor == queue));
        below
            .map(|leaf| self.state.largest_gang[leaf.index()])
            .max()
            .unwrap_or_default()
    }
}
