//! A small cluster for the binder: the embedded API server, simulated kubelets that give GPUs to pods, and a check after each tick that no
//! GPU is overcommitted.

#![allow(dead_code, clippy::unwrap_used)] // Each test file uses its part; this is a test although it is no test function.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kai_cluster::{Client, Clock, Context};
use kai_embedded::server::{DeleteOptions, Options, Patch, Selector, Server, StoreHandle};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

pub(crate) const NS: &str = "team";
pub(crate) const RESERVATIONS: &str = "kai-resource-reservation";
pub(crate) const GPU: &str = "run.ai/reserve_for_gpu_index";
const TICK: Duration = Duration::from_millis(100);
/// Virtual time after which an expected state counts as never reached.
const TIMEOUT: Duration = Duration::from_secs(600);

pub(crate) struct TestCluster {
    pub(crate) server: Server,
    pub(crate) store: StoreHandle,
    pub(crate) context: Context,
    pub(crate) kubelets: Arc<Mutex<Kubelets>>,
    tasks: Vec<JoinHandle<()>>,
    binders: Vec<JoinHandle<()>>,
}

/// State and behaviour of the kubelets of all nodes.
#[derive(Default)]
pub(crate) struct Kubelets {
    gpus: BTreeMap<String, Vec<String>>,
    /// Name of the pod and its GPU, by pod UID.
    held: BTreeMap<String, (String, String)>,
    /// Nodes whose kubelet does nothing.
    pub(crate) stopped: BTreeSet<String>,
    /// Names of pods whose termination the kubelet never confirms.
    pub(crate) never_terminated: BTreeSet<String>,
    turn: usize,
    aliases: BTreeMap<String, String>,
    /// GPUs that the kubelets give out last.
    pub(crate) given_last: BTreeSet<String>,
    /// GPUs that other pods hold.
    pub(crate) held_elsewhere: BTreeSet<String>,
    /// Nodes without CPU for another pod.
    pub(crate) out_of_cpu: BTreeSet<String>,
    /// Violated invariants.
    pub(crate) violations: Vec<String>,
    /// Number of pods that kubelets have rejected.
    pub(crate) refused: usize,
}

impl TestCluster {
    pub(crate) fn new() -> TestCluster {
        TestCluster::with(Options::default())
    }

