//! Test support against quadratic work: objects with one list of any length up to the size that an API server stores, and a check that
//! the work on them grows linearly with the list.

use serde_json::{Map, Value, json};

/// The largest object with etcd's default settings.
pub const OBJECT_BYTES_MAX: usize = 3 << 19;

/// A list in an object that a tenant can create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum List {
    SubGroups,
    SubGroupsInChains,
    SubGroupsInOneChain,
    Containers,
    Sidecars,
    EphemeralContainers,
    ResourceKinds,
    HostPorts,
    Environment,
    VolumesOfOneClaim,
    Tolerations,
    NodeSelector,
    NodeSelectorTerms,
    NodeSelectorValues,
    AffinityTerms,
    AntiAffinityTerms,
    AffinityNamespaces,
    Labels,
    Annotations,
    ContainerAnnotations,
    OwnerReferences,
    SchedulingGates,
    TopologyLevels,
}

impl List {
    /// All lists.
    pub const ALL: [List; 23] = [
        List::SubGroups,
        List::SubGroupsInChains,
        List::SubGroupsInOneChain,
        List::Containers,
        List::Sidecars,
        List::EphemeralContainers,
        List::ResourceKinds,
        List::HostPorts,
        List::Environment,
        List::VolumesOfOneClaim,
        List::Tolerations,
        List::NodeSelector,
        List::NodeSelectorTerms,
        List::NodeSelectorValues,
        List::AffinityTerms,
        List::AntiAffinityTerms,
        List::AffinityNamespaces,
        List::Labels,
        List::Annotations,
        List::ContainerAnnotations,
        List::OwnerReferences,
        List::SchedulingGates,
        List::TopologyLevels,
    ];

    /// An object whose list has `length` entries: a Pod `p` of pod group `g`, a PodGroup `g`, or a Topology `t`.
    pub fn object(self, length: usize) -> Value {
        const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
        let list = |entry: &dyn Fn(usize) -> Value| -> Value { (0..length).map(entry).collect() };
        let map = |entry: &dyn Fn(usize) -> (String, Value)| -> Value {
            Value::Object((0..length).map(entry).collect::<Map<_, _>>())
        };
        let name = |at: usize| format!("n{at}");
        let chained = |at: usize, last: bool| match last {
            true => json!({"name": name(at), "minSubGroup": 1}),
            false => json!({"name": name(at), "parent": name(at + 1), "minMember": 1}),
        };
        match self {
            List::SubGroups => pod_group(list(&|at| json!({"name": name(at), "minMember": 1}))),
            List::SubGroupsInChains => pod_group(list(&|at| chained(at, at % 8 == 7 || at + 1 == length))),
            List::SubGroupsInOneChain => pod_group(list(&|at| chained(at, at + 1 == length))),
            List::TopologyLevels => json!({
                "apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology", "metadata": {"name": "t", "uid": "t"},
                "spec": {"levels": list(&|at| json!({"nodeLabel": name(at), "alias": format!("a{at}")}))},
            }),
            List::Containers => pod(json!({"spec": {"containers": list(&|at| container(at, &Value::Null))}})),
            List::Sidecars => pod(json!({"spec": {"initContainers": list(&|at| container(at, &json!("Always")))}})),
            List::EphemeralContainers => {
                pod(json!({"spec": {"ephemeralContainers": list(&|at| json!({"name": name(at)}))}}))
            }
            List::ResourceKinds => {
                let kinds = map(&|at| (format!("example.com/r{at}"), json!("1")));
                let limits = map(&|at| (format!("example.com/r{at}"), json!("1")));
                pod(
                    json!({"spec": {"containers": [{"name": "c", "resources": {"requests": kinds, "limits": limits}}]}}),
                )
            }
            List::HostPorts => {
                let ports = list(&|at| json!({"hostPort": at % 65_535 + 1, "hostIP": format!("10.0.0.{at}")}));
                pod(json!({"spec": {"containers": [{"name": "c", "ports": ports}]}}))
            }
            List::Environment => pod(
                json!({"spec": {"containers": [{"name": "c", "env": list(&|at| json!({"name": name(at), "value": "v"}))}]}}),
            ),
            List::VolumesOfOneClaim => {
                let volume = |at: usize| json!({"name": name(at), "persistentVolumeClaim": {"claimName": "claim"}});
                pod(json!({"spec": {"volumes": list(&volume)}}))
            }
            List::Tolerations => {
                pod(json!({"spec": {"tolerations": list(&|at| json!({"key": name(at), "operator": "Exists"}))}}))
            }
            List::NodeSelector => pod(json!({"spec": {"nodeSelector": map(&|at| (name(at), json!("v")))}})),
            List::NodeSelectorTerms => {
                let term = |at: usize| json!({"matchExpressions": [{"key": name(at), "operator": "Exists"}]});
                let terms = list(&term);
                pod(json!({"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}}))
            }
            List::NodeSelectorValues => {
                let values = list(&|at| json!(name(at)));
                let terms = json!([{"matchExpressions": [{"key": "rack", "operator": "NotIn", "values": values}]}]);
                pod(json!({"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}}))
            }
            List::AffinityTerms => pod(json!({"spec": {"affinity": {"podAffinity": {REQUIRED: list(&|_| term())}}}})),
            List::AntiAffinityTerms => {
                pod(json!({"spec": {"affinity": {"podAntiAffinity": {REQUIRED: list(&|_| term())}}}}))
            }
            List::AffinityNamespaces => {
                let mut term = term();
                term["namespaces"] = list(&|at| json!(name(at)));
                pod(json!({"spec": {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}}))
            }
            List::Labels => pod(json!({"metadata": {"labels": map(&|at| (name(at), json!("v")))}})),
            List::Annotations => pod(json!({"metadata": {"annotations": map(&|at| (name(at), json!("v")))}})),
            List::ContainerAnnotations => {
                let request = |at: usize| (format!("nvidia.com/container.n{at}.gpu-memory.request"), json!("1Gi"));
                pod(json!({"metadata": {"annotations": map(&request)}}))
            }
            List::OwnerReferences => {
                let owner =
                    |at: usize| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name(at), "uid": name(at)});
                pod(json!({"metadata": {"ownerReferences": list(&owner)}}))
            }
            List::SchedulingGates => pod(json!({"spec": {"schedulingGates": list(&|at| json!({"name": name(at)}))}})),
        }
    }

    /// The length of the list in the largest object that the API server stores.
    pub fn length_max(self) -> usize {
        let bytes = |length: usize| self.object(length).to_string().len();
        let (few, many) = (1_000, 2_000);
        let per_entry = (bytes(many) - bytes(few)).div_ceil(many - few);
        // Entries with longer numbers have a few bytes more.
        (OBJECT_BYTES_MAX - bytes(0)) / (per_entry + 4)
    }
}

fn pod_group(sub_groups: Value) -> Value {
    json!({
        "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "a", "uid": "g"},
        "spec": {"queue": "q", "subGroups": sub_groups},
    })
}

fn pod(rest: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "p", "namespace": "a", "uid": "p",
            "annotations": {"pod-group-name": "g", "gpu-fraction": "0.5", "gpu-fraction-container-name": "c"},
        },
        "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "c"}]},
    });
    merge(&mut pod, rest);
    pod
}

/// A container that requests a resource of its own.
fn container(at: usize, restart_policy: &Value) -> Value {
    let resources = json!({"requests": {format!("example.com/r{at}"): "1"}});
    json!({"name": format!("n{at}"), "restartPolicy": restart_policy, "resources": resources})
}

fn term() -> Value {
    json!({"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": "x"}}})
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// Steps per entry, over all passes.
const STEPS_PER_ENTRY_MAX: u64 = 100;
/// Steps that do not depend on the length of the list.
const STEPS_CONSTANT: u64 = 500;

