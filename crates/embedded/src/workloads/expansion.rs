//! The objects that the workload controllers would create, without a cluster, for `kai simulate`. Pure.

use jiff::Timestamp;
use serde_json::Value;

pub use super::objects::Workload;
use super::objects::{DaemonSet, StatefulSet, short_hash};
use super::pods::OwnedPod;
use super::{daemon_set, deployment, job, replica_set, revisions, stateful_set};

/// The prefix of uids that no API server assigned.
const SYNTHETIC_UID_PREFIX: &str = "made-up-";

/// A uid from the name of an object that was never in a cluster.
pub fn synthetic_uid(name: &str) -> String {
    format!("{SYNTHETIC_UID_PREFIX}{}", short_hash(name))
}

/// Whether this uid is synthetic.
pub fn is_synthetic_uid(uid: &str) -> bool {
    uid.starts_with(SYNTHETIC_UID_PREFIX)
}

impl Workload {
    /// Reads a workload from a manifest.
    pub fn read(object: &Value) -> Result<Workload, serde_json::Error> {
        serde::Deserialize::deserialize(object)
    }
}

/// The number of pods that the workload runs at a time.
pub fn wanted_pods(kind: &str, workload: &Workload) -> i64 {
    match kind {
        "Job" => job::parallelism(workload),
        // One on each node; bounded by the nodes.
        "DaemonSet" => 0,
        _ => workload.replicas(),
    }
}

/// The objects that the workload's controller would create, and their kind. `owned` has the existing ones, `nodes` all nodes.
pub fn missing_objects(
    kind: &str,
    workload: &Workload,
    owned: &[&Value],
    nodes: &[Value],
) -> (&'static str, Vec<Value>) {
    // A fixed time, because a simulation has no clock. The number of pods does not depend on it.
    let now = Timestamp::UNIX_EPOCH;
    let (kind, objects) = match kind {
        "Deployment" if owned.is_empty() => {
            let set = deployment::plan(workload, &[], now).create;
            ("ReplicaSet", set.into_iter().collect())
        }
        "ReplicaSet" => ("Pod", replica_set::plan(workload, &pods(owned), now).create),
        "StatefulSet" => ("Pod", missing_pods(workload, &pods(owned), now)),
        "DaemonSet" => {
            let revisions = revisions::plan(workload, &<DaemonSet as kai_api::Object>::RESOURCE, &[], &[]);
            let plan = daemon_set::plan(workload, nodes, &pods(owned), &revisions, now);
            ("Pod", plan.create)
        }
        "Job" => match job::plan(workload, &pods(owned), now) {
            job::Step::Apply(plan) => ("Pod", plan.create),
            job::Step::Delete | job::Step::Wait(_) => ("Pod", Vec::new()),
        },
        _ => ("Pod", Vec::new()),
    };
    let complete = |(at, object)| complete(object, kind, workload, owned.len() + at);
    (kind, objects.into_iter().enumerate().map(complete).collect())
}

/// All missing pods of a StatefulSet, without waiting for each one to be ready.
fn missing_pods(set: &Workload, owned: &[OwnedPod], now: Timestamp) -> Vec<Value> {
    let mut set = set.clone();
    set.spec["podManagementPolicy"] = "Parallel".into();
    let revisions = revisions::plan(&set, &<StatefulSet as kai_api::Object>::RESOURCE, &[], &[]);
    stateful_set::plan(&set, owned, &revisions, now).create
}

fn pods(owned: &[&Value]) -> Vec<OwnedPod> {
    owned.iter().map(|pod| OwnedPod::of(pod)).collect()
}

/// Sets the fields that an API server would set.
fn complete(mut object: Value, kind: &str, workload: &Workload, number: usize) -> Value {
    object["kind"] = kind.into();
    let metadata = &mut object["metadata"];
    if let Some(prefix) = metadata["generateName"].as_str() {
        metadata["name"] = format!("{prefix}{number}").into();
    }
    if let Some(namespace) = workload.metadata.namespace.as_deref() {
        metadata["namespace"] = namespace.into();
    }
    if let Some(created) = workload.metadata.creation_timestamp.as_deref() {
        metadata["creationTimestamp"] = created.into();
    }
    if let Some(fields) = metadata.as_object_mut() {
        fields.remove("generateName");
        // Pods refer to their ReplicaSet by uid. Generated pods get no uid: only pods of a real cluster have one.
        if kind != "Pod" {
            let name = fields.get("name").and_then(Value::as_str).unwrap_or_default();
            let uid = synthetic_uid(&format!("{kind} {}/{name}", workload.metadata.namespace()));
            fields.insert("uid".to_owned(), uid.into());
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn workload(spec: Value) -> Workload {
        let mut object = json!({
            "metadata": { "name": "web", "namespace": "team", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "template": { "spec": { "containers": [] } } },
        });
        for (field, value) in spec.as_object().unwrap() {
            object["spec"][field] = value.clone();
        }
        Workload::read(&object).unwrap()
    }

    fn names(objects: &[Value]) -> Vec<&str> {
        objects
            .iter()
            .map(|object| object["metadata"]["name"].as_str().unwrap())
            .collect()
    }

    #[test]
    fn each_kind_makes_what_it_lacks() {
        let (kind, sets) = missing_objects("Deployment", &workload(json!({ "replicas": 2 })), &[], &[]);
        assert_eq!((kind, sets.len()), ("ReplicaSet", 1));
        assert_eq!(sets[0]["spec"]["replicas"], 2);
        // The ReplicaSet exists and makes the pods.
        assert!(
            missing_objects("Deployment", &workload(json!({})), &[&sets[0]], &[])
                .1
                .is_empty()
        );

        let (_, pods) = missing_objects("ReplicaSet", &workload(json!({ "replicas": 2 })), &[], &[]);
        assert_eq!(names(&pods), ["web-0", "web-1"]);
        let metadata = &pods[0]["metadata"];
        assert_eq!(metadata["ownerReferences"][0]["uid"], "u");
        assert_eq!(
            (&metadata["namespace"], &metadata["creationTimestamp"]),
            (&json!("team"), &json!("2026-01-01T00:00:00Z"))
        );
        assert_eq!(metadata.get("annotations"), None);

        let running = json!({ "metadata": { "name": "web-0" }, "status": { "phase": "Running" } });
        let (_, pods) = missing_objects("StatefulSet", &workload(json!({ "replicas": 3 })), &[&running], &[]);
        assert_eq!(names(&pods), ["web-1", "web-2"]);

        let (_, pods) = missing_objects("Job", &workload(json!({ "parallelism": 2 })), &[], &[]);
        assert_eq!(names(&pods), ["web-0", "web-1"]);
        let nodes = ["a", "b"].map(|name| json!({ "metadata": { "name": name } }));
        assert_eq!(
            missing_objects("DaemonSet", &workload(json!({})), &[], &nodes).1.len(),
            2
        );
        let done = json!({ "metadata": { "name": "x" }, "status": { "phase": "Succeeded" } });
        assert_eq!(
            missing_objects(
                "Job",
                &workload(json!({ "parallelism": 2, "completions": 2 })),
                &[&done],
                &[]
            )
            .1
            .len(),
            1
        );
    }
}
