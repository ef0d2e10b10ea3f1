//! How long the lists of a pod may be that are compared with every node, or with every pod on it.
//!
//! Kubernetes bounds none of them, but for the size of an object: 1.5 MiB hold some ten thousand entries, and a thousand nodes to
//! compare them with make that a matter of seconds for one pod. A pod beyond a bound waits and says why. The bounds are far above
//! what pods have.

use crate::Error;
use crate::error::FieldError;

/// Tolerations; each is compared with each taint of each node.
pub(super) const TOLERATIONS_MAX: usize = 128;
/// Terms, requirements and values of the node selector and node affinity together. Lists of nodes to avoid may be long.
pub(super) const NODE_REQUIREMENTS_MAX: usize = 1_024;
/// Requirements, values and namespaces of these terms.
pub(super) const POD_REQUIREMENTS_MAX: usize = 1_024;
/// Host ports; they are looked for among those of all pods on a node.
pub(super) const HOST_PORTS_MAX: usize = 256;
/// Kinds of resources beside CPU, memory and GPUs. Reasons list them.
pub(super) const RESOURCE_KINDS_MAX: usize = 64;
/// Problems of one pod that are told: each becomes an event.
pub(super) const PROBLEMS_MAX: usize = 8;

/// Whether a list has no more entries than it may have; else an error says so.
pub(super) fn is_within(count: usize, max: usize, field: &str, errors: &mut Vec<FieldError>) -> bool {
    if count > max {
        errors.push(FieldError::new(field, Error::TooMany { count, max }));
    }
    count <= max
}

#[cfg(test)]
mod tests {
    use kai_engine::model::{AFFINITY_TERMS_MAX, Millis, PodSpec};
    use serde_json::{Value, json};

    use super::*;
    use crate::{Pod, PodIdentity, Read};

    fn read(mut spec: Value) -> Read<PodSpec> {
        spec["schedulerName"] = "kai-scheduler".into();
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
        pod.read(&PodIdentity::default(), Millis(0)).unwrap()
    }

    fn list(count: usize, entry: impl Fn(usize) -> Value) -> Vec<Value> {
        (0..count).map(entry).collect()
    }

    /// A list of this length is taken, one that is longer by one is a reason to wait, and is not looked at any more.
    fn check(max: usize, spec: impl Fn(usize) -> Value, field: &str) {
        let within = read(spec(max)).value;
        assert_eq!(within.refused, None);
        let beyond = read(spec(max + 1)).value;
        let text = format!(
            "{field}: {} entries are more than the {max} that are scheduled; leave some out",
            max + 1
        );
        assert_eq!(beyond.refused, Some(text));
        if field != "spec.containers[].resources" {
            assert_eq!(beyond.constraints, read(json!({})).value.constraints);
        }
    }

    #[test]
    fn a_list_that_is_too_long_is_a_reason_to_wait() {
        let tolerations =
            |count| json!({"tolerations": list(count, |at| json!({"key": format!("k{at}"), "operator": "Exists"}))});
        check(TOLERATIONS_MAX, tolerations, "spec.tolerations");

        let selector = |count| {
            let entries = (0..count).map(|at| (format!("k{at}"), json!("v")));
            json!({"nodeSelector": entries.collect::<serde_json::Map<_, _>>()})
        };
        check(
            NODE_REQUIREMENTS_MAX,
            selector,
            "spec.nodeSelector and spec.affinity.nodeAffinity",
        );

        let node_values = |count: usize| {
            let values = list(count - 2, |at| json!(format!("node-{at}")));
            let term =
                json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": values}]});
            json!({"affinity": {"nodeAffinity":
                {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}})
        };
        check(
            NODE_REQUIREMENTS_MAX,
            node_values,
            "spec.nodeSelector and spec.affinity.nodeAffinity",
        );

        let term = |at: usize| json!({"topologyKey": format!("k{at}"), "labelSelector": {}});
        for kind in ["podAffinity", "podAntiAffinity"] {
            let terms = |count| json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(count, term)}}});
            check(
                AFFINITY_TERMS_MAX,
                terms,
                "spec.affinity.podAffinity and podAntiAffinity",
            );
        }

        let values = |count: usize| {
            let values = list(count - 1, |at| json!(format!("v{at}")));
            let selector = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": values}]});
            let weighted = json!({"weight": 1, "podAffinityTerm": {"topologyKey": "rack", "labelSelector": selector}});
            json!({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [weighted]}}})
        };
        check(
            POD_REQUIREMENTS_MAX,
            values,
            "spec.affinity.podAffinity and podAntiAffinity",
        );

        let ports = |count| json!({"containers": [{"ports": list(count, |at| json!({"hostPort": at + 1}))}]});
        check(HOST_PORTS_MAX, ports, "spec.containers[].ports[].hostPort");

        let kinds = |count| {
            let container = |at: usize| json!({"resources": {"requests": {format!("example.com/r{at}"): 1}}});
            json!({"containers": list(count, container)})
        };
        check(RESOURCE_KINDS_MAX, kinds, "spec.containers[].resources");
    }

    #[test]
    fn a_pod_with_many_problems_tells_a_few() {
        let term = |_| json!({"topologyKey": "rack", "namespaceSelector": {"matchLabels": {"a": "b"}}});
        let terms = list(AFFINITY_TERMS_MAX, term);
        let pod = read(json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}));
        assert_eq!(pod.problems.len(), PROBLEMS_MAX);
    }
}
