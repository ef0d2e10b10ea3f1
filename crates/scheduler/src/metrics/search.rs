//! Metrics of the search for victims. Budgets are counted in simulations here, so there are none in seconds.

use kai_engine::model::Action;
use kai_engine::report::{ActionStats, Generator, SearchResult};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::{OfAction, Searched};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfJob {
    action: &'static str,
    result: &'static str,
    reduced_budget: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfSearch {
    action: &'static str,
    generator: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfSet {
    action: &'static str,
    generator: &'static str,
    state: &'static str,
}

/// How searches for victims go.
#[derive(Debug)]
pub(super) struct SearchMetrics {
    jobs: Family<OfJob, Counter>,
    sets: Family<OfSet, Counter>,
    exhausted: Family<OfAction, Counter>,
    seconds: Family<OfSearch, Histogram, fn() -> Histogram>,
}

impl Default for SearchMetrics {
    fn default() -> SearchMetrics {
        SearchMetrics {
            jobs: Family::default(),
            sets: Family::default(),
            exhausted: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 16))),
        }
    }
}

impl SearchMetrics {
    /// The text format ends counters in `_total`.
    pub(super) fn register(&self, registry: &mut Registry) {
        let jobs = "Pod groups that victims were sought for";
        registry.register("scenario_search_jobs", jobs, self.jobs.clone());
        let sets = "Sets of victims by what became of them";
        registry.register("scenario_search_scenarios", sets, self.sets.clone());
        let exhausted = "Actions that ended since their budget was used up";
        let name = "scenario_search_action_budget_exhausted";
        registry.register(name, exhausted, self.exhausted.clone());
        let seconds = "Searches by one generator for one pod group";
        registry.register("scenario_search_duration_seconds", seconds, self.seconds.clone());
    }

    /// What an action did.
    pub(super) fn effort(&self, effort: &ActionStats) {
        let action = effort.action.name();
        for (end, counts) in SearchResult::ALL.into_iter().zip(effort.searches) {
            for (reduced_budget, count) in ["false", "true"].into_iter().zip(counts) {
                let result = result(end);
                let of = OfJob {
                    action,
                    result,
                    reduced_budget,
                };
                add(&self.jobs, of, count);
            }
        }
        for (generator, sets) in Generator::ALL.into_iter().zip(effort.sets) {
            let counts = [
                ("emitted", sets.chosen),
                ("simulated", sets.simulated),
                ("validator_rejected", sets.refused),
                ("duplicate", sets.repeated),
            ];
            for (state, count) in counts {
                let generator = generator.name();
                let of = OfSet {
                    action,
                    generator,
                    state,
                };
                add(&self.sets, of, count);
            }
        }
        match effort.action {
            Action::Consolidation | Action::Reclaim | Action::Preempt => {
                let exhausted = self.exhausted.get_or_create(&OfAction { action });
                exhausted.inc_by(u64::from(effort.exhausted));
            }
            // They search no victims.
            Action::Allocate | Action::StaleGangEviction => {}
        }
    }

    /// How long a search took.
    pub(super) fn took(&self, searched: &Searched) {
        let of = OfSearch {
            action: searched.action.name(),
            generator: searched.generator.name(),
            result: result(searched.end),
        };
        self.seconds.get_or_create(&of).observe(searched.duration.as_secs_f64());
    }
}

/// Only what happened has a series: the labels have many combinations.
fn add<L>(family: &Family<L, Counter>, of: L, count: u32)
where
    L: Clone + std::hash::Hash + Eq,
{
    if count > 0 {
        family.get_or_create(&of).inc_by(u64::from(count));
    }
}

fn result(end: SearchResult) -> &'static str {
    match end {
        SearchResult::Solved => "solved",
        SearchResult::Exhausted => "generators_exhausted",
        SearchResult::Cut => "deadline_exhausted",
        SearchResult::Partial => "unsolved",
    }
}
