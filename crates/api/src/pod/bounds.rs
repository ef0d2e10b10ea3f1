//! Bounds on the lists of a pod that the engine compares with every node, or with every pod on a node.
//!
//! Kubernetes bounds only the size of an object. 1.5 MiB hold some ten thousand entries; to compare them with a thousand nodes would take
//! seconds for one pod. A pod beyond a bound is refused with the reason. The bounds are far above the needs of real pods.

use crate::Error;
use crate::error::FieldError;

/// Tolerations. The engine compares each with every taint of every node.
pub(super) const TOLERATIONS_MAX: usize = 128;
/// Terms, requirements and values of the node selector and node affinity together. Lists of nodes to avoid may be long.
pub(super) const NODE_REQUIREMENTS_MAX: usize = 1_024;
/// Requirements, values and namespaces of pod (anti-)affinity terms together.
pub(super) const POD_REQUIREMENTS_MAX: usize = 1_024;
/// Host ports. The engine compares them with the ports of all pods on a node.
pub(super) const HOST_PORTS_MAX: usize = 256;
/// Kinds of resources besides CPU, memory and GPUs. Reasons list them.
pub(super) const RESOURCE_KINDS_MAX: usize = 64;
/// Reported problems of one pod: each becomes an event.
pub(super) const PROBLEMS_MAX: usize = 8;

/// Whether a list is within its bound. Adds an error if not.
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

    /// A list of this length is accepted. One more entry refuses the pod, and the list is not read.
    fn check(max: usize, spec: impl Fn(usize) -> Value, field: &str) {
        let within = read(spec(max)).value;
        assert_eq!(within.refused, None);
        let beyond = read(spec(max + 1)).value;
        let text = format!(
            "{field}: {} entries are more than the {max} that are scheduled; leave some out",
            max + 1
        );
        assert_eq!(beyond.refused.map(|refusal| refusal.to_string()), Some(text));
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
