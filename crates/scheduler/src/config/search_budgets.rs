//! `scenarioSearchBudgets`: time limits of KAI's victim search. Victim searches have a budget of steps here, so the values have no effect.
//! KAI's operator always writes this section; other values than the operator's defaults lead to a warning.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The section as the operator writes it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SearchBudgets {
    max_action_search_duration: BTreeMap<String, String>,
    max_job_search_duration: Option<String>,
    min_job_search_duration: Option<String>,
    max_generator_search_duration: BTreeMap<String, String>,
}

impl SearchBudgets {
    /// The warning about values that are not the operator's defaults.
    pub(super) fn warning(&self) -> Option<String> {
        let jobs = [
            ("maxJobSearchDuration", &self.max_job_search_duration, "4m"),
            ("minJobSearchDuration", &self.min_job_search_duration, "0s"),
        ];
        let jobs = jobs.into_iter().filter_map(|(name, value, default)| {
            let value = value.as_deref()?;
            (!is_same(value, default)).then(|| format!("{name} {value}"))
        });
        let actions = self.max_action_search_duration.iter().map(|(action, value)| {
            let default = (action == "default").then_some("5m");
            (format!("maxActionSearchDuration.{action}"), value, default)
        });
        let generators = self.max_generator_search_duration.iter().map(|(generator, value)| {
            let default = match generator.as_str() {
                "default" | "MultiNodeGang" => Some("2m"),
                "NodeLocalGreedy" => Some("30s"),
                _ => None,
            };
            (format!("maxGeneratorSearchDuration.{generator}"), value, default)
        });
        let listed = actions.chain(generators).filter_map(|(name, value, default)| {
            let known = default.is_some_and(|default| is_same(value, default));
            (!known).then(|| format!("{name} {value}"))
        });
        let changed: Vec<String> = jobs.chain(listed).collect();
        (!changed.is_empty()).then(|| {
            format!(
                "scenarioSearchBudgets: {}: ignored; searches are bounded in steps, not in time",
                changed.join(", ")
            )
        })
    }
}

/// Compares durations by value: `5m` equals `5m0s`.
fn is_same(value: &str, default: &str) -> bool {
    kai_api::parse_duration(value).is_ok_and(|value| kai_api::parse_duration(default) == Ok(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(text: &str) -> Option<String> {
        serde_saphyr::from_str::<SearchBudgets>(text).unwrap().warning()
    }

    #[test]
    fn what_the_operator_writes_by_default_is_not_remarked_on() {
        let defaults = "{maxActionSearchDuration: {default: 5m0s}, maxJobSearchDuration: 4m, minJobSearchDuration: 0s,
                         maxGeneratorSearchDuration: {default: 2m, NodeLocalGreedy: 30s, MultiNodeGang: 2m0s}}";
        assert_eq!(warning(defaults), None);
        assert_eq!(warning("{}"), None);
    }

    #[test]
    fn values_of_ones_own_are_said_to_have_no_effect() {
        let own = "{maxActionSearchDuration: {default: 5m, reclaim: 1m}, maxJobSearchDuration: 10s}";
        assert_eq!(
            warning(own).unwrap(),
            "scenarioSearchBudgets: maxJobSearchDuration 10s, maxActionSearchDuration.reclaim 1m: ignored; searches are bounded in \
             steps, not in time"
        );
    }
}
