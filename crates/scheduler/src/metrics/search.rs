//! Metrics of the victim search. Its budgets are numbers of simulations, so KAI's budgets in seconds have no metric here.

use kai_engine::model::Action;
use kai_engine::report::{ActionStats, Generator, SearchResult};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::{ActionLabels, VictimSearch};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobLabels {
    action: &'static str,
    result: &'static str,
    reduced_budget: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SearchLabels {
    action: &'static str,
    generator: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VictimSetLabels {
    action: &'static str,
    generator: &'static str,
    state: &'static str,
}

/// Results, efforts and durations of victim searches.
#[derive(Debug)]
pub(super) struct SearchMetrics {
    jobs: Family<JobLabels, Counter>,
    sets: Family<VictimSetLabels, Counter>,
    exhausted: Family<ActionLabels, Counter>,
    seconds: Family<SearchLabels, Histogram, fn() -> Histogram>,
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
    /// The text format appends `_total` to the names of counters.
    pub(super) fn register(&self, registry: &mut Registry) {
        let jobs = "Pod groups with a victim search";
        registry.register("scenario_search_jobs", jobs, self.jobs.clone());
        let sets = "Sets of victims by state";
        registry.register("scenario_search_scenarios", sets, self.sets.clone());
        let exhausted = "Actions that ended because their budget was exhausted";
        let name = "scenario_search_action_budget_exhausted";
        registry.register(name, exhausted, self.exhausted.clone());
        let seconds = "Victim searches of one generator for one pod group";
        registry.register("scenario_search_duration_seconds", seconds, self.seconds.clone());
    }

    /// Counts the searches and victim sets of an action.
    pub(super) fn effort(&self, effort: &ActionStats) {
        let action = effort.action.name();
        for (end, counts) in SearchResult::ALL.into_iter().zip(effort.searches) {
            for (reduced_budget, count) in ["false", "true"].into_iter().zip(counts) {
                let result = result(end);
                let labels = JobLabels {
                    action,
                    result,
                    reduced_budget,
                };
                add(&self.jobs, labels, count);
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
                let labels = VictimSetLabels {
                    action,
                    generator,
                    state,
                };
                add(&self.sets, labels, count);
            }
        }
        match effort.action {
            Action::Consolidation | Action::Reclaim | Action::Preempt => {
                let exhausted = self.exhausted.get_or_create(&ActionLabels { action });
                exhausted.inc_by(u64::from(effort.exhausted));
            }
            // These actions have no victim search.
            Action::Allocate | Action::StaleGangEviction | Action::BackgroundPods => {}
        }
    }

    /// Records the duration of a search.
    pub(super) fn observe_duration(&self, search: &VictimSearch) {
        let labels = SearchLabels {
            action: search.action.name(),
            generator: search.generator.name(),
            result: result(search.end),
        };
        self.seconds
            .get_or_create(&labels)
            .observe(search.duration.as_secs_f64());
    }
}

/// Creates a series only for counts above zero, since the labels have many combinations.
fn add<L>(family: &Family<L, Counter>, labels: L, count: u32)
where
    L: Clone + std::hash::Hash + Eq,
{
    if count > 0 {
        family.get_or_create(&labels).inc_by(u64::from(count));
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
