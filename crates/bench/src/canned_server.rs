//! A canned API server: an HTTP server that lists a large generated cluster in pages, sends changed pods to watches and accepts every
//! write. The objects have the size and fields of real ones, so that parsing them costs as much as in a real cluster.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::task::AbortHandle;

/// The size of a canned cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) pods: usize,
    pub(crate) pods_per_node: usize,
}

impl Size {
    pub(crate) fn nodes(self) -> usize {
        self.pods.div_ceil(self.pods_per_node)
    }
}

/// Pods per node with one GPU each.
const GPUS_PER_NODE: usize = 8;
/// Pods per pod group.
const PODS_PER_GROUP: usize = 4;
const QUEUES: usize = 20;
/// Bursts that are buffered for a slow watch.
const BURSTS_BUFFERED_MAX: usize = 16;

/// The running server; dropping it stops the server.
pub(crate) struct CannedServer {
    pub(crate) address: SocketAddr,
    cluster: Arc<Cluster>,
    task: AbortHandle,
}

struct Cluster {
    size: Size,
    pod: Template,
    group: Template,
    node: Template,
    /// The resourceVersion of the latest change.
    version: AtomicU64,
    writes: AtomicUsize,
    bytes: AtomicUsize,
    bursts: broadcast::Sender<Bytes>,
}

impl CannedServer {
    /// Serves a cluster of this size.
    pub(crate) async fn serve(size: Size) -> anyhow::Result<CannedServer> {
        let cluster = Arc::new(Cluster {
            size,
            pod: Template::new(&pod()),
            group: Template::new(&group()),
            node: Template::new(&node()),
            version: AtomicU64::new(1),
            writes: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            bursts: broadcast::Sender::new(BURSTS_BUFFERED_MAX),
        });
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let router = axum::Router::new().fallback(answer).with_state(Arc::clone(&cluster));
        let task = tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(CannedServer {
            address,
            cluster,
            task: task.abort_handle(),
        })
    }

    /// A kubeconfig for this server.
    pub(crate) fn kubeconfig(&self) -> anyhow::Result<tempfile::NamedTempFile> {
        let file = tempfile::NamedTempFile::new()?;
        let name = "canned";
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": name,
            "clusters": [{ "name": name, "cluster": { "server": format!("http://{}", self.address) } }],
            "users": [{ "name": name, "user": {} }],
            "contexts": [{ "name": name, "context": { "cluster": name, "user": name } }],
        });
        std::fs::write(file.path(), config.to_string())?;
        Ok(file)
    }

    /// The number of accepted writes.
    pub(crate) fn writes(&self) -> usize {
        self.cluster.writes.load(Ordering::Relaxed)
    }

    /// The bytes of all lists so far.
    pub(crate) fn bytes(&self) -> usize {
        self.cluster.bytes.load(Ordering::Relaxed)
    }

    /// Sends a burst of changed pods to the watches: their phase alternates between Pending and Running.
    pub(crate) fn change(&self, count: usize) {
        let version = self.cluster.version.fetch_add(1, Ordering::Relaxed) + 1;
        let mut text = String::new();
        for at in 0..count {
            text.push_str(r#"{"type":"MODIFIED","object":"#);
            self.cluster
                .write_pod(&mut text, at * 7 % self.cluster.size.pods, version);
            text.push_str("}\n");
        }
        // There may be no watch.
        let _ = self.cluster.bursts.send(text.into());
    }
}

