//! Tables of cases: owners and pod in, desired pod group out. A file per family of kinds.

// A list of one owner is written like a list of two.
#![allow(clippy::cloned_ref_to_slice_refs)]

mod batch;
mod default_rules;
mod kubeflow;
mod leader_worker_set;
mod others;
mod ray;
mod rules;

use std::sync::Arc;

use kai_api::{Pod, PodGroup};
use serde_json::{Value, json};

use super::{ClusterReader, GroupingError, GroupingOptions, Objects, Owner, PodOrigin, Workload, desired_pod_group};

/// A cluster in memory.
#[derive(Default)]
struct Fixture {
    options: GroupingOptions,
    groups: Vec<Arc<PodGroup>>,
    pods: Vec<Arc<Pod>>,
    /// Further objects that rules read.
    beside: Vec<Value>,
}

impl ClusterReader for Fixture {
    fn has_priority_class(&self, name: &str) -> bool {
        ["train", "build", "inference", "high", "low"].contains(&name)
    }

    fn pod_group(&self, namespace: &str, name: &str) -> Option<Arc<PodGroup>> {
        let is_it = |group: &&Arc<PodGroup>| {
            group.metadata.namespace() == namespace && group.metadata.name.as_deref() == Some(name)
        };
        self.groups.iter().find(is_it).cloned()
    }

    fn has_pod_group(&self, namespace: &str, matches: &dyn Fn(&PodGroup) -> bool) -> bool {
        let mut groups = self.groups.iter();
        groups.any(|group| group.metadata.namespace() == namespace && matches(group))
    }

    fn pods_labelled(&self, _: &str, label: &str, value: &str) -> Vec<Arc<Pod>> {
        let is_one = |pod: &&Arc<Pod>| pod.metadata.labels.text(label) == Some(value);
        self.pods.iter().filter(is_one).cloned().collect()
    }
}

impl Fixture {
    fn with_group(mut self, name: &str, spec: Value) -> Fixture {
        let group = json!({ "metadata": { "name": name, "namespace": "ns" }, "spec": spec });
        self.groups.push(Arc::new(serde_json::from_value(group).unwrap()));
        self
    }

    fn with_pod(mut self, pod: Value) -> Fixture {
        self.pods.push(Arc::new(serde_json::from_value(pod).unwrap()));
        self
    }

    fn with_object(mut self, object: Value) -> Fixture {
        self.beside.push(object);
        self
    }

    fn desired(&self, owners: &[Value], pod: &Value) -> Result<super::DesiredPodGroup, String> {
        self.with_workload(owners, pod, |workload| {
            desired_pod_group(workload).map_err(|stop| match stop {
                GroupingError::Refused(refusal) => refusal.to_string(),
                GroupingError::NeedsObject(reference) => format!("needs {} {}", reference.kind, reference.name),
            })
        })
    }

    fn ignored(&self, owners: &[Value], pod: &Value) -> Vec<super::IgnoredValue> {
        self.with_workload(owners, pod, super::ignored_values)
    }

    fn with_workload<T>(&self, owners: &[Value], pod: &Value, apply: impl FnOnce(&Workload<'_>) -> T) -> T {
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        let chain: Vec<Owner> = owners.iter().map(|object| Owner::of_object(object).unwrap()).collect();
        let all = owners.iter().chain(&self.beside);
        let objects: Objects = all
            .map(|object| (Owner::of_object(object).unwrap().reference(), Some(object.clone())))
            .collect();
        apply(&Workload {
            pod: &pod,
            pod_origin: PodOrigin::Pod,
            owners: &chain,
            objects: &objects,
            cluster: self,
            options: &self.options,
        })
    }

    /// Compares the desired pod group, as a line, or the error.
    fn check(&self, owners: &[Value], pod: &Value, expect: &str) {
        let line = self
            .desired(owners, pod)
            .map_or_else(|error| error, |desired| desired.to_string());
        assert_eq!(line, expect);
    }
}

fn check(owners: &[Value], pod: &Value, expect: &str) {
    Fixture::default().check(owners, pod, expect);
}

/// An object with uid `u-<name>`.
fn object(api_version: &str, kind: &str, name: &str, rest: Value) -> Value {
    let mut object = json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": { "name": name, "namespace": "ns", "uid": format!("u-{name}") },
    });
    merge(&mut object, rest);
    object
}

/// A pod `p`.
fn pod(rest: Value) -> Value {
    object("v1", "Pod", "p", rest)
}

fn labelled(labels: Value) -> Value {
    pod(json!({ "metadata": { "labels": labels } }))
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
