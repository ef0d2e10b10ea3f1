//! A cluster in this process on which only the controllers run. Tests play the scheduler and the operators.

use std::time::Duration;

use kai_controllers::{Settings, run};
use kai_embedded::server::{Clock, DeleteOptions, Options, Patch, Server, StoreHandle};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const START: &str = "2026-01-01T00:00:00Z";
/// Time-out of `until`, by the runtime's clock.
const TIMEOUT: Duration = Duration::from_secs(180);

pub(crate) struct World {
    pub(crate) store: StoreHandle,
    pub(crate) context: kai_cluster::Context,
    pub(crate) task: JoinHandle<()>,
}

impl World {
    pub(crate) fn new() -> World {
        World::prepared(|_| {})
    }

    /// A cluster with objects that exist before the controllers start.
    pub(crate) fn prepared(prepare: impl FnOnce(&StoreHandle)) -> World {
        let start = START.parse().unwrap();
        let server = Server::new(Options {
            clock: Some(Clock::starting_at(start)),
            ..Options::default()
        });
        let store = server.store();
        for crd in kai_api::crd::crds() {
            store.create(crd).unwrap();
        }
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "a" } });
        store.create(namespace).unwrap();
        prepare(&store);
        let client = kai_cluster::Client::in_process(server.service());
        let context = kai_cluster::Context::new(client, kai_cluster::Clock::runtime(start));
        let controllers = run(context.clone(), Settings::all());
        let task = tokio::spawn(async move {
            let Err(error) = controllers.await;
            panic!("the controllers ended: {error}");
        });
        World { store, context, task }
    }

    /// Creates the CRD of another operator's kind.
    pub(crate) fn kind(&self, group: &str, version: &str, kind: &str, plural: &str) {
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{group}") },
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List") },
                "versions": [{ "name": version, "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }],
            },
        });
        self.store.create(crd).unwrap();
    }

    /// Creates an object in namespace `a`; returns an owner reference to it.
    pub(crate) fn owner(&self, api_version: &str, kind: &str, name: &str, rest: Value) -> Value {
        let mut object = json!({ "apiVersion": api_version, "kind": kind });
        for (key, value) in rest.as_object().into_iter().flatten() {
            object[key] = value.clone();
        }
        object["metadata"]["name"] = name.into();
        object["metadata"]["namespace"] = "a".into();
        let created = self.store.create(object).unwrap();
        json!({ "apiVersion": api_version, "kind": kind, "name": name, "uid": created.uid(), "controller": true })
    }

    /// Creates a pod of this scheduler that requests one GPU.
    pub(crate) fn pod(&self, name: &str, metadata: Value) {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": { "schedulerName": "kai-scheduler", "containers": [{
                "name": "main", "image": "x", "resources": { "limits": { "nvidia.com/gpu": "1" } } }] },
        });
        pod["metadata"]["name"] = name.into();
        pod["metadata"]["namespace"] = "a".into();
        self.store.create(pod).unwrap();
    }

    pub(crate) fn get(&self, resource: &str, namespace: &str, name: &str) -> Value {
        let found = self.store.get(qualified(resource), namespace, name);
        found.map_or(Value::Null, |object| object.to_value())
    }

    pub(crate) fn uid(&self, resource: &str, name: &str) -> String {
        self.get(resource, "a", name)["metadata"]["uid"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    pub(crate) fn all(&self, resource: &str, namespace: &str) -> Vec<Value> {
        let everything = self.store.selector(qualified(resource), "", "").unwrap();
        let page = self.store.list(qualified(resource), namespace, &everything).unwrap();
        page.objects.iter().map(|object| object.to_value()).collect()
    }

    pub(crate) fn merge(&self, resource: &str, namespace: &str, name: &str, change: Value) {
        self.store
            .patch(qualified(resource), namespace, name, &Patch::Merge(change))
            .unwrap();
    }

    pub(crate) fn remove(&self, resource: &str, namespace: &str, name: &str) {
        self.store
            .delete(qualified(resource), namespace, name, &DeleteOptions::now())
            .unwrap();
    }

    /// Waits until the pod has a pod group; returns the pod group.
    pub(crate) async fn group_of(&self, pod: &str) -> Value {
        let named = || {
            let pod = self.get("pods", "a", pod);
            let name = pod["metadata"]["annotations"]["pod-group-name"].as_str()?.to_owned();
            let group = self.get("podgroups", "a", &name);
            (!group.is_null()).then_some(group)
        };
        self.until(&format!("{pod} has a group"), |_| named().is_some()).await;
        named().unwrap()
    }

    /// Waits until `holds` returns true; `what` describes the condition in the failure message.
    pub(crate) async fn until(&self, what: &str, mut holds: impl FnMut(&World) -> bool) {
        let waiting = async {
            while !holds(self) {
                assert!(
                    !self.task.is_finished(),
                    "the controllers ended while waiting for: {what}"
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let done = tokio::time::timeout(TIMEOUT, waiting).await;
        let seen = || {
            (
                self.all("pods", "a"),
                self.all("podgroups", "a"),
                self.all("events", "a"),
            )
        };
        assert!(done.is_ok(), "never: {what}\n{:#?}", seen());
    }
}

/// The store's name of a resource, which includes the API group.
fn qualified(resource: &str) -> &str {
    match resource {
        "podgroups" => "podgroups.scheduling.run.ai",
        "queues" => "queues.scheduling.run.ai",
        "priorityclasses" => "priorityclasses.scheduling.k8s.io",
        resource => resource,
    }
}
