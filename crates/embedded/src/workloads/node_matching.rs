//! Whether a DaemonSet's pod may run on a node: node selector, required node affinity, taints. Pure.

use serde_json::{Value, json};

/// Taints that all pods of DaemonSets tolerate.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];

/// The tolerations of all pods of DaemonSets.
pub(super) fn daemon_tolerations() -> impl Iterator<Item = Value> {
    TOLERATED
        .iter()
        .map(|(key, effect)| json!({ "key": key, "operator": "Exists", "effect": effect }))
}

/// Whether a pod with this spec may run on the node.
pub(super) fn may_run_on(spec: &Value, node: &Value) -> bool {
    let labels = &node["metadata"]["labels"];
    let mut selector = spec["nodeSelector"].as_object().into_iter().flatten();
    selector.all(|(key, value)| labels[key] == *value)
        && affinity_holds(spec, node)
        && untolerated(spec, node).is_none()
}

fn affinity_holds(spec: &Value, node: &Value) -> bool {
    let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let Some(terms) = required["nodeSelectorTerms"].as_array() else {
        return true;
    };
    let labels = &node["metadata"]["labels"];
    let name = json!({ "metadata.name": node["metadata"]["name"] });
    terms.iter().any(|term| {
        let all = |field: &str, of: &Value| {
            let mut requirements = term[field].as_array().into_iter().flatten();
            requirements.all(|requirement| requirement_holds(requirement, of))
        };
        // A term without requirements matches nothing.
        let empty = term["matchExpressions"].is_null() && term["matchFields"].is_null();
        !empty && all("matchExpressions", labels) && all("matchFields", &name)
    })
}

fn requirement_holds(requirement: &Value, labels: &Value) -> bool {
    let value = requirement["key"].as_str().and_then(|key| labels[key].as_str());
    let values = requirement["values"].as_array().map(Vec::as_slice).unwrap_or_default();
    let listed = value.is_some_and(|value| values.iter().any(|listed| listed == value));
    let compare = |holds: fn(&i64, &i64) -> bool| {
        let bound = values
            .first()
            .and_then(Value::as_str)
            .and_then(|text| text.parse::<i64>().ok());
        let value = value.and_then(|text| text.parse::<i64>().ok());
        value.zip(bound).is_some_and(|(value, bound)| holds(&value, &bound))
    };
    match requirement["operator"].as_str() {
        Some("In") => listed,
        Some("NotIn") => !listed,
        Some("Exists") => value.is_some(),
        Some("DoesNotExist") => value.is_none(),
        Some("Gt") => compare(i64::gt),
        Some("Lt") => compare(i64::lt),
        _ => false,
    }
}

/// A taint of the node that the pod does not tolerate.
fn untolerated<'a>(spec: &Value, node: &'a Value) -> Option<&'a Value> {
    let tolerations: Vec<Value> = spec["tolerations"]
        .as_array()
        .into_iter()
        .flatten()
        .cloned()
        .chain(daemon_tolerations())
        .collect();
    let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
    taints.find(|taint| {
        taint["effect"] != "PreferNoSchedule" && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
    })
}

fn tolerates(toleration: &Value, taint: &Value) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (key, effect) = (text(&toleration["key"]), text(&toleration["effect"]));
    let any_value = toleration["operator"] == "Exists";
    (effect.is_empty() || taint["effect"] == effect)
        && (key.is_empty() && any_value || taint["key"] == key)
        && (any_value || text(&toleration["value"]) == text(&taint["value"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_affinity_and_taints_decide() {
        let node = json!({
            "metadata": { "name": "n", "labels": { "zone": "a", "gpus": "8" } },
            "spec": { "taints": [{ "key": "dedicated", "value": "gpu", "effect": "NoSchedule" }] },
        });
        let tolerations = json!([{ "key": "dedicated", "operator": "Equal", "value": "gpu" }]);
        let check = |mut spec: Value, expect: bool| {
            assert!(!may_run_on(&spec, &node), "the taint is not tolerated: {spec}");
            spec["tolerations"] = tolerations.clone();
            assert_eq!(may_run_on(&spec, &node), expect, "{spec}");
        };
        let term = |term: Value| {
            let required = json!({ "nodeSelectorTerms": [term] });
            json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": required } } })
        };
        let expression = |key: &str, operator: &str, values: &[&str]| {
            term(json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] }))
        };
        check(json!({}), true);
        check(json!({ "nodeSelector": { "zone": "a" } }), true);
        check(json!({ "nodeSelector": { "zone": "b" } }), false);
        check(expression("zone", "In", &["a", "b"]), true);
        check(expression("zone", "NotIn", &["a"]), false);
        check(expression("gpus", "Gt", &["4"]), true);
        check(expression("gpus", "Lt", &["4"]), false);
        check(expression("other", "DoesNotExist", &[]), true);
        let field = json!({ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["m"] }] });
        check(term(field), false);
    }

    #[test]
    fn pods_of_daemon_sets_bear_nodes_that_are_not_ready() {
        let taints = json!([{ "key": "node.kubernetes.io/not-ready", "effect": "NoExecute" }]);
        assert!(may_run_on(&json!({}), &json!({ "spec": { "taints": taints } })));
    }
}
