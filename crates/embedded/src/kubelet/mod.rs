//! Simulated kubelets: nodes whose pods start, run and stop without containers. The node agent's own code chooses the devices, on fake
//! GPUs. Kubelets use the Kubernetes API alone, so they also run on a real API server. They never schedule.
//!
//! | module | content |
//! |---|---|
//! | `nodes_file`, `node_template` | the YAML file of simulated nodes, its validation, and the Node objects |
//! | `node` | one node: capacity, admitted pods, choice of devices; pure |
//! | `pod_lifecycle`, `pod_status` | the stages of a pod from admission to removal, and the statuses that the kubelet writes |
//! | `eviction` | evictions under memory pressure |
//! | `limits` | limits of GPU memory: the node agent's preparation of containers, its hook and the driver; pure but for directories |
//! | `pod_gpus` | the GPUs that each pod uses, for the invariants |

mod eviction;
mod limits;
mod node;
mod node_template;
mod nodes_file;
mod pod_gpus;
mod pod_lifecycle;
mod pod_status;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use kai_api::{Backoff, Object, ObjectKey, PodIdentity, ReservationPods};
use kai_cluster::{Context, Deletion, EventRecorder, Part, Patch, Target, WorkQueue, WorkResult};
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use tokio::time::Instant;

pub use limits::{AUDIT_PERIOD, EVENT_MISSING, Enforce, LimitFault, LimitedContainer, MemoryLimitFaults};
use node::SimulatedNode;
pub use node_template::{Delays, NodeTemplate, NodesFile};
pub use pod_gpus::{GpuFacts, PodGpus};

/// Pod annotation: the seconds after which the pod ends by itself.
pub const RUN_SECONDS: &str = "sim.kai.scheduler/run-seconds";
/// Pod annotation: the exit code of a pod that ends by itself.
pub const EXIT_CODE: &str = "sim.kai.scheduler/exit-code";

/// Pods that are reconciled at a time.
const WORKERS_MAX: usize = 32;

/// The simulated kubelets of all nodes. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Kubelets {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    context: Context,
    events: EventRecorder,
    delays: Delays,
    queue: WorkQueue<ObjectKey>,
    identity: PodIdentity,
    /// Held for lookups only, never across an await.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    nodes: BTreeMap<String, SimulatedNode>,
    pods: FxHashMap<ObjectKey, PodRecord>,
    /// The number of pod addresses given so far.
    addresses: u32,
}

/// A pod on a simulated node.
#[derive(Clone, Debug)]
struct PodRecord {
    uid: String,
    node: String,
    object: Arc<Value>,
    stage: Stage,
    /// When the kubelet saw the deletion of the pod.
    stopping: Option<Instant>,
    address: String,
}

/// The stage of a pod.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Starting { since: Instant },
    Running { since: Instant },
    Ended,
}

impl Kubelets {
    /// Kubelets without nodes, in an installation with the default reservation pods.
    pub fn new(context: &Context, delays: Delays) -> Kubelets {
        Kubelets::with_reservation_pods(context, delays, ReservationPods::default())
    }

