//! A canned API server: an HTTP server that lists a large generated cluster in pages, sends changed pods to watches and accepts every
//! write. The objects have the size and fields of real ones, so that parsing them costs as much as in a real cluster.
//!
//! Gangs that need whole nodes wait, if the [`Size`] says so. Single pods come, are bound and go ([`CannedServer::replace`]): the only
//! writes that have an effect are their bindings.

mod objects;

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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
    /// Running pods.
    pub(crate) pods: usize,
    pub(crate) pods_per_node: usize,
    /// Gangs that wait, since each of their pods needs a whole node.
    pub(crate) waiting_gangs: usize,
    /// Free GPUs, each for one of the pods that come and go.
    pub(crate) slots: usize,
}

impl Size {
    pub(crate) fn nodes(self) -> usize {
        self.pods.div_ceil(self.pods_per_node)
    }

    /// All pods, once every slot has one.
    pub(crate) fn pods_in_all(self) -> usize {
        self.pods + self.waiting_gangs * PODS_PER_GROUP + self.slots
    }

    fn groups(self) -> usize {
        self.pods.div_ceil(PODS_PER_GROUP)
    }

    /// Whether this running pod has a GPU.
    fn has_gpu(self, at: usize) -> bool {
        let (of_node, node) = (at / self.nodes(), at % self.nodes());
        of_node + 1 < GPUS_PER_NODE || (of_node + 1 == GPUS_PER_NODE && node >= self.slots)
    }
}

/// Pods per node with one GPU each.
const GPUS_PER_NODE: usize = 8;
/// Pods per pod group.
const PODS_PER_GROUP: usize = 4;
const QUEUES: usize = 20;
/// Bursts that are buffered for a slow watch.
const BURSTS_BUFFERED_MAX: usize = 64;
/// The numbers of pods that come and go begin here.
const FIRST_SINGLE: usize = 1_000_000;
/// The only namespace whose pods the user of any token may list.
pub(crate) const TENANT_NAMESPACE: &str = "team-3";

/// The running server; dropping it stops the server.
pub(crate) struct CannedServer {
    pub(crate) address: SocketAddr,
    cluster: Arc<Cluster>,
    task: AbortHandle,
}

struct Cluster {
    size: Size,
    pod: Template,
    waiting_pod: Template,
    group: Template,
    node: Template,
    /// Locked for moments only, and never across an await.
    singles: Mutex<Singles>,
    /// The resourceVersion of the latest change.
    version: AtomicU64,
    writes: AtomicUsize,
    bytes: AtomicUsize,
    bursts: broadcast::Sender<Bytes>,
}

/// The pods that come and go.
#[derive(Default)]
struct Singles {
    /// How many have come.
    count: usize,
    /// The pod in each slot.
    present: Vec<Option<Single>>,
    /// From the creation of a pod to its binding.
    delays: Vec<Duration>,
    /// Pods that went without a place.
    unbound: usize,
}

#[derive(Clone, Copy)]
struct Single {
    number: usize,
    created: Instant,
    node: Option<usize>,
}

/// What happened to the pods that come and go.
pub(crate) struct Bindings {
    /// From the creation of a pod to its binding, in rising order.
    pub(crate) delays: Vec<Duration>,
    /// Pods that went without a place.
    pub(crate) unbound: usize,
}