impl Drop for CannedServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(State(cluster): State<Arc<Cluster>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    if request.method() != Method::GET {
        cluster.writes.fetch_add(1, Ordering::Relaxed);
        let body = axum::body::to_bytes(request.into_body(), usize::MAX).await;
        return json_text(body.unwrap_or_default());
    }
    let parameter = |name: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs
            .filter(|(key, _)| *key == name)
            .map(|(_, value)| value)
            .next()
            .unwrap_or_default()
    };
    let plural = path.rsplit('/').next().unwrap_or_default();
    if matches!(parameter("watch"), "true" | "1") {
        return cluster.watch(plural);
    }
    let from: usize = parameter("continue").parse().unwrap_or(0);
    let limit: usize = parameter("limit").parse().unwrap_or(usize::MAX);
    // Only reservation pods are listed by namespace; this cluster has none.
    let of_namespace = path.contains("/namespaces/") && plural == "pods";
    let listed = cluster.list(plural, from, if of_namespace { 0 } else { limit });
    match listed {
        Some(text) => {
            cluster.bytes.fetch_add(text.len(), Ordering::Relaxed);
            json_text(text.into())
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn json_text(text: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

impl Cluster {
    fn nodes(&self) -> usize {
        self.size.nodes()
    }

    fn watch(&self, plural: &str) -> Response {
        // A watch without events.
        if plural != "pods" {
            let silence = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
            return ([(header::CONTENT_TYPE, "application/json")], silence).into_response();
        }
        let bursts = stream::unfold(self.bursts.subscribe(), |mut bursts| async move {
            Some((bursts.recv().await.ok()?, bursts))
        });
        let body = Body::from_stream(bursts.map(Ok::<_, std::io::Error>));
        ([(header::CONTENT_TYPE, "application/json")], body).into_response()
    }

    /// One page; `None` for a path that is no list.
    fn list(&self, plural: &str, from: usize, limit: usize) -> Option<String> {
        let count = match plural {
            "pods" => self.size.pods,
            "nodes" => self.nodes(),
            "podgroups" => self.size.pods.div_ceil(PODS_PER_GROUP),
            "queues" => QUEUES + 1,
            "priorityclasses" => 1,
            _ if plural.ends_with('s') => 0,
            _ => return None,
        };
        let end = from.saturating_add(limit).min(count);
        let next = if limit > 0 && end < count {
            end.to_string()
        } else {
            String::new()
        };
        let version = self.version.load(Ordering::Relaxed);
        let mut text = format!(
            r#"{{"kind":"List","apiVersion":"v1","metadata":{{"resourceVersion":"{version}","continue":"{next}"}},"items":["#
        );
        for at in from..end {
            if at > from {
                text.push(',');
            }
            match plural {
                "pods" => self.write_pod(&mut text, at, 1),
                "nodes" => self.node.write(&mut text, &[("NODE", at), ("UID", at)]),
                "podgroups" => self.write_group(&mut text, at),
                "priorityclasses" => text.push_str(&priority_class().to_string()),
                _ => text.push_str(&queue(at).to_string()),
            }
        }
        text.push_str("]}");
        Some(text)
    }

    /// Writes the pod with this number.
    fn write_pod(&self, text: &mut String, at: usize, version: u64) {
        let gpus = usize::from(has_gpu(at / self.nodes()));
        let version = usize::try_from(version).unwrap_or(usize::MAX);
        let numbers = [
            ("POD", at),
            ("UID", at),
            ("NODE", at % self.nodes()),
            ("GROUP", at / PODS_PER_GROUP),
            ("QUEUE", at / PODS_PER_GROUP % QUEUES),
            ("VERSION", version),
            ("GPUS", gpus),
            ("PHASE", version),
        ];
        self.pod.write(text, &numbers);
    }

    fn write_group(&self, text: &mut String, at: usize) {
        let members = PODS_PER_GROUP.min(self.size.pods - at * PODS_PER_GROUP);
        let gpus = (0..members)
            .filter(|member| has_gpu((at * PODS_PER_GROUP + member) / self.nodes()))
            .count();
        let numbers = [("GROUP", at), ("UID", at), ("QUEUE", at % QUEUES), ("GPUS", gpus)];
        self.group.write(text, &numbers);
    }
}

fn has_gpu(pod_of_node: usize) -> bool {
    pod_of_node < GPUS_PER_NODE
}

/// JSON text with placeholders for numbers, such as `%NAME%`.
struct Template {
    parts: Vec<(String, String)>,
    rest: String,
}

impl Template {
    fn new(object: &Value) -> Template {
        let text = object.to_string();
        let mut pieces = text.split('%');
        let mut parts = Vec::new();
        let mut fixed = pieces.next().unwrap_or_default().to_owned();
        while let (Some(name), Some(after)) = (pieces.next(), pieces.next()) {
            parts.push((std::mem::replace(&mut fixed, after.to_owned()), name.to_owned()));
        }
        Template { parts, rest: fixed }
    }

    fn write(&self, text: &mut String, numbers: &[(&str, usize)]) {
        for (fixed, name) in &self.parts {
            text.push_str(fixed);
            let number = numbers.iter().find(|(key, _)| key == name);
            let number = number.map_or(0, |(_, number)| *number);
            // Writing to a string can't fail.
            let _ = match name.as_str() {
                "UID" => write!(text, "{number:08x}-1f2e-4d3c-8b4a-{number:012x}"),
                // The first version is odd, which means Running.
                "PHASE" => write!(text, "{}", ["Pending", "Running"][number % 2]),
                _ => write!(text, "{number}"),
            };
        }
        text.push_str(&self.rest);
    }
}

fn queue(at: usize) -> Value {
    let share = json!({ "quota": 0, "limit": -1, "overQuotaWeight": 1 });
    let resources = json!({ "gpu": share, "cpu": share, "memory": share });
    let (name, parent) = match at {
        QUEUES => ("all".to_owned(), None),
        at => (format!("queue-{at}"), Some("all")),
    };
    json!({
        "apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
        "metadata": { "name": name, "uid": format!("queue-{at}"), "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "parentQueue": parent, "resources": resources },
    })
}

/// The PriorityClass of all pod groups.
fn priority_class() -> Value {
    json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": { "name": "train", "uid": "train", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z" },
        "value": 50,
    })
}

fn group() -> Value {
    // As the pod group controller writes them, so that it has nothing to update.
    let amounts = json!({ "cpu": "400m", "memory": "1Gi", "nvidia.com/gpu": "%GPUS%" });
    json!({
        "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {
            "name": "pg-train-%GROUP%", "namespace": "team-%QUEUE%", "uid": "%UID%", "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1,
            "labels": { "kai.scheduler/queue": "queue-%QUEUE%", "app": "train" },
            "annotations": { "kai.scheduler/last-start-timestamp": "2026-01-01T00:00:05Z" },
            "managedFields": managed_fields(&["metadata", "labels", "annotations", "spec", "queue", "minMember"]),
        },
        "spec": { "minMember": PODS_PER_GROUP, "queue": "queue-%QUEUE%", "priorityClassName": "train" },
        "status": {
            "phase": "Running", "running": PODS_PER_GROUP, "pending": 0,
            "resourcesStatus": { "allocated": amounts, "requested": amounts },
        },
    })
}