    pub(crate) fn with(options: Options) -> TestCluster {
        let start = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = kai_embedded::server::Clock::starting_at(start);
        let server = Server::new(Options {
            clock: Some(clock),
            ..options
        });
        let store = server.store();
        kai_api::crd::crds()
            .into_iter()
            .for_each(|crd| drop(store.create(crd).unwrap()));
        for name in [NS, RESERVATIONS, "kai-scale-adjust"] {
            store
                .create(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }))
                .unwrap();
        }
        let client = Client::in_process(server.service());
        let context = Context::new(client, Clock::runtime(start));
        let kubelets: Arc<Mutex<Kubelets>> = Arc::default();
        let task = tokio::spawn(live(store.clone(), Arc::clone(&kubelets)));
        TestCluster {
            server,
            store,
            context,
            kubelets,
            tasks: vec![task],
            binders: Vec::new(),
        }
    }

    /// Creates a node with the node agent and GPUs of 10,000 MiB.
    pub(crate) fn node(&self, name: &str, gpus: usize) {
        let names = (0..gpus).map(|at| format!("GPU-{name}-{at}")).collect();
        self.kubelets.lock().gpus.insert(name.to_owned(), names);
        let labels = json!({
            "kai.scheduler/platform": "nvml", "nvidia.com/gpu.memory": "10000", "nvidia.com/gpu.count": gpus.to_string(),
        });
        self.store
            .create(json!({
                "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": labels },
                "status": { "allocatable": { "nvidia.com/gpu": gpus.to_string(), "pods": "110" } },
            }))
            .unwrap();
    }

    /// Creates a pod as the admission webhook leaves it.
    pub(crate) fn pod(&self, name: &str, annotations: Value) -> Value {
        self.store
            .create(TestCluster::pod_manifest(name, annotations))
            .unwrap()
            .to_value()
    }

    /// A pod as admission leaves it.
    pub(crate) fn pod_manifest(name: &str, annotations: Value) -> Value {
        let mut annotations = annotations;
        if annotations["runai/shared-gpu-configmap"].is_null() {
            annotations["runai/shared-gpu-configmap"] = json!(format!("{name}-shared-gpu"));
        }
        let key =
            json!({ "configMapKeyRef": { "name": format!("{name}-shared-gpu-0"), "key": "NVIDIA_VISIBLE_DEVICES" } });
        let one = json!({ "kai.scheduler/gpu-share": "1" });
        let share_device = json!({ "requests": one, "limits": one });
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": NS, "annotations": annotations },
            "spec": { "schedulerName": "kai-scheduler", "containers": [
                { "name": "main", "image": "x", "env": [{ "name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": key }],
                  "resources": share_device } ] },
        })
    }

    /// Creates the BindRequest of a pod.
    pub(crate) fn request(&self, pod: &Value, node: &str, change: Value) {
        let (name, uid) = (&pod["metadata"]["name"], &pod["metadata"]["uid"]);
        let mut spec = json!({ "podName": name, "selectedNode": node, "receivedResourceType": "Regular" });
        spec.as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        let request = json!({
            "apiVersion": "scheduling.run.ai/v1alpha2", "kind": "BindRequest",
            "metadata": {
                "name": name, "namespace": NS, "labels": { "selected-node": node },
                "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid }],
            },
            "spec": spec,
        });
        self.store.create(request).unwrap();
    }

    /// Creates a pod with a GPU fraction in hundredths, and its BindRequest.
    pub(crate) fn share(&self, name: &str, node: &str, groups: &[&str], hundredths: u32) {
        self.share_with(name, node, groups, hundredths, json!({}));
    }

    pub(crate) fn share_with(&self, name: &str, node: &str, groups: &[&str], hundredths: u32, change: Value) {
        let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
        let pod = self.pod(
            name,
            json!({ "gpu-fraction": text, "gpu-fraction-num-devices": groups.len().to_string() }),
        );
        let mut spec = json!({
            "receivedResourceType": "Fraction", "selectedGPUGroups": groups,
            "receivedGPU": { "count": groups.len(), "portion": text },
        });
        spec.as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        self.request(&pod, node, spec);
    }

    pub(crate) fn start(&mut self, flags: &[&str]) {
        // With its own informers, as after a restart.
        let context = Context::new(self.context.client.clone(), self.context.clock);
        self.context = context.clone();
        let settings = settings(flags);
        self.binders.push(tokio::spawn(async move {
            let _ = kai_binder::run(context, settings).await;
        }));
    }

    pub(crate) fn stop(&mut self) {
        self.binders.drain(..).for_each(|task| task.abort());
    }

    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&TestCluster) -> bool) {
        let waiting = async {
            while !condition(self) {
                tokio::time::sleep(TICK).await;
            }
        };
        if tokio::time::timeout(TIMEOUT, waiting).await.is_err() {
            let dump = |resource: &str| {
                let all = self.all(resource);
                all.iter()
                    .map(|one| format!("{} {} {}\n", one["metadata"], one["spec"]["nodeName"], one["status"]))
                    .collect::<String>()
            };
            panic!(
                "it never came to this: {what}\n{}\n{}",
                dump("pods"),
                dump("bindrequests.scheduling.run.ai")
            );
        }
    }

    pub(crate) async fn sleep(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    pub(crate) fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        self.store
            .get(resource, namespace, name)
            .ok()
            .map(|found| found.to_value())
    }

    pub(crate) fn all(&self, resource: &str) -> Vec<Value> {
        all(&self.store, resource)
    }

    pub(crate) fn is_bound(&self, pod: &str) -> bool {
        self.get("pods", NS, pod)
            .is_some_and(|pod| !pod["spec"]["nodeName"].is_null())
    }

    pub(crate) fn status(&self, request: &str) -> Value {
        self.get("bindrequests.scheduling.run.ai", NS, request)
            .map(|found| found["status"].clone())
            .unwrap_or_default()
    }

    pub(crate) fn failed(&self, request: &str) -> bool {
        self.status(request)["phase"] == "Failed"
    }

    pub(crate) fn reservations(&self) -> Vec<Value> {
        self.all("pods")
            .into_iter()
            .filter(|pod| pod["metadata"]["namespace"] == RESERVATIONS)
            .collect()
    }

    pub(crate) fn reservation(&self, node: &str, group: &str) -> Option<Value> {
        let name = kai_binder::reservation_name(&kai_binder::GpuGroupKey::new(node, group));
        self.get("pods", RESERVATIONS, &name)
    }

    /// The devices in the pod's ConfigMap.
    pub(crate) fn devices(&self, pod: &str) -> String {
        let map = self
            .get("configmaps", NS, &format!("{pod}-shared-gpu-0"))
            .unwrap_or_default();
        map["data"]["NVIDIA_VISIBLE_DEVICES"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    pub(crate) fn events(&self, reason: &str) -> Vec<Value> {
        self.all("events")
            .into_iter()
            .filter(|event| event["reason"] == reason)
            .collect()
    }

    pub(crate) fn delete(&self, resource: &str, namespace: &str, name: &str) {
        let _ = self.store.delete(resource, namespace, name, &DeleteOptions::now());
    }

    pub(crate) fn assert_no_violations(&self) {
        let violations = &self.kubelets.lock().violations;
        assert!(violations.is_empty(), "{violations:?}");
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        self.stop();
        self.tasks.drain(..).for_each(|task| task.abort());
    }
}

pub(crate) fn settings(flags: &[&str]) -> kai_binder::Settings {
    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        args: kai_binder::Args,
    }
    let program: Program = clap::Parser::parse_from([&["binder"], flags].concat());
    program.args.settings().unwrap()
}

