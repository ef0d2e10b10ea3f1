//! Validation of the spec of a pod or pod template, with Kubernetes' messages. Pure.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Value, json};

use super::{containers, metadata, names};
use crate::server::status_error::Cause;

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
/// Volume sources with a required name, and the field of that name.
const NAMED_VOLUMES: [(&str, &str); 4] = [
    ("configMap", "name"),
    ("secret", "secretName"),
    ("persistentVolumeClaim", "claimName"),
    ("hostPath", "path"),
];

/// The path of a field.
#[derive(Debug, Clone)]
pub(super) struct FieldPath(String);

impl FieldPath {
    pub(super) fn new(path: impl Into<String>) -> Self {
        Self(path.into())
    }

    /// The path of a child field, as text.
    pub(super) fn at(&self, field: &str) -> String {
        format!("{}.{field}", self.0)
    }

    pub(super) fn below(&self, field: &str) -> Self {
        Self(self.at(field))
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks a pod spec at a path: `spec`, or `spec.template.spec` of a workload.
pub(super) fn check(spec: &Value, path: &str) -> Vec<Cause> {
    let path = &FieldPath::new(path);
    let mut causes = check_volumes(&spec["volumes"], path);
    causes.extend(containers::check(spec, path));
    causes.extend(check_word(
        spec,
        path,
        "restartPolicy",
        &["Always", "OnFailure", "Never"],
    ));
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    causes.extend(check_word(spec, path, "dnsPolicy", &policies));
    causes.extend(metadata::check_labels(&spec["nodeSelector"], &path.at("nodeSelector")));
    check_affinity(&spec["affinity"], &path.below("affinity"), &mut causes);
    check_tolerations(&spec["tolerations"], path, &mut causes);
    check_gates(&spec["schedulingGates"], path, &mut causes);
    for field in ["hostname", "subdomain"] {
        let name = text(&spec[field]);
        let problems = if name.is_empty() {
            Vec::new()
        } else {
            names::label(name)
        };
        causes.extend(
            problems
                .iter()
                .map(|why| Cause::invalid(path.at(field), &json!(name), why)),
        );
    }
    if let Some(seconds) = spec["activeDeadlineSeconds"].as_i64() {
        causes.extend(in_range(seconds, 1, i32::MAX.into(), path.at("activeDeadlineSeconds")));
    }
    if let Some(seconds) = spec["terminationGracePeriodSeconds"].as_i64().filter(|s| *s < 0) {
        let why = "must be greater than or equal to 0";
        causes.push(Cause::invalid(
            path.at("terminationGracePeriodSeconds"),
            &json!(seconds),
            why,
        ));
    }
    causes
}

/// Checks that an update adds no scheduling gates.
pub(super) fn check_new_gates(old: &Value, new: &Value) -> Vec<Cause> {
    let had: Vec<&Value> = items(&old["schedulingGates"]).collect();
    let added = items(&new["schedulingGates"])
        .enumerate()
        .filter(|(_, gate)| !had.contains(gate));
    let forbidden = |(at, gate): (usize, &Value)| {
        let why = format!(
            "only deletion is allowed, but found new scheduling gate '{}'",
            text(&gate["name"])
        );
        Cause::forbidden(format!("spec.schedulingGates[{at}].name"), why)
    };
    added.map(forbidden).collect()
}

fn check_volumes(volumes: &Value, path: &FieldPath) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut seen = BTreeSet::new();
    for (at, volume) in items(volumes).enumerate() {
        let path = path.below(&format!("volumes[{at}]"));
        for (kind, field) in NAMED_VOLUMES {
            if volume[kind].is_object() && text(&volume[kind][field]).is_empty() {
                causes.push(Cause::required(path.at(&format!("{kind}.{field}")), ""));
            }
        }
        let name = text(&volume["name"]);
        if name.is_empty() {
            causes.push(Cause::required(path.at("name"), ""));
            continue;
        }
        let problems = names::label(name);
        causes.extend(
            problems
                .iter()
                .map(|why| Cause::invalid(path.at("name"), &json!(name), why)),
        );
        if !seen.insert(name) {
            causes.push(Cause::duplicate(path.at("name"), &json!(name)));
        }
    }
    causes
}

fn check_tolerations(tolerations: &Value, path: &FieldPath, causes: &mut Vec<Cause>) {
    for (at, toleration) in items(tolerations).enumerate() {
        let path = path.below(&format!("tolerations[{at}]"));
        let (key, operator) = (text(&toleration["key"]), text(&toleration["operator"]));
        if !key.is_empty() {
            let problems = names::qualified(key);
            causes.extend(
                problems
                    .iter()
                    .map(|why| Cause::invalid(path.at("key"), &json!(key), why)),
            );
        } else if operator != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            causes.push(Cause::invalid(path.at("operator"), &json!(operator), why));
        }
        if operator == "Exists" && !text(&toleration["value"]).is_empty() {
            let why = "value must be empty when `operator` is 'Exists'";
            causes.push(Cause::invalid(path.at("operator"), toleration, why));
        }
        causes.extend(check_word(toleration, &path, "operator", &["Equal", "Exists"]));
        causes.extend(check_word(toleration, &path, "effect", &EFFECTS));
    }
}