fn node() -> Value {
    let image = |at: usize| {
        let digest = format!(
            "registry.example/team/image-{at}@sha256:{}",
            "0123456789abcdef".repeat(4)
        );
        json!({ "names": [digest, format!("registry.example/team/image-{at}:v1.{at}")], "sizeBytes": 1_000_000 * at })
    };
    let amounts =
        json!({ "cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "110", "nvidia.com/gpu": "8" });
    let condition = |kind: &str, status: &str| {
        json!({ "type": kind, "status": status, "reason": "KubeletSays", "message": "kubelet has looked at it",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z" })
    };
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": "node-%NODE%", "uid": "%UID%", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "kubernetes.io/hostname": "node-%NODE%", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "topology.kubernetes.io/zone": "zone-a", "node.kubernetes.io/instance-type": "gpu-8",
                "nvidia.com/gpu.count": "8", "nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
            },
            "managedFields": managed_fields(&["labels", "status", "allocatable", "capacity", "conditions", "images"]),
        },
        "spec": { "podCIDR": "10.0.0.0/24", "providerID": "example://node-%NODE%" },
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [condition("MemoryPressure", "False"), condition("DiskPressure", "False"), condition("Ready", "True")],
            "addresses": [{ "type": "Hostname", "address": "node-%NODE%" }],
            "nodeInfo": { "kubeletVersion": "v1.35.0", "osImage": "Debian", "kernelVersion": "6.1", "architecture": "amd64" },
            "images": (0..30).map(image).collect::<Vec<_>>(),
        },
    })
}

