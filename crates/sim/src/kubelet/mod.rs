//! Simulated kubelets: nodes whose pods start, run and stop without containers. Which devices a pod gets is decided by the node
//! agent's own code on made-up GPUs; everything else a kubelet does to pods is done here, through the Kubernetes API only, so that it
//! works against the embedded API server and a real one.
//!
//! It never schedules and never looks at what kai decided.

mod machine;
mod status;
mod template;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::{Object, PodIdentity, keys};
use cluster::{Backoff, Context, Deletion, Key, Outcome, Part, Patch, Target, WorkQueue};
use engine::model::PodPhase;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use tokio::time::Instant;

use machine::{Machine, Rejection};
pub use template::{Delays, NodeTemplate, NodesFile};

/// Annotation on pods: end by itself after this many seconds.
pub const RUN_SECONDS: &str = "sim.kai.scheduler/run-seconds";
/// Annotation on pods: the exit code with which it ends.
pub const EXIT_CODE: &str = "sim.kai.scheduler/exit-code";

/// How often a kubelet looks again for a ConfigMap that a pod needs.
const MISSING_RETRY: Duration = Duration::from_secs(1);
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
    queue: WorkQueue<Key>,
    identity: PodIdentity,
    /// A plain lock: held for look-ups only, never across an await.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    machines: BTreeMap<String, Machine>,
    pods: FxHashMap<Key, Life>,
    /// Numbers pods' addresses.
    addresses: u32,
}