    /// Kubelets without nodes, in an installation with these reservation pods.
    pub fn with_reservation_pods(context: &Context, delays: Delays, reservation_pods: ReservationPods) -> Kubelets {
        let quick = Backoff {
            first: Duration::from_millis(200),
            longest: Duration::from_secs(5),
        };
        Kubelets {
            inner: Arc::new(Inner {
                context: context.clone(),
                events: EventRecorder::new(&context.client, "kubelet", context.clock),
                delays,
                queue: WorkQueue::new(quick),
                identity: PodIdentity {
                    reservation_pods,
                    ..PodIdentity::default()
                },
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
        // Parsed by the scheduler's code, so that both read quantities alike.
        let read: kai_api::Node =
            serde_json::from_value(json!({ "metadata": { "name": name }, "status": { "allocatable": allocatable } }))
                .map_err(|error| format!("node {name}: {error}"))?;
        let spec = read.read().map_err(|problem| format!("node {name}: {problem}"))?.value;
        let node = SimulatedNode::new(
            template,
            name,
            (spec.cpu_milli, spec.memory_bytes),
            self.inner.now_seconds(),
        )?;
        object["metadata"]["name"] = name.into();
        if let Some(limits) = &node.limits {
            object["metadata"]["labels"][kai_api::keys::GPU_ENFORCEMENT] = limits.enforcement().tier.name().into();
        }
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
            let agent = gpus.filter(|_| node.template.agent);
            let healthy = agent.and_then(|gpus| gpus.condition());
            let tier = node.limits.as_ref().map(|limits| limits.enforcement().tier);
            let fractioning = tier.and_then(kai_node::agent::report::fractioning_of);
            for (kind, text) in [
                ("GPUsHealthy", healthy),
                (kai_api::keys::NODE_GPU_FRACTIONING_READY, fractioning),
            ] {
                let Some((status, reason, message)) = text else {
                    continue;
                };
                let status = match status {
                    kai_cluster::ConditionStatus::True => "True",
                    kai_cluster::ConditionStatus::False => "False",
                };
                conditions.push(json!({
                    "type": kind, "status": status, "reason": reason, "message": message,
                    "lastHeartbeatTime": now, "lastTransitionTime": now,
                }));
            }
            if let Some(limits) = &node.limits {
                let enforcement = limits.enforcement();
                let (status, reason) = match enforcement.tier.limits_memory() {
                    true => ("True", "Enforced"),
                    false => ("False", "NotEnforced"),
                };
                conditions.push(json!({
                    "type": kai_api::keys::NODE_GPU_LIMITS, "status": status, "reason": reason,
                    "message": format!("{} (simulated GPUs)", enforcement.summary()), "lastHeartbeatTime": now, "lastTransitionTime": now,
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

    /// Writes the node's tier, as a label and in its status.
    async fn write_enforcement(&self, name: &str) -> Result<(), String> {
        let tier = {
            let state = self.lock();
            let limits = state.nodes.get(name).and_then(|node| node.limits.as_ref());
            limits.map(|limits| limits.enforcement().tier)
        };
        let Some(tier) = tier else { return Ok(()) };
        let target = Target::of::<kai_api::Node>("", name);
        let body = json!({ "metadata": { "labels": { kai_api::keys::GPU_ENFORCEMENT: tier.name() } } });
        let client = &self.inner.context.client;
        let labelled = client.patch(target, Part::Object, Patch::Merge(body)).await;
        labelled.map(drop).map_err(|error| error.to_string())?;
        self.write_node_status(name).await
    }

    /// Deletes a node and its pods.
    pub async fn remove(&self, name: &str) -> Result<(), String> {
        self.lock().nodes.remove(name);
        let client = &self.inner.context.client;
        let failed = |error: kai_cluster::Error| error.to_string();
        let target = Target::of::<kai_api::Node>("", name);
        client.delete(target, &Deletion::default()).await.map_err(failed)?;
        // As the pod garbage collector does.
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

    /// Sets whether the node's kubelet responds. Its condition `Ready` follows.
    pub async fn set_ready(&self, name: &str, ready: bool) -> Result<(), String> {
        if let Some(node) = self.lock().nodes.get_mut(name) {
            node.ready = ready;
        }
        self.write_node_status(name).await
    }

    /// Makes the node's kubelet reject the next `count` pods.
    pub fn reject_next(&self, name: &str, count: u32) {
        if let Some(node) = self.lock().nodes.get_mut(name) {
            node.rejections = count;
        }
    }

    /// Makes a GPU of the node fail or recover. Returns its UUID.
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

    /// Ends a running pod with this exit code.
    pub async fn end_pod(&self, namespace: &str, name: &str, exit_code: i64) -> Result<(), String> {
        let key = ObjectKey::new(namespace, name);
        let record = self.lock().pods.get(&key).cloned();
        let record = record.ok_or_else(|| format!("pod {key} is on no simulated node"))?;
        self.inner
            .exit(&key, &record, exit_code)
            .await
            .map_err(|error| error.to_string())
    }

    /// UUIDs and memory in MiB of the GPUs of a node.
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

    /// Which pods are reservation pods.
    pub fn reservation_pods(&self) -> &ReservationPods {
        &self.inner.identity.reservation_pods
    }

    /// Runs the pods of all nodes until dropped.
    pub fn run(&self) -> BoxFuture<'_, ()> {
        // Boxed, so that this crate compiles it, and not every crate that awaits it.
        Box::pin(self.run_pods())
    }

    async fn run_pods(&self) {
        let pods = self.inner.context.informers.pods().subscribe(&Arc::default());
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
                        tracing::warn!(%key, %error, "a simulated kubelet could not write; it retries");
                        WorkResult::Retry
                    }
                }
            }
        });
        tokio::join!(watch, work, self.run_audits());
    }

    fn pods_of(&self, node: &str) -> Vec<ObjectKey> {
        let pods = self.inner.context.informers.pods().all().into_iter();
        let on = pods.filter(|pod| pod.node_name() == Some(node));
        on.map(|pod| ObjectKey::of(&*pod)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.lock()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
