//! Computes the next scheduling conditions of a pod group. Pure.

use kai_api::crd::SchedulingCondition;
use serde_json::json;

use super::Unschedulable;

/// The list with the condition `wanted` of this node pool; `None` if `present` has it already. One entry per pool, the newest last.
pub(super) fn next_conditions(
    present: &[SchedulingCondition],
    wanted: Option<&Unschedulable>,
    pool: &str,
    now: &str,
) -> Option<Vec<SchedulingCondition>> {
    let Some(wanted) = wanted else {
        return (!present.is_empty()).then(Vec::new);
    };
    let ids = present
        .iter()
        .filter_map(|condition| condition.transition_id.parse::<u64>().ok());
    let next = ids.max().unwrap_or(0).saturating_add(1);
    let condition: SchedulingCondition = serde_json::from_value(json!({
        "type": SchedulingCondition::UNSCHEDULABLE,
        "nodePool": pool,
        "reason": SchedulingCondition::REASON,
        "message": wanted.message,
        "reasons": wanted.reasons,
        "transitionID": next.to_string(),
        "lastTransitionTime": now,
        "status": "True",
    }))
    .expect("all fields have their types");
    if present.last().is_some_and(|last| last.same_content(&condition)) {
        return None;
    }
    let others = present.iter().filter(|other| other.node_pool != pool).cloned();
    Some(others.chain([condition]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn unschedulable(message: &str) -> Unschedulable {
        Unschedulable {
            message: message.to_owned(),
            reasons: Vec::new(),
        }
    }

    fn summary(conditions: &[SchedulingCondition]) -> Vec<String> {
        let line = |condition: &SchedulingCondition| {
            let SchedulingCondition {
                node_pool,
                message,
                transition_id,
                ..
            } = condition;
            format!("{transition_id} {node_pool}: {message}")
        };
        conditions.iter().map(line).collect()
    }

    #[test]
    fn one_entry_per_pool_the_newest_last() {
        let first = next_conditions(&[], Some(&unschedulable("full")), "default", NOW).unwrap();
        assert_eq!(summary(&first), ["1 default: full"]);
        assert!(
            next_conditions(&first, Some(&unschedulable("full")), "default", NOW).is_none(),
            "it is said already"
        );
        let second = next_conditions(&first, Some(&unschedulable("small")), "a100", NOW).unwrap();
        assert_eq!(summary(&second), ["1 default: full", "2 a100: small"]);
        let third = next_conditions(&second, Some(&unschedulable("full")), "default", NOW).unwrap();
        assert_eq!(summary(&third), ["2 a100: small", "3 default: full"]);
    }

    #[test]
    fn nothing_to_say_removes_all() {
        let some = next_conditions(&[], Some(&unschedulable("full")), "default", NOW).unwrap();
        assert_eq!(next_conditions(&some, None, "default", NOW), Some(Vec::new()));
        assert_eq!(next_conditions(&[], None, "default", NOW), None);
    }
}