/// `managedFields` as long as those of a pod that a controller created and a kubelet updates.
fn managed_fields(names: &[&str]) -> Value {
    let mut fields = serde_json::Map::new();
    for name in names {
        let inner = json!({ ".": {}, "f:type": {}, "f:status": {}, "f:lastTransitionTime": {}, "f:reason": {} });
        fields.insert(format!("f:{name}"), inner);
    }
    json!([
        { "manager": "controller", "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
          "fieldsType": "FieldsV1", "fieldsV1": fields },
        { "manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:05Z",
          "fieldsType": "FieldsV1", "fieldsV1": fields, "subresource": "status" },
    ])
}

fn pod() -> Value {
    let amounts = json!({ "cpu": "100m", "memory": "256Mi", "nvidia.com/gpu": "%GPUS%" });
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:05Z" });
    let conditions = [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ]
    .map(condition);
    let env: Vec<Value> = (0..8)
        .map(|at| json!({ "name": format!("SETTING_{at}"), "value": format!("a value of some length, number {at}") }))
        .collect();
    let token = json!({ "name": "kube-api-access", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount" });
    json!({
        "metadata": {
            "name": "train-%GROUP%-worker-%POD%", "generateName": "train-%GROUP%-worker-", "namespace": "team-%QUEUE%",
            "uid": "%UID%", "resourceVersion": "%VERSION%", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": { "app": "train", "kai.scheduler/queue": "queue-%QUEUE%", "controller-uid": "%UID%", "job-name": "train-%GROUP%" },
            "annotations": { "pod-group-name": "pg-train-%GROUP%", "example.com/checksum": "0123456789abcdef0123456789abcdef" },
            "managedFields": managed_fields(&[
                "metadata", "labels", "annotations", "ownerReferences", "containers", "env", "resources", "volumeMounts",
                "conditions", "containerStatuses", "hostIP", "podIP", "podIPs", "startTime",
            ]),
        },
        "spec": {
            "schedulerName": "kai-scheduler", "nodeName": "node-%NODE%", "restartPolicy": "Never", "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default", "serviceAccount": "default", "securityContext": {}, "priority": 50,
            "terminationGracePeriodSeconds": 30, "enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority",
            "volumes": [{ "name": "kube-api-access", "projected": { "defaultMode": 420, "sources": [
                { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
                { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
            ] } }],
            "containers": [{
                "name": "main", "image": "registry.example/team/train:v1.2.3", "command": ["python", "-m", "train"],
                "args": ["--epochs", "10", "--data", "/data"], "env": env, "imagePullPolicy": "IfNotPresent",
                "resources": { "requests": amounts, "limits": amounts }, "volumeMounts": [token],
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            }],
            "tolerations": [
                { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
                { "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
            ],
        },
        "status": {
            "phase": "%PHASE%", "qosClass": "Burstable", "hostIP": "10.0.0.1", "podIP": "10.1.0.1", "startTime": "2026-01-01T00:00:01Z",
            "podIPs": [{ "ip": "10.1.0.1" }], "hostIPs": [{ "ip": "10.0.0.1" }],
            "conditions": conditions,
            "containerStatuses": [{
                "name": "main", "ready": true, "restartCount": 0, "started": true, "image": "registry.example/team/train:v1.2.3",
                "imageID": format!("registry.example/team/train@sha256:{}", "0123456789abcdef".repeat(4)),
                "containerID": format!("containerd://{}", "fedcba9876543210".repeat(4)),
                "state": { "running": { "startedAt": "2026-01-01T00:00:04Z" } }, "lastState": {},
            }],
        },
    })
}