pub(crate) fn all(store: &StoreHandle, resource: &str) -> Vec<Value> {
    let page = store.list(resource, "", &Selector::everything()).unwrap();
    page.objects.iter().map(|object| object.to_value()).collect()
}

/// Runs the kubelets of all nodes.
async fn live(store: StoreHandle, kubelets: Arc<Mutex<Kubelets>>) {
    loop {
        let pods = all(&store, "pods");
        {
            let mut kubelets = kubelets.lock();
            pods.iter().for_each(|pod| kubelets.tend(&store, pod));
            let uids: BTreeSet<&str> = pods.iter().filter_map(|pod| pod["metadata"]["uid"].as_str()).collect();
            kubelets.held.retain(|uid, _| uids.contains(uid.as_str()));
            kubelets.check_invariants(&pods);
        }
        tokio::time::sleep(TICK).await;
    }
}

impl Kubelets {
    /// Sets the number of the node's GPUs.
    pub(crate) fn set_gpus(&mut self, node: &str, count: usize) {
        let names = (0..count).map(|at| format!("GPU-{node}-{at}")).collect();
        self.gpus.insert(node.to_owned(), names);
    }

    /// All further reservation pods of the node are annotated with this GPU.
    pub(crate) fn alias(&mut self, node: &str, gpu: &str) {
        self.aliases.insert(node.to_owned(), gpu.to_owned());
    }