/// Checks the taints of a node. The path is Kubernetes' own.
pub(super) fn check_taints(taints: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (at, taint) in items(taints).enumerate() {
        let path = FieldPath::new(format!("metadata.taints[{at}]"));
        let key = text(&taint["key"]);
        causes.extend(
            names::qualified(key)
                .iter()
                .map(|why| Cause::invalid(path.at("key"), &json!(key), why)),
        );
        if text(&taint["effect"]).is_empty() {
            causes.push(Cause::required(path.at("effect"), ""));
        }
        causes.extend(check_word(taint, &path, "effect", &EFFECTS));
    }
    causes
}

fn check_gates(gates: &Value, path: &FieldPath, causes: &mut Vec<Cause>) {
    let mut seen = BTreeSet::new();
    for (at, gate) in items(gates).enumerate() {
        let field = path.at(&format!("schedulingGates[{at}]"));
        let name = text(&gate["name"]);
        causes.extend(
            names::qualified(name)
                .iter()
                .map(|why| Cause::invalid(&*field, &json!(name), why)),
        );
        if !seen.insert(name) {
            causes.push(Cause::duplicate(field, &json!(name)));
        }
    }
}

fn check_affinity(affinity: &Value, path: &FieldPath, causes: &mut Vec<Cause>) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let node = &affinity["nodeAffinity"];
    if node[REQUIRED].is_object() {
        let path = path.below(&format!("nodeAffinity.{REQUIRED}"));
        let terms = &node[REQUIRED]["nodeSelectorTerms"];
        if items(terms).next().is_none() {
            let why = "must have at least one node selector term";
            causes.push(Cause::required(path.at("nodeSelectorTerms"), why));
        }
        for (at, term) in items(terms).enumerate() {
            check_node_term(term, &path.below(&format!("nodeSelectorTerms[{at}]")), causes);
        }
    }
    for (at, preferred) in items(&node[PREFERRED]).enumerate() {
        let path = path.below(&format!("nodeAffinity.{PREFERRED}[{at}]"));
        causes.extend(weight_of(preferred, &path));
        check_node_term(&preferred["preference"], &path.below("preference"), causes);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        for (at, term) in items(&affinity[kind][REQUIRED]).enumerate() {
            check_topology_key(term, &path.below(&format!("{kind}.{REQUIRED}[{at}]")), causes);
        }
        for (at, preferred) in items(&affinity[kind][PREFERRED]).enumerate() {
            let path = path.below(&format!("{kind}.{PREFERRED}[{at}]"));
            causes.extend(weight_of(preferred, &path));
            check_topology_key(&preferred["podAffinityTerm"], &path.below("podAffinityTerm"), causes);
        }
    }
}

fn weight_of(preferred: &Value, path: &FieldPath) -> Option<Cause> {
    let weight = preferred["weight"].as_i64().unwrap_or(0);
    let why = "must be in the range 1-100";
    (!(1..=100).contains(&weight)).then(|| Cause::invalid(path.at("weight"), &json!(weight), why))
}

fn check_node_term(term: &Value, path: &FieldPath, causes: &mut Vec<Cause>) {
    for (at, expression) in items(&term["matchExpressions"]).enumerate() {
        let path = path.below(&format!("matchExpressions[{at}]"));
        let values = items(&expression["values"]).count();
        match text(&expression["operator"]) {
            "In" | "NotIn" if values == 0 => {
                let why = "must be specified when `operator` is 'In' or 'NotIn'";
                causes.push(Cause::required(path.at("values"), why));
            }
            "Exists" | "DoesNotExist" if values > 0 => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                causes.push(Cause::forbidden(path.at("values"), why));
            }
            "Gt" | "Lt" if values != 1 => {
                let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                causes.push(Cause::required(path.at("values"), why));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            other => {
                let why = "not a valid selector operator";
                causes.push(Cause::invalid(path.at("operator"), &json!(other), why));
            }
        }
        let key = text(&expression["key"]);
        causes.extend(
            names::qualified(key)
                .iter()
                .map(|why| Cause::invalid(path.at("key"), &json!(key), why)),
        );
    }
}

