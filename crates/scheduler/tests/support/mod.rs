//! An embedded API server with the scheduler as its only component. Tests play binder, kubelets and pod grouper.

// A test fails by a panic. Each test binary uses a part of these functions.
#![allow(clippy::unwrap_used, dead_code)]

use std::sync::Arc;
use std::time::Duration;

use kai_embedded::server::{Clock, DeleteOptions, Faults, Options, Patch, Server, StoreHandle};
use kai_scheduler::{Error, Scheduler, Settings};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const START: &str = "2026-01-01T00:00:00Z";
/// No test waits longer for a state, in virtual time.
const TIMEOUT: Duration = Duration::from_secs(180);

pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) store: StoreHandle,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) context: kai_cluster::Context,
    pub(crate) task: JoinHandle<Error>,
}

impl World {
    pub(crate) fn new() -> World {
        World::with(Settings::default())
    }

    pub(crate) fn with(settings: Settings) -> World {
        let start = START.parse().unwrap();
        let server = Server::new(Options {
            clock: Some(Clock::starting_at(start)),
            ..Options::default()
        });
        let store = server.store();
        for crd in kai_api::crd::crds() {
            store.create(crd).unwrap();
        }
        for namespace in ["a", kai_cluster::NAMESPACE] {
            store
                .create(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }))
                .unwrap();
        }
        let world = World::on(server, kai_cluster::Clock::runtime(start), settings);
        world.queue("top", None);
        world.queue("q", Some("top"));
        world
    }

    /// The same cluster with another process of the scheduler. Abort the task of the first one before.
    pub(crate) fn restarted(self, settings: Settings) -> World {
        let clock = self.context.clock;
        World::on(self.server, clock, settings)
    }

    fn on(server: Server, clock: kai_cluster::Clock, settings: Settings) -> World {
        let store = server.store();
        let client = kai_cluster::Client::in_process(server.service());
        let context = kai_cluster::Context::new(client, clock);
        let scheduler = Arc::new(Scheduler::prepare(&context, settings));
        let (running, with) = (Arc::clone(&scheduler), context.clone());
        let task = tokio::spawn(async move {
            match running.run(with).await {
                Ok(never) => match never {},
                Err(error) => error,
            }
        });
        World {
            server,
            store,
            scheduler,
            context,
            task,
        }
    }

    pub(crate) fn faults(&self, faults: impl Faults) {
        self.server.set_faults(Arc::new(faults));
    }

    pub(crate) fn queue(&self, name: &str, parent: Option<&str>) {
        let free = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
        let mut spec = json!({ "resources": { "gpu": free, "cpu": free, "memory": free } });
        if let Some(parent) = parent {
            spec["parentQueue"] = parent.into();
        }
        self.put(json!({ "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": { "name": name }, "spec": spec }));
    }

    pub(crate) fn node(&self, name: &str, gpus: u32) {
        let object = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": { "nvidia.com/gpu.memory": "16000", "nvidia.com/gpu.count": gpus.to_string() } },
            "status": {
                "allocatable": { "cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string() },
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        });
        self.put(object.clone());
        self.store
            .patch_status("nodes", "", name, &Patch::Merge(object))
            .unwrap();
    }

    pub(crate) fn group(&self, name: &str, spec: Value) {
        let mut object = json!({
            "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
            "metadata": { "name": name, "namespace": "a" },
            "spec": { "queue": "q", "minMember": 1 },
        });
        for (key, value) in spec.as_object().into_iter().flatten() {
            object["spec"][key] = value.clone();
        }
        self.put(object);
    }

    /// A pod of the gang with whole GPUs.
    pub(crate) fn pod(&self, name: &str, gang: &str, gpus: u32) {
        self.put(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "a", "annotations": { "pod-group-name": gang } },
            "spec": { "schedulerName": "kai-scheduler", "containers": [{
                "name": "main", "image": "x", "resources": { "limits": { "nvidia.com/gpu": gpus.to_string() } } }] },
        }));
    }

    /// A pod of the gang with part of a GPU.
    pub(crate) fn fraction(&self, name: &str, gang: &str, fraction: &str) {
        self.put(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "a", "annotations": { "pod-group-name": gang, "gpu-fraction": fraction } },
            "spec": { "schedulerName": "kai-scheduler", "containers": [{ "name": "main", "image": "x" }] },
        }));
    }

    pub(crate) fn put(&self, object: Value) {
        self.store.put(object).unwrap();
    }

    pub(crate) fn get(&self, resource: &str, name: &str) -> Option<Value> {
        let namespace = if resource == "nodes" { "" } else { "a" };
        self.store
            .get(resource, namespace, name)
            .ok()
            .map(|object| object.to_value())
    }

    pub(crate) fn node_of(&self, pod: &str) -> Option<String> {
        self.get("pods", pod)?["spec"]["nodeName"].as_str().map(str::to_owned)
    }

    /// The kubelet reports that the pod runs.
    pub(crate) fn runs(&self, pod: &str) {
        let status = Patch::Merge(json!({ "status": { "phase": "Running" } }));
        self.store.patch_status("pods", "a", pod, &status).unwrap();
    }

    pub(crate) fn remove(&self, resource: &str, name: &str) {
        self.store.delete(resource, "a", name, &DeleteOptions::now()).unwrap();
    }

    /// Reasons and messages of the events about an object.
    pub(crate) fn events(&self, name: &str) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let all = self.all("events").into_iter();
        all.filter(|event| event["involvedObject"]["name"] == name)
            .map(|event| (text(&event["reason"]), text(&event["message"])))
            .collect()
    }

    pub(crate) fn all(&self, resource: &str) -> Vec<Value> {
        let everything = self.store.selector(resource, "", "").unwrap();
        let page = self.store.list(resource, "a", &everything).unwrap();
        page.objects.iter().map(|object| object.to_value()).collect()
    }

    /// Waits until `holds` returns true.
    pub(crate) async fn until(&self, what: &str, mut holds: impl FnMut(&World) -> bool) {
        let waiting = async {
            while !holds(self) {
                assert!(
                    !self.task.is_finished(),
                    "the scheduler ended while waiting for: {what}"
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let done = tokio::time::timeout(TIMEOUT, waiting).await;
        assert!(
            done.is_ok(),
            "never: {what}\npods: {:#?}\nevents: {:#?}",
            self.all("pods"),
            self.all("events")
        );
    }

    /// Waits for a time.
    pub(crate) async fn pass(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
}
