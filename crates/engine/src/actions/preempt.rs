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
                let requested = cycle.ledger.requested_by(pods, cycle.gpu_memory_max_mib);
                share::over_quota(cycle.ledger, search.gang, requested).is_none()
            },
            |_: &Cycle<'_>, _: GangId| true,
        );
    }
}