fn check_topology_key(term: &Value, path: &FieldPath, causes: &mut Vec<Cause>) {
    let key = text(&term["topologyKey"]);
    if key.is_empty() {
        causes.push(Cause::required(path.at("topologyKey"), "can not be empty"));
    }
    let problems = names::qualified(key);
    causes.extend(
        problems
            .iter()
            .map(|why| Cause::invalid(path.at("topologyKey"), &json!(key), why)),
    );
}

/// Checks that a field, if set, has one of the allowed values.
pub(super) fn check_word(object: &Value, path: &FieldPath, field: &str, allowed: &[&str]) -> Option<Cause> {
    let word = text(&object[field]);
    let known = word.is_empty() || allowed.contains(&word);
    (!known).then(|| Cause::unsupported(path.at(field), &json!(word), allowed))
}

pub(super) fn in_range(number: i64, min: i64, max: i64, field: String) -> Option<Cause> {
    let why = || format!("must be between {min} and {max}, inclusive");
    (!(min..=max).contains(&number)).then(|| Cause::invalid(field, &json!(number), why()))
}

pub(super) fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The causes of a spec with one valid container and these fields.
    fn problems(fields: Value) -> Vec<String> {
        let mut spec = json!({"containers": [{"name": "a", "image": "x"}]});
        for (name, value) in fields.as_object().unwrap() {
            spec[name] = value.clone();
        }
        let causes = check(&spec, "spec");
        causes
            .iter()
            .map(|cause| format!("{}: {}", cause.field, cause.message))
            .collect()
    }

    fn resources(resources: Value) -> Vec<String> {
        problems(json!({"containers": [{"name": "a", "image": "x", "resources": resources}]}))
    }

    #[test]
    fn amounts_are_refused_with_field_and_reason() {
        assert!(resources(json!({"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}})).is_empty());
        assert_eq!(
            resources(json!({"limits": {"nvidia.com/gpu": "500m"}})),
            ["spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: \"500m\": must be an integer"]
        );
        assert_eq!(
            resources(json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1500m"}})),
            [
                "spec.containers[0].resources.requests: Invalid value: \"1500m\": must be less than or equal to cpu limit of 1"
            ]
        );
        assert_eq!(resources(json!({"requests": {"memory": "-1Gi"}})).len(), 1);
        assert_eq!(resources(json!({"requests": {"nvidia.com/gpu": "1"}})).len(), 1);
        assert_eq!(resources(json!({"limits": {"gpu": "1"}})).len(), 2);
    }

    #[test]
    fn words_and_names_are_refused_with_what_is_allowed() {
        assert_eq!(
            problems(json!({"restartPolicy": "Sometimes"})),
            [
                "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\""
            ]
        );
        assert_eq!(problems(json!({"containers": [{"name": "A", "image": "x"}]})).len(), 1);
        assert_eq!(problems(json!({"containers": []})), ["spec.containers: Required value"]);
        assert_eq!(
            problems(json!({"tolerations": [{"key": "a", "effect": "Never"}]})).len(),
            1
        );
        assert_eq!(problems(json!({"tolerations": [{"value": "a"}]})).len(), 1);
        assert_eq!(problems(json!({"nodeSelector": {"a b": "c"}})).len(), 1);
    }

    #[test]
    fn references_within_a_pod_lead_somewhere() {
        let mounted = |volumes: Value| {
            let mounts = json!([{"name": "v", "mountPath": "/v"}]);
            problems(json!({"volumes": volumes, "containers": [{"name": "a", "image": "x", "volumeMounts": mounts}]}))
        };
        assert!(mounted(json!([{"name": "v", "emptyDir": {}}])).is_empty());
        assert_eq!(
            mounted(json!([])),
            ["spec.containers[0].volumeMounts[0].name: Not found: \"v\""]
        );
        assert_eq!(
            mounted(json!([{"name": "v", "configMap": {}}])),
            ["spec.volumes[0].configMap.name: Required value"]
        );
    }

    #[test]
    fn affinities_are_complete() {
        let node = |terms: Value| {
            let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
            problems(json!({"affinity": {"nodeAffinity": required}})).len()
        };
        assert_eq!(node(json!([])), 1);
        assert_eq!(
            node(json!([{"matchExpressions": [{"key": "a", "operator": "Exists"}]}])),
            0
        );
        assert_eq!(node(json!([{"matchExpressions": [{"key": "a", "operator": "In"}]}])), 1);
        assert_eq!(
            node(json!([{"matchExpressions": [{"key": "a", "operator": "Near", "values": ["b"]}]}])),
            1
        );
        let preferred = json!([{"weight": 0, "podAffinityTerm": {"topologyKey": "zone"}}]);
        let soft = json!({"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}});
        assert_eq!(problems(json!({"affinity": soft})).len(), 1);
    }
}
