//! Places gangs by evicting gangs of lower priority in the same queue.

use crate::cycle::Cycle;
use crate::ids::{GangId, PodId};
use crate::model::Action;
use crate::share;
use crate::victims::Search;

impl Cycle<'_> {
    pub(crate) fn preempt(&mut self) {
        self.place_with_victims(
            Action::Preempt,
            |cycle, search: &Search<'_>, pods: &[PodId]| {
                let memory_mib = cycle.gpu_memory_max_mib;
                let request = cycle
                    .ledger
                    .queue_request(search.gang, pods, |shape| shape.requested(memory_mib));
                share::over_quota(cycle.ledger, search.gang, request.non_preemptible).is_none()
            },
            |_: &Cycle<'_>, _: GangId| true,
        );
    }
}
