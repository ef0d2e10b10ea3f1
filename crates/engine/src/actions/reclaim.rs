//! Places gangs of queues below their fair share by evicting gangs of queues above theirs.

use crate::cycle::Cycle;
use crate::ids::{GangId, PodId};
use crate::model::Action;
use crate::share;
use crate::victims::Search;

impl Cycle<'_> {
    pub(crate) fn reclaim(&mut self) {
        self.place_with_victims(
            Action::Reclaim,
            |cycle, search: &Search<'_>, _: &[PodId]| share::can_reclaim(cycle.ledger, &search.reclaimer(cycle)),
            |_: &Cycle<'_>, _: GangId| true,
        );
    }
}
