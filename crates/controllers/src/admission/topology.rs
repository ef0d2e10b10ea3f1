//! Validation of topologies: an alias must name one level. The schema checks the rest; a few of its rules are repeated here for
//! clusters with an older schema.

use std::collections::BTreeSet;

use kai_api::keys;
use serde_json::Value;

use super::review::{FieldError, Operation, Request, Verdict};
use super::unstructured;

/// Reviews a topology.
pub(super) fn validate(request: &Request) -> Verdict {
    let is_being_deleted = unstructured::text(&request.object, "/metadata/deletionTimestamp").is_some();
    let errors = match request.operation {
        Operation::Delete | Operation::Connect => Vec::new(),
        Operation::Update if is_being_deleted => Vec::new(),
        Operation::Create => content(&request.object),
        Operation::Update => {
            let mut errors = content(&request.object);
            errors.extend(changed(&request.old_object, &request.object));
            errors
        }
    };
    Verdict::of(&request.object_name("Topology"), &errors)
}

fn content(topology: &Value) -> Vec<FieldError> {
    let labels = labels(topology);
    let aliases: Vec<&str> = levels(topology)
        .iter()
        .filter_map(|level| unstructured::text(level, "/alias"))
        .collect();
    let error = |text: String| FieldError::invalid("spec.levels", text);
    let mut errors = Vec::new();
    let twice = repeated(&labels);
    if !twice.is_empty() {
        errors.push(error(format!(
            "labels occur more than once: {}; write each once",
            twice.join(", ")
        )));
    }
    let twice = repeated(&aliases);
    if !twice.is_empty() {
        errors.push(error(format!(
            "aliases occur more than once: {}; choose others",
            twice.join(", ")
        )));
    }
    let known: BTreeSet<&str> = labels.iter().copied().collect();
    let both: BTreeSet<&str> = aliases.into_iter().filter(|alias| known.contains(alias)).collect();
    if !both.is_empty() {
        let both: Vec<&str> = both.into_iter().collect();
        errors.push(error(format!(
            "aliases are labels of levels too: {}; choose others",
            both.join(", ")
        )));
    }
    let above_last = labels
        .split_last()
        .is_some_and(|(_, above)| above.contains(&keys::NODE_HOSTNAME));
    if above_last && repeated(&labels).is_empty() {
        errors.push(error(format!(
            "{} is the finest level there is; make it the last",
            keys::NODE_HOSTNAME
        )));
    }
    errors
}

fn changed(old: &Value, new: &Value) -> Option<FieldError> {
    let differ = !old.is_null() && labels(old) != labels(new);
    differ.then(|| {
        let text =
            "the labels of a topology can't change, because workloads were placed by them; create another topology";
        FieldError::invalid("spec.levels", text)
    })
}

fn levels(topology: &Value) -> &[Value] {
    unstructured::list(topology, "/spec/levels")
}

fn labels(topology: &Value) -> Vec<&str> {
    levels(topology)
        .iter()
        .filter_map(|level| unstructured::text(level, "/nodeLabel"))
        .collect()
}

/// The texts that occur more than once, sorted.
fn repeated<'a>(texts: &[&'a str]) -> Vec<&'a str> {
    let mut seen = BTreeSet::new();
    let twice: BTreeSet<&str> = texts.iter().copied().filter(|text| !seen.insert(*text)).collect();
    twice.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::review::Decision;
    use super::*;

    fn topology(levels: &[(&str, &str)]) -> Value {
        let levels: Vec<Value> = levels
            .iter()
            .map(|(label, alias)| json!({"nodeLabel": label, "alias": alias}))
            .collect();
        json!({"metadata": {"name": "t"}, "spec": {"levels": levels}})
    }

    fn check(operation: Operation, old: Value, new: Value, expect: &str) {
        let request = Request {
            operation,
            old_object: old,
            object: new,
            ..Request::default()
        };
        let message = match validate(&request).decision {
            Decision::Denied { message, .. } => message,
            Decision::Allowed => String::new(),
            Decision::Patched(_) => panic!("validation changes nothing"),
        };
        assert_eq!(message, expect);
    }

    #[test]
    fn an_alias_means_one_level() {
        let create = |levels: &[(&str, &str)], expect| check(Operation::Create, Value::Null, topology(levels), expect);
        create(&[("zone", "z"), ("rack", ""), ("kubernetes.io/hostname", "")], "");
        create(
            &[("zone", "b"), ("rack", "b"), ("row", "a"), ("x", "a"), ("y", "zone")],
            "Topology t: spec.levels: aliases occur more than once: a, b; choose others\nTopology t: spec.levels: aliases are \
             labels of levels too: zone; choose others",
        );
        create(
            &[("zone", ""), ("zone", "")],
            "Topology t: spec.levels: labels occur more than once: zone; write each once",
        );
        create(
            &[("kubernetes.io/hostname", ""), ("zone", "")],
            "Topology t: spec.levels: kubernetes.io/hostname is the finest level there is; make it the last",
        );
        check(Operation::Create, Value::Null, json!({"spec": {"levels": [1, {}]}}), "");
    }

    #[test]
    fn labels_stay_and_aliases_may_change() {
        let old = topology(&[("zone", "z"), ("rack", "r")]);
        check(
            Operation::Update,
            old.clone(),
            topology(&[("zone", "y"), ("rack", "")]),
            "",
        );
        check(
            Operation::Update,
            old.clone(),
            topology(&[("rack", "r"), ("zone", "z")]),
            "Topology t: spec.levels: the labels of a topology can't change, because workloads were placed by them; create another \
             topology",
        );
        check(Operation::Delete, old, Value::Null, "");
    }
}
