//! Simulated kubelets: nodes whose pods start, run and stop without containers. Which devices a pod gets is decided by the node
//! agent's own code on made-up GPUs; everything else a kubelet does to pods is done here, through the Kubernetes API only, so that it
//! works against the embedded API server and a real one.
//!
//! It never schedules and never looks at what kai decided.

mod eviction;
mod node;
mod node_template;
mod nodes_file;
mod pod_gpus;
mod pod_lifecycle;
mod pod_status;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kai_api::{Backoff, Object, ObjectKey, PodIdentity};
use kai_cluster::{Context, Deletion, Outcome, Part, Patch, Target, WorkQueue};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use tokio::time::Instant;

use node::SimulatedNode;
pub use node_template::{Delays, NodeTemplate, NodesFile};
pub use pod_gpus::PodGpus;

/// Annotation on pods: end by itself after this many seconds.
pub const RUN_SECONDS: &str = "sim.kai.scheduler/run-seconds";
/// Annotation on pods: the exit code with which it ends.
pub const EXIT_CODE: &str = "sim.kai.scheduler/exit-code";

/// Pods that are worked on at a time.
const WORKERS_MAX: usize = 32;

/// Simulated kubelets of any number of nodes. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Kubelets {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    context: Context,
    delays: Delays,
    queue: WorkQueue<ObjectKey>,
    identity: PodIdentity,
    /// A plain lock: held for look-ups only, never across an await.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    nodes: BTreeMap<String, SimulatedNode>,
    pods: FxHashMap<ObjectKey, PodRecord>,
    /// Numbers pods' addresses.
    addresses: u32,
}

/// A pod on one of our nodes.
#[derive(Clone, Debug)]
struct PodRecord {
    uid: String,
    node: String,
    object: Arc<Value>,
    stage: Stage,
    /// Since when it has been asked to go.
    stopping: Option<Instant>,
    address: String,
}

/// How far a pod has come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Starting { since: Instant },
    Running { since: Instant },
    Ended,
}

impl Kubelets {
    /// No nodes yet.
    pub fn new(context: &Context, delays: Delays) -> Kubelets {
        let quick = Backoff {
            first: Duration::from_millis(200),
            longest: Duration::from_secs(5),
        };
        Kubelets {
            inner: Arc::new(Inner {
                context: context.clone(),
                delays,
                queue: WorkQueue::new(quick),
                identity: pod_identity(),
                state: Mutex::default(),
            }),
        }
    }

    /// Adds the nodes of a template to the cluster.
    pub async fn add(&self, template: &NodeTemplate) -> Result<(), String> {
        for name in template.names() {
            self.add_node(template, &name).await?;
        }
        Ok(())
    }

    async fn add_node(&self, template: &NodeTemplate, name: &str) -> Result<(), String> {
        let gpus = template.gpus(name)?;
        let mut object = template.object(name, gpus.as_ref());
        let (_, allocatable) = template.resources(gpus.as_ref());
        // Parsed as the scheduler parses it, so that both mean the same by "1Ti".
        let read: kai_api::Node =
            serde_json::from_value(json!({ "metadata": { "name": name }, "status": { "allocatable": allocatable } }))
                .map_err(|error| format!("node {name}: {error}"))?;
        let spec = read.read().map_err(|problem| format!("node {name}: {problem}"))?.value;
        let node = SimulatedNode::new(template, name, (spec.cpu_milli, spec.memory_bytes))?;
        object["metadata"]["name"] = name.into();
        self.lock().nodes.insert(name.to_owned(), node);
        let client = &self.inner.context.client;
        match client.create(&kai_api::Node::RESOURCE, "", object).await {
            Ok(_) => {}
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(error.to_string()),
        }
        self.write_node_status(name).await
    }

    /// Writes the node's status: resources, readiness, the state of its GPUs.
    async fn write_node_status(&self, name: &str) -> Result<(), String> {
        let now = self.inner.context.clock.now_text();
        let status = {
            let state = self.lock();
            let node = state
                .nodes
                .get(name)
                .ok_or_else(|| format!("there is no node {name}"))?;
            let gpus = node.gpus.as_ref();
            let (capacity, allocatable) = node.template.resources(gpus);
            let ready = if node.ready { "True" } else { "Unknown" };
            let mut conditions = vec![json!({
                "type": "Ready", "status": ready, "reason": if node.ready { "KubeletReady" } else { "NodeStatusUnknown" },
                "message": "", "lastHeartbeatTime": now, "lastTransitionTime": now,
            })];
            if let Some((status, reason, message)) = gpus.and_then(|gpus| gpus.condition()) {
                let status = match status {
                    kai_cluster::ConditionStatus::True => "True",
                    kai_cluster::ConditionStatus::False => "False",
                };
                conditions.push(json!({
                    "type": "GPUsHealthy", "status": status, "reason": reason, "message": message,
                    "lastHeartbeatTime": now, "lastTransitionTime": now,
                }));
            }
            json!({ "status": {
                "capacity": capacity,
                "allocatable": allocatable,
                "conditions": conditions,
                "nodeInfo": { "kubeletVersion": "v1.35.0-sim", "osImage": "simulated", "architecture": "amd64", "operatingSystem": "linux",
                    "containerRuntimeVersion": "none://0", "kernelVersion": "", "machineID": "", "systemUUID": "", "bootID": "", "kubeProxyVersion": "" },
                "addresses": [{ "type": "Hostname", "address": name }],
            } })
        };
        let target = Target::of::<kai_api::Node>("", name);
        let client = &self.inner.context.client;
        let written = client.patch(target, Part::Status, Patch::Merge(status)).await;
        written.map(drop).map_err(|error| error.to_string())
    }