    fn tend(&mut self, store: &StoreHandle, pod: &Value) {
        let text = |path: &str| pod.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (name, namespace, uid) = (
            text("/metadata/name"),
            text("/metadata/namespace"),
            text("/metadata/uid"),
        );
        let (node, phase) = (text("/spec/nodeName"), text("/status/phase"));
        if node.is_empty() || self.stopped.contains(&node) {
            return;
        }
        if !text("/metadata/deletionTimestamp").is_empty() {
            if !self.never_terminated.contains(&name) {
                self.held.remove(&uid);
                let _ = store.delete("pods", &namespace, &name, &DeleteOptions::now());
            }
            return;
        }
        if phase != "Pending" {
            return;
        }
        let wants_gpu = !pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"].is_null();
        let (mut phase, mut reason) = ("Running", Value::Null);
        let wants_cpu = !pod["spec"]["containers"][0]["resources"]["requests"]["cpu"].is_null();
        if wants_cpu && self.out_of_cpu.contains(&node) {
            (phase, reason) = ("Failed", json!("OutOfcpu"));
            self.refused += 1;
        } else if wants_gpu {
            let taken: BTreeSet<String> = self.held.values().map(|(_, gpu)| gpu.clone()).collect();
            let gpus = self.gpus.get(&node).cloned().unwrap_or_default();
            let free = gpus
                .into_iter()
                .filter(|gpu| !taken.contains(gpu) && !self.held_elsewhere.contains(gpu));
            // Like a real kubelet it may give out any free GPU; here the choice changes with each turn.
            self.turn += 1;
            let turn = self.turn;
            let order = |gpu: &String| {
                (
                    self.given_last.contains(gpu),
                    turn.wrapping_mul(31)
                        .wrapping_add(gpu.len() + usize::from(*gpu.as_bytes().last().unwrap_or(&0)))
                        % 5,
                )
            };
            match free.min_by_key(order) {
                Some(gpu) => {
                    self.held.insert(uid, (name.clone(), gpu.clone()));
                    if namespace == RESERVATIONS {
                        let told = self.aliases.get(&node).unwrap_or(&gpu);
                        let body = json!({ "metadata": { "annotations": { GPU: told } } });
                        let _ = store.patch("pods", &namespace, &name, &Patch::Merge(body));
                    }
                }
                None => {
                    phase = "Failed";
                    self.refused += 1;
                }
            }
        }
        let _ = store.patch_status(
            "pods",
            &namespace,
            &name,
            &Patch::Merge(json!({ "status": { "phase": phase, "reason": reason } })),
        );
    }

    /// No GPU is overcommitted, and no GPU belongs to two groups.
    fn check_invariants(&mut self, pods: &[Value]) {
        let mut used: BTreeMap<(String, String), f64> = BTreeMap::new();
        let mut owners: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for pod in pods {
            let Some(node) = pod["spec"]["nodeName"].as_str() else {
                continue;
            };
            let over = matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
            if over || pod["metadata"]["namespace"] == RESERVATIONS {
                continue;
            }
            let told = pod["metadata"]["annotations"]["kai.scheduler/received-gpus"]
                .as_str()
                .unwrap_or_default();
            let fraction = pod["metadata"]["annotations"]["gpu-fraction"]
                .as_str()
                .unwrap_or_default();
            let fraction: f64 = fraction.parse().unwrap_or(0.0);
            for gpu in told.split(',').filter(|gpu| !gpu.is_empty()) {
                *used.entry((node.to_owned(), gpu.to_owned())).or_default() += fraction;
            }
            for (label, value) in pod["metadata"]["labels"].as_object().into_iter().flatten() {
                if label == "runai-gpu-group" && !told.is_empty() {
                    owners.entry(told.to_owned()).or_default().insert(value.to_string());
                }
            }
        }
        for ((node, gpu), sum) in used {
            if sum > 1.000_001 {
                self.violations.push(format!("{gpu} of {node} is used {sum} times"));
            }
        }
        for (gpu, groups) in owners {
            if groups.len() > 1 {
                self.violations.push(format!("{gpu} belongs to {groups:?}"));
            }
        }
    }
}
