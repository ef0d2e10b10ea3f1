//! Measures the durations of a cycle for the engine, which has no clock.

use kai_engine::model::Action;
use kai_engine::report::CycleProgress;
use tokio::time::Instant;

use crate::metrics::VictimSearch;

/// Start times of actions and durations of victim searches in one cycle.
#[derive(Debug, Default)]
pub(super) struct CycleTimer {
    actions: Vec<(Action, Instant)>,
    search_started: Option<Instant>,
    /// The finished victim searches.
    pub(super) searches: Vec<VictimSearch>,
}

impl CycleTimer {
    pub(super) fn record(&mut self, moment: CycleProgress) {
        let now = Instant::now();
        match moment {
            CycleProgress::ActionStarts(action) => self.actions.push((action, now)),
            CycleProgress::SearchStarts => self.search_started = Some(now),
            CycleProgress::SearchEnds(action, generator, end) => {
                let duration = self
                    .search_started
                    .take()
                    .map(|started| now - started)
                    .unwrap_or_default();
                self.searches.push(VictimSearch {
                    action,
                    generator,
                    end,
                    duration,
                });
            }
        }
    }

    /// The duration of each action. An action ends when the next one begins, the last one at `end`.
    pub(super) fn action_durations(&self, end: Instant) -> Vec<(Action, std::time::Duration)> {
        let ends = self.actions.iter().skip(1).map(|(_, at)| *at).chain([end]);
        let both = self.actions.iter().zip(ends);
        both.map(|((action, at), end)| (*action, end - *at)).collect()
    }
}