/// The lengths to test: within all bounds on lists, at the largest bound, and the longest that the API server stores.
pub fn lengths(list: List) -> [usize; 3] {
    [64, kai_api::SUB_GROUPS_MAX, list.length_max()]
}

/// Runs the work on a list of this length and on one of a quarter of it, and compares the steps.
pub fn check_growth(length: usize, mut steps: impl FnMut(usize) -> u64) -> Result<(), String> {
    let (quarter, whole) = (steps(length / 4), steps(length));
    // For four times the length, sorting takes a little more than four times the steps; comparing all pairs takes sixteen times.
    if whole > quarter * 5 + STEPS_CONSTANT {
        return Err(format!(
            "{quarter} steps for {} entries, {whole} for {length}",
            length / 4
        ));
    }
    let max = STEPS_PER_ENTRY_MAX * (length as u64 + STEPS_CONSTANT);
    match whole > max {
        true => Err(format!("{whole} steps for {length} entries; {max} may be taken")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_lists_fill_an_object() {
        for list in List::ALL {
            let bytes = list.object(list.length_max()).to_string().len();
            assert!(
                (OBJECT_BYTES_MAX * 3 / 4..=OBJECT_BYTES_MAX).contains(&bytes),
                "{list:?}: {bytes} bytes"
            );
        }
    }

    #[test]
    fn work_that_grows_with_the_square_is_found() {
        for length in [64, 10_000] {
            assert_eq!(check_growth(length, |length| 40 * length as u64), Ok(()));
            assert!(check_growth(length, |length| (length * length) as u64).is_err());
            let sorted = |length: usize| length as u64 * u64::from(length.ilog2());
            assert_eq!(check_growth(length, sorted), Ok(()));
        }
        assert!(check_growth(10_000, |length| 200 * length as u64).is_err());
    }
}
