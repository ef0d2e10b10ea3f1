//! Conditions in the status of workloads. Pure.

use serde_json::{Value, json};

/// A condition of a workload.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Condition {
    pub(super) kind: &'static str,
    pub(super) status: &'static str,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// The condition of this type in a status; null if there is none.
pub(super) fn find<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    conditions
        .find(|condition| condition["type"] == kind)
        .unwrap_or(&Value::Null)
}

/// Whether the condition of this type is true.
pub(super) fn holds(status: &Value, kind: &str) -> bool {
    find(status, kind)["status"] == "True"
}

/// The conditions of a status. `lastTransitionTime` changes only with the condition's status.
pub(super) fn list(status: &Value, conditions: &[Condition], now: &str) -> Value {
    conditions
        .iter()
        .map(|condition| made(status, condition, now))
        .collect()
}

/// The same with `lastUpdateTime`, which Deployments have.
pub(super) fn list_with_update_times(status: &Value, conditions: &[Condition], now: &str) -> Value {
    let with_times = conditions.iter().map(|condition| {
        let mut made = made(status, condition, now);
        let before = find(status, condition.kind);
        let same = ["status", "reason", "message"]
            .iter()
            .all(|field| before[field] == made[field]);
        made["lastUpdateTime"] = if same {
            before["lastUpdateTime"].clone()
        } else {
            now.into()
        };
        made
    });
    with_times.collect()
}

fn made(status: &Value, condition: &Condition, now: &str) -> Value {
    let before = find(status, condition.kind);
    let since = match before["status"] == condition.status {
        true => before["lastTransitionTime"].clone(),
        false => now.into(),
    };
    json!({
        "type": condition.kind, "status": condition.status, "reason": condition.reason, "message": condition.message,
        "lastTransitionTime": since,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_condition_change_with_what_it_says() {
        let condition = |status, reason| Condition {
            kind: "Available",
            status,
            reason,
            message: String::new(),
        };
        let first = json!({ "conditions": list_with_update_times(&Value::Null, &[condition("True", "A")], "1") });
        assert_eq!(
            list_with_update_times(&first, &[condition("True", "A")], "2"),
            first["conditions"]
        );
        let again = list_with_update_times(&first, &[condition("True", "B")], "2");
        assert_eq!(
            (&again[0]["lastUpdateTime"], &again[0]["lastTransitionTime"]),
            (&json!("2"), &json!("1"))
        );
        let other = list_with_update_times(&first, &[condition("False", "B")], "2");
        assert_eq!(other[0]["lastTransitionTime"], "2");
    }
}
