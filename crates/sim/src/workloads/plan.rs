//! What a workload lacks or has too much of. Pure.

use serde_json::{Value, json};

use super::objects::Workload;

/// A pod that a workload owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owned {
    pub(super) name: String,
    pub(super) runs: bool,
    pub(super) leaves: bool,
}

/// What to do for a workload.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) create: Vec<Value>,
    pub(super) delete: Vec<String>,
    pub(super) status: Value,
}

pub(super) fn replica_set(set: &Workload, owned: &[Owned]) -> Plan {
    let live: Vec<&Owned> = owned.iter().filter(|pod| !pod.leaves).collect();
    let wanted = usize::try_from(set.replicas()).unwrap_or(0);
    let create = (live.len()..wanted).map(|_| {
        let mut pod = pod_of(set, "apps/v1", "ReplicaSet");
        pod["metadata"]["generateName"] = format!("{}-", set.name()).into();
        pod
    });
    // Those that do not run yet go first.
    let mut by_worth = live.clone();
    by_worth.sort_by_key(|pod| (pod.runs, pod.name.clone()));
    let delete = by_worth.iter().take(live.len().saturating_sub(wanted));
    Plan {
        create: create.collect(),
        delete: delete.map(|pod| pod.name.clone()).collect(),
        status: status(
            set,
            count(live.len()),
            count(live.iter().filter(|pod| pod.runs).count()),
        ),
    }
}

pub(super) fn stateful_set(set: &Workload, owned: &[Owned]) -> Plan {
    let wanted: Vec<String> = (0..set.replicas())
        .map(|number| format!("{}-{number}", set.name()))
        .collect();
    let missing = wanted.iter().filter(|name| !owned.iter().any(|pod| pod.name == **name));
    let create = missing.map(|name| {
        let mut pod = pod_of(set, "apps/v1", "StatefulSet");
        pod["metadata"]["name"] = name.as_str().into();
        pod
    });
    let extra = owned.iter().filter(|pod| !pod.leaves && !wanted.contains(&pod.name));
    let live = owned.iter().filter(|pod| !pod.leaves);
    Plan {
        create: create.collect(),
        delete: extra.map(|pod| pod.name.clone()).collect(),
        status: status(
            set,
            count(live.clone().count()),
            count(live.filter(|pod| pod.runs).count()),
        ),
    }
}

/// The replica set of a deployment's present template.
pub(super) fn replica_set_of(deployment: &Workload) -> Value {
    let hash = template_hash(&deployment.spec["template"]);
    let mut metadata = deployment.owned("apps/v1", "Deployment");
    metadata["name"] = format!("{}-{hash}", deployment.name()).into();
    metadata["labels"]["pod-template-hash"] = hash.as_str().into();
    let mut template = deployment.spec["template"].clone();
    template["metadata"]["labels"]["pod-template-hash"] = hash.as_str().into();
    let mut selector = deployment.spec["selector"].clone();
    selector["matchLabels"]["pod-template-hash"] = hash.as_str().into();
    json!({
        "metadata": metadata,
        "spec": { "replicas": deployment.replicas(), "selector": selector, "template": template },
    })
}

pub(super) fn status(workload: &Workload, replicas: i64, ready: i64) -> Value {
    let mut status = json!({ "replicas": replicas, "readyReplicas": ready, "availableReplicas": ready, "updatedReplicas": replicas });
    if workload.spec.get("updateStrategy").is_none() && workload.spec.get("strategy").is_none() {
        // ReplicaSets have no such field.
        status.as_object_mut().map(|fields| fields.remove("updatedReplicas"));
    }
    status
}

/// A pod of the workload's template.
pub(super) fn pod_of(workload: &Workload, api_version: &str, kind: &str) -> Value {
    json!({ "metadata": workload.owned(api_version, kind), "spec": workload.spec["template"]["spec"] })
}

fn count(of: usize) -> i64 {
    i64::try_from(of).unwrap_or(i64::MAX)
}

/// A short name for the content of a template: FNV-1a over its text, which serde writes with sorted keys.
fn template_hash(template: &Value) -> String {
    let hash = template
        .to_string()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("{:010x}", hash & 0xff_ffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(replicas: i64) -> Workload {
        let text = json!({
            "metadata": { "name": "web", "uid": "u" },
            "spec": { "replicas": replicas, "template": { "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [] } } },
        });
        serde_json::from_value(text).unwrap()
    }

    fn pod(name: &str, runs: bool) -> Owned {
        Owned {
            name: name.to_owned(),
            runs,
            leaves: false,
        }
    }

    #[test]
    fn a_replica_set_keeps_its_number() {
        assert_eq!(replica_set(&set(3), &[pod("a", true)]).create.len(), 2);
        let plan = replica_set(&set(1), &[pod("a", true), pod("b", false)]);
        assert_eq!((plan.create.len(), plan.delete), (0, vec!["b".to_owned()]));
        let leaving = Owned {
            leaves: true,
            ..pod("a", true)
        };
        assert_eq!(replica_set(&set(1), &[leaving]).create.len(), 1);
    }

    #[test]
    fn a_stateful_set_keeps_its_names() {
        let plan = stateful_set(&set(2), &[pod("web-1", true), pod("web-2", true)]);
        assert_eq!(plan.create[0]["metadata"]["name"], "web-0");
        assert_eq!(plan.delete, ["web-2"]);
    }

    #[test]
    fn a_template_has_one_name() {
        let one = replica_set_of(&set(1))["metadata"]["name"].clone();
        assert_eq!(one, replica_set_of(&set(5))["metadata"]["name"]);
    }
}
