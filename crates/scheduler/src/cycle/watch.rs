//! Takes the times that the engine, which has no clock, can't take itself.

use kai_engine::model::Action;
use kai_engine::report::CycleProgress;
use tokio::time::Instant;

use crate::metrics::Searched;

/// Times of one cycle.
#[derive(Debug, Default)]
pub(super) struct Watch {
    actions: Vec<(Action, Instant)>,
    search: Option<Instant>,
    /// Searches for victims and how long they took.
    pub(super) searches: Vec<Searched>,
}

impl Watch {
    pub(super) fn note(&mut self, moment: CycleProgress) {
        let now = Instant::now();
        match moment {
            CycleProgress::ActionStarts(action) => self.actions.push((action, now)),
            CycleProgress::SearchStarts => self.search = Some(now),
            CycleProgress::SearchEnds(action, generator, end) => {
                let duration = self.search.take().map(|started| now - started).unwrap_or_default();
                self.searches.push(Searched {
                    action,
                    generator,
                    end,
                    duration,
                });
            }
        }
    }

    /// Actions and how long they took; each ends as the next begins.
    pub(super) fn actions(&self, ended: Instant) -> Vec<(Action, std::time::Duration)> {
        let ends = self.actions.iter().skip(1).map(|(_, at)| *at).chain([ended]);
        let both = self.actions.iter().zip(ends);
        both.map(|((action, at), end)| (*action, end - *at)).collect()
    }
}