    /// Takes a node out of the cluster, with its pods.
    pub async fn remove(&self, name: &str) -> Result<(), String> {
        self.lock().nodes.remove(name);
        let client = &self.inner.context.client;
        let failed = |error: kai_cluster::Error| error.to_string();
        let target = Target::of::<kai_api::Node>("", name);
        client.delete(target, &Deletion::default()).await.map_err(failed)?;
        // What the garbage collector of pods does when their node is gone.
        for key in self.pods_of(name) {
            let target = Target::of::<kai_api::Pod>(&key.namespace, &key.name);
            let now = Deletion {
                grace_seconds: Some(0),
                ..Deletion::default()
            };
            client.delete(target, &now).await.map_err(failed)?;
        }
        Ok(())
    }

    /// The node stops or goes on to answer.
    pub async fn set_ready(&self, name: &str, ready: bool) -> Result<(), String> {
        if let Some(node) = self.lock().nodes.get_mut(name) {
            node.ready = ready;
        }
        self.write_node_status(name).await
    }

    /// The node's kubelet rejects so many of the pods that come next; with 0 it rejects none any more.
    pub fn reject_next(&self, name: &str, count: u32) {
        if let Some(node) = self.lock().nodes.get_mut(name) {
            node.rejections = count;
        }
    }

    /// A GPU of the node fails, or is repaired. Answers with its UUID.
    pub async fn set_gpu_health(&self, name: &str, index: usize, healthy: bool) -> Result<String, String> {
        let uuid = {
            let mut state = self.lock();
            let node = state
                .nodes
                .get_mut(name)
                .ok_or_else(|| format!("there is no node {name}"))?;
            let gpus = node.gpus.as_mut().ok_or_else(|| format!("node {name} has no GPUs"))?;
            let device = gpus.inventory().devices.get(index).map(|device| device.uuid.clone());
            let uuid = device.ok_or_else(|| format!("node {name} has no GPU {index}"))?;
            match healthy {
                true => gpus.recover(&uuid),
                false => gpus.fail(&uuid, "made to fail"),
            };
            uuid
        };
        self.write_node_status(name).await?;
        Ok(uuid)
    }

    /// A running pod ends with this exit code.
    pub async fn end_pod(&self, namespace: &str, name: &str, exit_code: i64) -> Result<(), String> {
        let key = ObjectKey::new(namespace, name);
        let record = self.lock().pods.get(&key).cloned();
        let record = record.ok_or_else(|| format!("pod {key} is on no simulated node"))?;
        self.inner
            .exit(&key, &record, exit_code)
            .await
            .map_err(|error| error.to_string())
    }

    /// UUIDs and MiB of the GPUs of a node.
    pub fn gpus_on(&self, node: &str) -> Vec<(String, i64)> {
        let state = self.lock();
        let gpus = state.nodes.get(node).and_then(|node| node.gpus.as_ref());
        let devices = gpus.into_iter().flat_map(|gpus| &gpus.inventory().devices);
        devices
            .map(|device| {
                let mib = i64::try_from(device.memory_mib.unwrap_or(0)).unwrap_or(i64::MAX);
                (device.uuid.clone(), mib)
            })
            .collect()
    }

    /// Runs the pods of all nodes until dropped.
    pub async fn run(&self) {
        let pods = self.inner.context.feeds.pods().subscribe(&Arc::default());
        let queue = self.inner.queue.clone();
        let watch = async {
            loop {
                for (key, _) in pods.changed().await {
                    queue.add(key);
                }
            }
        };
        let inner = Arc::clone(&self.inner);
        let work = queue.run(WORKERS_MAX, move |key| {
            let inner = Arc::clone(&inner);
            async move {
                match inner.reconcile(&key).await {
                    Ok(outcome) => outcome,
                    Err(error) => {
                        tracing::warn!(%key, %error, "a simulated kubelet could not write; it tries again");
                        Outcome::Retry
                    }
                }
            }
        });
        tokio::join!(watch, work);
    }

    fn pods_of(&self, node: &str) -> Vec<ObjectKey> {
        let pods = self.inner.context.feeds.pods().all().into_iter();
        let on = pods.filter(|pod| pod.node_name() == Some(node));
        on.map(|pod| ObjectKey::of(&*pod)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.lock()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A kubelet knows no reservations: to it every pod is charged for what it asks for.
pub(crate) fn pod_identity() -> PodIdentity {
    PodIdentity {
        reservation_namespace: String::new(),
        ..PodIdentity::default()
    }
}