/// A pod on one of our nodes.
#[derive(Clone, Debug)]
struct Life {
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
                identity: any_pod(),
                state: Mutex::default(),
            }),
        }
    }

    /// Adds the nodes of a template to the cluster.
    pub async fn add(&self, template: &NodeTemplate) -> Result<(), String> {
        for name in template.names() {
            self.add_one(template, &name).await?;
        }
        Ok(())
    }

    async fn add_one(&self, template: &NodeTemplate, name: &str) -> Result<(), String> {
        let gpus = template.gpus(name)?;
        let mut object = template.object(name, gpus.as_ref());
        let (_, allocatable) = template.resources(gpus.as_ref());
        // Parsed as the scheduler parses it, so that both mean the same by "1Ti".
        let read: api::Node =
            serde_json::from_value(json!({ "metadata": { "name": name }, "status": { "allocatable": allocatable } }))
                .map_err(|error| format!("node {name}: {error}"))?;
        let spec = read.read().map_err(|problem| format!("node {name}: {problem}"))?.value;
        let machine = Machine::new(template, name, (spec.cpu_milli, spec.memory_bytes))?;
        object["metadata"]["name"] = name.into();
        self.lock().machines.insert(name.to_owned(), machine);
        let client = &self.inner.context.client;
        match client.create(&api::Node::RESOURCE, "", object).await {
            Ok(_) => {}
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(error.to_string()),
        }
        self.report(name).await
    }

    /// Writes the node's status: resources, readiness, the state of its GPUs.
    async fn report(&self, name: &str) -> Result<(), String> {
        let now = self.inner.context.clock.now_text();
        let status = {
            let state = self.lock();
            let machine = state
                .machines
                .get(name)
                .ok_or_else(|| format!("there is no node {name}"))?;
            let gpus = machine.gpus.as_ref();
            let (capacity, allocatable) = machine.template.resources(gpus);
            let ready = if machine.ready { "True" } else { "Unknown" };
            let mut conditions = vec![json!({
                "type": "Ready", "status": ready, "reason": if machine.ready { "KubeletReady" } else { "NodeStatusUnknown" },
                "message": "", "lastHeartbeatTime": now, "lastTransitionTime": now,
            })];
            if let Some((status, reason, message)) = gpus.and_then(|gpus| gpus.condition()) {
                let status = match status {
                    cluster::ConditionStatus::True => "True",
                    cluster::ConditionStatus::False => "False",
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
        let target = Target::of::<api::Node>("", name);
        let client = &self.inner.context.client;
        let written = client.patch(target, Part::Status, Patch::Merge(status)).await;
        written.map(drop).map_err(|error| error.to_string())
    }

    /// Takes a node out of the cluster, with its pods.
    pub async fn remove(&self, name: &str) -> Result<(), String> {
        self.lock().machines.remove(name);
        let client = &self.inner.context.client;
        let failed = |error: cluster::Error| error.to_string();
        let target = Target::of::<api::Node>("", name);
        client.delete(target, &Deletion::default()).await.map_err(failed)?;
        // What the garbage collector of pods does when their node is gone.
        for key in self.pods_of(name) {
            let target = Target::of::<api::Pod>(&key.namespace, &key.name);
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
        if let Some(machine) = self.lock().machines.get_mut(name) {
            machine.ready = ready;
        }
        self.report(name).await
    }

    /// The node's kubelet rejects so many of the pods that come next; with 0 it rejects none any more.
    pub fn reject_next(&self, name: &str, count: u32) {
        if let Some(machine) = self.lock().machines.get_mut(name) {
            machine.rejections = count;
        }
    }

    /// A GPU of the node fails, or is repaired. Answers with its UUID.
    pub async fn set_gpu_health(&self, name: &str, index: usize, healthy: bool) -> Result<String, String> {
        let uuid = {
            let mut state = self.lock();
            let machine = state
                .machines
                .get_mut(name)
                .ok_or_else(|| format!("there is no node {name}"))?;
            let gpus = machine
                .gpus
                .as_mut()
                .ok_or_else(|| format!("node {name} has no GPUs"))?;
            let device = gpus.inventory().devices.get(index).map(|device| device.uuid.clone());
            let uuid = device.ok_or_else(|| format!("node {name} has no GPU {index}"))?;
            match healthy {
                true => gpus.recover(&uuid),
                false => gpus.fail(&uuid, "made to fail"),
            };
            uuid
        };
        self.report(name).await?;
        Ok(uuid)
    }

    /// A running pod ends with this exit code.
    pub async fn end_pod(&self, namespace: &str, name: &str, exit_code: i64) -> Result<(), String> {
        let key = Key::new(namespace, name);
        let life = self.lock().pods.get(&key).cloned();
        let life = life.ok_or_else(|| format!("pod {key} is on no simulated node"))?;
        self.inner
            .end(&key, &life, exit_code)
            .await
            .map_err(|error| error.to_string())
    }

    /// UUIDs of the GPUs that the kubelet gave to a pod; empty for one that got none.
    pub fn gpus_of(&self, namespace: &str, name: &str) -> Vec<String> {
        let mut state = self.lock();
        let Some(life) = state.pods.get(&Key::new(namespace, name)).cloned() else {
            return Vec::new();
        };
        let Some(machine) = state.machines.get_mut(&life.node) else {
            return Vec::new();
        };
        machine
            .tenant(&life.uid)
            .map(machine::Tenant::gpu_uuids)
            .unwrap_or_default()
    }

    /// UUIDs and MiB of the GPUs of a node.
    pub fn gpus_on(&self, node: &str) -> Vec<(String, i64)> {
        let state = self.lock();
        let gpus = state.machines.get(node).and_then(|machine| machine.gpus.as_ref());
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

    fn pods_of(&self, node: &str) -> Vec<Key> {
        let pods = self.inner.context.feeds.pods().all().into_iter();
        let on = pods.filter(|pod| pod.node_name() == Some(node));
        on.map(|pod| Key::of(&*pod)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.lock()
    }
}

impl Inner {
    async fn reconcile(&self, key: &Key) -> Result<Outcome, cluster::Error> {
        let pod = self.context.feeds.pods().get(key);
        let uid = pod
            .as_deref()
            .and_then(|pod| pod.metadata.uid.as_deref())
            .unwrap_or_default();
        self.forget_predecessor(key, uid);
        let Some(pod) = &pod else { return Ok(Outcome::Done) };
        let Some(node) = pod.node_name() else {
            return Ok(Outcome::Done);
        };
        match self.lock().machines.get(node) {
            Some(machine) if machine.ready => {}
            Some(_) => return Ok(Outcome::Again(MISSING_RETRY)),
            None => return Ok(Outcome::Done),
        }
        if pod.metadata.deletion_timestamp.is_some() {
            return self.stop(key, uid).await;
        }
        let life = self.lock().pods.get(key).cloned();
        match life {
            None => self.take_in(key, pod, node).await,
            Some(life) => self.advance(key, &life).await,
        }
    }

    /// A pod that is gone, or was followed by another of the same name, leaves its machine.
    fn forget_predecessor(&self, key: &Key, uid: &str) {
        let mut state = self.lock();
        let Some(life) = state.pods.get(key) else { return };
        if life.uid == uid {
            return;
        }
        let (node, uid) = (life.node.clone(), life.uid.clone());
        state.pods.remove(key);
        if let Some(machine) = state.machines.get_mut(&node) {
            machine.release(&uid);
        }
    }

    async fn take_in(&self, key: &Key, slim: &api::Pod, node: &str) -> Result<Outcome, cluster::Error> {
        let target = Target::of::<api::Pod>(&key.namespace, &key.name);
        let Some(object) = self.context.client.get_value(target).await? else {
            return Ok(Outcome::Done);
        };
        let now = engine::model::Millis(0);
        let Ok(spec) = slim.read(&self.identity, now).map(|read| read.value) else {
            return Ok(Outcome::Done);
        };
        let admitted = {
            let mut state = self.lock();
            let Some(machine) = state.machines.get_mut(node) else {
                return Ok(Outcome::Done);
            };
            machine.admit(&spec).map(drop)
        };
        if let Err(rejection) = admitted {
            return self.reject(key, &rejection).await;
        }
        let runs = slim.phase() == PodPhase::Running;
        let mut state = self.lock();
        state.addresses = state.addresses.wrapping_add(1);
        let [_, a, b, c] = state.addresses.to_be_bytes();
        let since = Instant::now();
        let life = Life {
            uid: spec.uid,
            node: node.to_owned(),
            object: Arc::new(object),
            stage: if runs {
                Stage::Running { since }
            } else {
                Stage::Starting { since }
            },
            stopping: None,
            address: format!("10.{a}.{b}.{c}"),
        };
        state.pods.insert(key.clone(), life);
        Ok(Outcome::Again(Duration::from_secs_f64(
            self.delays.start_seconds.max(0.0),
        )))
    }

    async fn reject(&self, key: &Key, rejection: &Rejection) -> Result<Outcome, cluster::Error> {
        tracing::info!(%key, reason = rejection.reason, "a simulated kubelet rejects a pod");
        self.write_last(key, status::rejected(rejection)).await?;
        Ok(Outcome::Done)
    }

    async fn advance(&self, key: &Key, life: &Life) -> Result<Outcome, cluster::Error> {
        match life.stage {
            Stage::Starting { since } => {
                let start = since + Duration::from_secs_f64(self.delays.start_seconds.max(0.0));
                if let Some(rest) = start
                    .checked_duration_since(Instant::now())
                    .filter(|rest| !rest.is_zero())
                {
                    return Ok(Outcome::Again(rest));
                }
                self.start(key, life).await
            }
            Stage::Running { since } => {
                self.reserve(key, life).await?;
                let Some(seconds) = annotation(&life.object, RUN_SECONDS).and_then(|text| text.parse::<f64>().ok())
                else {
                    return Ok(Outcome::Done);
                };
                let end = since + Duration::try_from_secs_f64(seconds).unwrap_or_default();
                if let Some(rest) = end
                    .checked_duration_since(Instant::now())
                    .filter(|rest| !rest.is_zero())
                {
                    return Ok(Outcome::Again(rest));
                }
                let code = annotation(&life.object, EXIT_CODE)
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(0);
                self.end(key, life, code).await?;
                Ok(Outcome::Done)
            }
            Stage::Ended => Ok(Outcome::Done),
        }
    }

    async fn start(&self, key: &Key, life: &Life) -> Result<Outcome, cluster::Error> {
        let now = self.context.clock.now_text();
        for name in status::needed_config_maps(&life.object) {
            let target = Target::of::<api::ConfigMap>(&key.namespace, &name);
            if self.context.client.get_value(target).await?.is_none() {
                let message = format!("configmap \"{name}\" not found");
                self.write(
                    key,
                    status::waiting(&life.object, &now, "CreateContainerConfigError", &message),
                )
                .await?;
                return Ok(Outcome::Again(MISSING_RETRY));
            }
        }
        self.write(key, status::running(&life.object, &now, &life.address))
            .await?;
        self.set_stage(key, life, Stage::Running { since: Instant::now() });
        self.reserve(key, life).await?;
        Ok(Outcome::Again(Duration::ZERO))
    }

    /// The node agent's duty: a reservation pod is told which GPU it holds.
    async fn reserve(&self, key: &Key, life: &Life) -> Result<(), cluster::Error> {
        let ours =
            *key.namespace == *keys::RESERVATION && life.object["metadata"]["labels"][keys::APP] == keys::RESERVATION;
        if !ours || annotation(&life.object, keys::RESERVED_GPU).is_some() {
            return Ok(());
        }
        let uuids = {
            let mut state = self.lock();
            let tenant = state
                .machines
                .get_mut(&life.node)
                .and_then(|machine| machine.tenant(&life.uid));
            tenant.map(machine::Tenant::gpu_uuids).unwrap_or_default()
        };
        let [uuid] = &uuids[..] else { return Ok(()) };
        let body = json!({ "metadata": { "uid": life.uid, "annotations": { keys::RESERVED_GPU: uuid } } });
        let target = Target::of::<api::Pod>(&key.namespace, &key.name);
        self.context
            .client
            .patch(target, Part::Object, Patch::Merge(body))
            .await
            .map(drop)
    }

    async fn end(&self, key: &Key, life: &Life, exit_code: i64) -> Result<(), cluster::Error> {
        let now = self.context.clock.now_text();
        self.release(life);
        self.write_last(key, status::ended(&life.object, &now, exit_code))
            .await?;
        self.set_stage(key, life, Stage::Ended);
        Ok(())
    }

    /// Stops a pod that was asked to go, then takes its object away.
    async fn stop(&self, key: &Key, uid: &str) -> Result<Outcome, cluster::Error> {
        if let Some(rest) = self.time_to_stop(key, uid) {
            return Ok(Outcome::Again(rest));
        }
        // Before others can know that the pod is gone: the scheduler may hear of it sooner than this watch does.
        let life = self.lock().pods.get(key).filter(|life| life.uid == uid).cloned();
        if let Some(life) = life {
            self.release(&life);
        }
        self.take_away(key, uid).await?;
        Ok(Outcome::Done)
    }

    async fn take_away(&self, key: &Key, uid: &str) -> Result<(), cluster::Error> {
        let target = Target::of::<api::Pod>(&key.namespace, &key.name);
        let deletion = Deletion {
            uid: Some(uid.to_owned()),
            grace_seconds: Some(0),
            ..Deletion::default()
        };
        match self.context.client.delete(target, &deletion).await {
            Err(error) if !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }

    /// How long it still takes the pod to stop.
    fn time_to_stop(&self, key: &Key, uid: &str) -> Option<Duration> {
        let mut state = self.lock();
        let life = state.pods.get_mut(key).filter(|life| life.uid == uid)?;
        let since = *life.stopping.get_or_insert_with(Instant::now);
        let end = since + Duration::from_secs_f64(self.delays.stop_seconds.max(0.0));
        end.checked_duration_since(Instant::now())
            .filter(|rest| !rest.is_zero())
    }

    /// What the pod had is free.
    fn release(&self, life: &Life) {
        if let Some(machine) = self.lock().machines.get_mut(&life.node) {
            machine.release(&life.uid);
        }
    }

    /// Writes how the pod ended. One that was asked to go meanwhile goes at once: the watch no longer shows pods that have ended.
    async fn write_last(&self, key: &Key, status: Value) -> Result<(), cluster::Error> {
        let written = self.write(key, status).await?;
        let metadata = written.as_ref().map(|pod| &pod["metadata"]);
        match metadata.filter(|metadata| !metadata["deletionTimestamp"].is_null()) {
            Some(metadata) => self.take_away(key, metadata["uid"].as_str().unwrap_or_default()).await,
            None => Ok(()),
        }
    }

    /// The pod as it is then, unless it is gone.
    async fn write(&self, key: &Key, status: Value) -> Result<Option<Value>, cluster::Error> {
        let target = Target::of::<api::Pod>(&key.namespace, &key.name);
        let written = self
            .context
            .client
            .patch(target, Part::Status, Patch::Strategic(status))
            .await;
        match written {
            Ok(pod) => Ok(Some(pod)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn set_stage(&self, key: &Key, life: &Life, stage: Stage) {
        if let Some(present) = self.lock().pods.get_mut(key).filter(|present| present.uid == life.uid) {
            present.stage = stage;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A kubelet knows no reservations: to it every pod is charged for what it asks for.
pub(crate) fn any_pod() -> PodIdentity {
    PodIdentity {
        reservation_namespace: String::new(),
        ..PodIdentity::default()
    }
}

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][key].as_str()
}