impl CannedServer {
    /// Serves a cluster of this size.
    pub(crate) async fn serve(size: Size) -> anyhow::Result<CannedServer> {
        let cluster = Arc::new(Cluster {
            size,
            pod: Template::new(&objects::pod()),
            waiting_pod: Template::new(&objects::waiting_pod()),
            group: Template::new(&objects::group()),
            node: Template::new(&objects::node()),
            singles: Mutex::new(Singles {
                present: vec![None; size.slots],
                ..Singles::default()
            }),
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
        self.cluster.send(text);
    }

    /// Creates a pod that fits, in place of the oldest one.
    pub(crate) fn replace(&self) {
        let cluster = &self.cluster;
        let mut text = String::new();
        {
            let mut singles = cluster.singles();
            let number = singles.count;
            singles.count += 1;
            let slot = number % cluster.size.slots;
            let new = Single {
                number,
                created: Instant::now(),
                node: None,
            };
            if let Some(old) = singles.present[slot].replace(new) {
                singles.unbound += usize::from(old.node.is_none());
                cluster.write_event(&mut text, "DELETED", old);
            }
            cluster.write_event(&mut text, "ADDED", new);
        }
        cluster.send(text);
    }

    /// What happened since the last call.
    pub(crate) fn take_bindings(&self) -> Bindings {
        let mut singles = self.cluster.singles();
        let mut delays = std::mem::take(&mut singles.delays);
        delays.sort_unstable();
        Bindings {
            delays,
            unbound: std::mem::take(&mut singles.unbound),
        }
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
        let body = body.unwrap_or_default();
        return json_text(cluster.answer_write(&path, &body).unwrap_or(body));
    }
    if path == "/version" {
        let version = json!({ "major": "1", "minor": "35", "gitVersion": "v1.35.0" });
        return json_text(version.to_string().into());
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

    fn singles(&self) -> std::sync::MutexGuard<'_, Singles> {
        self.singles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, text: String) {
        // There may be no watch.
        let _ = self.bursts.send(text.into());
    }

    /// The answer to a review, or to a binding, which has an effect; `None` for other writes.
    fn answer_write(&self, path: &str, body: &[u8]) -> Option<Bytes> {
        let of = path.rsplit('/').next()?;
        let body: Value = match of {
            "binding" | "tokenreviews" | "subjectaccessreviews" => serde_json::from_slice(body).ok()?,
            _ => return None,
        };
        let status = match of {
            "tokenreviews" => json!({ "authenticated": true, "user": { "username": "tenant" } }),
            "subjectaccessreviews" => {
                json!({ "allowed": body["spec"]["resourceAttributes"]["namespace"] == TENANT_NAMESPACE })
            }
            _ => {
                let pod = path.rsplit('/').nth(1)?.rsplit('-').next()?.parse::<usize>().ok()?;
                let node = body["target"]["name"].as_str()?.strip_prefix("node-")?.parse().ok()?;
                self.bind(pod.checked_sub(FIRST_SINGLE)?, node);
                return None;
            }
        };
        Some(json!({ "status": status }).to_string().into())
    }

    fn bind(&self, number: usize, node: usize) {
        let mut text = String::new();
        {
            let mut singles = self.singles();
            let present = singles.present[number % self.size.slots].as_mut();
            let Some(single) = present.filter(|single| single.number == number && single.node.is_none()) else {
                return;
            };
            single.node = Some(node);
            let bound = *single;
            singles.delays.push(bound.created.elapsed());
            self.write_event(&mut text, "MODIFIED", bound);
        }
        self.send(text);
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
            "pods" => self.size.pods + self.size.waiting_gangs * PODS_PER_GROUP,
            "nodes" => self.nodes(),
            "podgroups" => self.size.groups() + self.size.waiting_gangs + self.size.slots,
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
                "priorityclasses" => text.push_str(&objects::priority_class().to_string()),
                _ => text.push_str(&objects::queue(at).to_string()),
            }
        }
        text.push_str("]}");
        Some(text)
    }

    /// Writes the pod with this number: first those that run, then those of the gangs that wait.
    fn write_pod(&self, text: &mut String, at: usize, version: u64) {
        let is_waiting = at >= self.size.pods;
        let version = usize::try_from(version).unwrap_or(usize::MAX);
        let group = match at.checked_sub(self.size.pods) {
            None => at / PODS_PER_GROUP,
            Some(at) => self.size.groups() + at / PODS_PER_GROUP,
        };
        let gpus = match is_waiting {
            true => GPUS_PER_NODE,
            false => usize::from(self.size.has_gpu(at)),
        };
        let numbers = [
            ("POD", at),
            ("UID", at),
            ("NODE", at % self.nodes()),
            ("GROUP", group),
            ("QUEUE", group % QUEUES),
            ("VERSION", version),
            ("GPUS", gpus),
            ("PHASE", version),
        ];
        let template = if is_waiting { &self.waiting_pod } else { &self.pod };
        template.write(text, &numbers);
    }

    /// Writes the event of a pod that comes and goes.
    fn write_event(&self, text: &mut String, kind: &str, single: Single) {
        let version = self.version.fetch_add(1, Ordering::Relaxed) + 1;
        let group = self.size.groups() + self.size.waiting_gangs + single.number % self.size.slots;
        let numbers = [
            ("POD", FIRST_SINGLE + single.number),
            ("UID", FIRST_SINGLE + single.number),
            ("NODE", single.node.unwrap_or_default()),
            ("GROUP", group),
            ("QUEUE", group % QUEUES),
            ("VERSION", usize::try_from(version).unwrap_or(usize::MAX)),
            ("GPUS", 1),
            ("PHASE", 1),
        ];
        let template = match single.node {
            Some(_) => &self.pod,
            None => &self.waiting_pod,
        };
        // Writing to a string can't fail.
        let _ = write!(text, r#"{{"type":"{kind}","object":"#);
        template.write(text, &numbers);
        text.push_str("}\n");
    }

    /// Writes the group with this number: first those that run, then those that wait, then those of single pods.
    fn write_group(&self, text: &mut String, at: usize) {
        let running = self.size.groups();
        let (members, gpus) = if at < running {
            let pods = at * PODS_PER_GROUP..((at + 1) * PODS_PER_GROUP).min(self.size.pods);
            (pods.len(), pods.filter(|pod| self.size.has_gpu(*pod)).count())
        } else if at < running + self.size.waiting_gangs {
            (PODS_PER_GROUP, PODS_PER_GROUP * GPUS_PER_NODE)
        } else {
            (1, 1)
        };
        let numbers = [
            ("GROUP", at),
            ("UID", at),
            ("QUEUE", at % QUEUES),
            ("GPUS", gpus),
            ("MEMBERS", members),
        ];
        self.group.write(text, &numbers);
    }
}

/// JSON text with placeholders for numbers, such as `%NAME%`.
struct Template {
    parts: Vec<(String, String)>,
    rest: String,
}

impl Template {
    fn new(object: &Value) -> Template {
        // A number has no quotes.
        let text = object.to_string().replace("\"%MEMBERS%\"", "%MEMBERS%");
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
