//! A Kubernetes API server with one node and some pods. It stores applied objects, and tests can make it fail.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::BroadcastStream;

#[derive(Debug, Clone, Default)]
pub struct World {
    /// What our field manager applied last.
    pub labels: BTreeMap<String, String>,
    /// Labels that users set.
    pub user_labels: BTreeMap<String, String>,
    /// The condition `GPUsHealthy`.
    pub condition: Option<Value>,
    /// The condition `GPUConfigApplied`.
    pub config_condition: Option<Value>,
    /// The condition `GPULimits`.
    pub limits_condition: Option<Value>,
    /// The condition `gpu-fractioning.nvidia.com/Ready`, if the agent wrote it.
    pub fractioning: Option<Value>,
    /// Whether another program writes that condition.
    pub fractioning_is_foreign: bool,
    /// Names of pods that were to be evicted.
    pub evicted: Vec<String>,
    /// The condition `GPUSetupHealthy`, and how often it was written.
    pub setup: Option<Value>,
    pub setup_writes: usize,
    pub events: Vec<Value>,
    /// Pods by name, whatever their namespace.
    pub pods: BTreeMap<String, Value>,
    /// If set, every call is refused with this status.
    pub fail: Option<u16>,
    pub managed_fields: Vec<Value>,
    /// Handlers of runtime classes, by name.
    pub runtime_classes: BTreeMap<String, String>,
    /// The only existing node; if unset, a node of every name exists.
    pub only_node: Option<String>,
}

#[derive(Clone)]
pub struct Api {
    pub url: String,
    world: Arc<watch::Sender<World>>,
    pod_events: broadcast::Sender<Value>,
    node_events: broadcast::Sender<Value>,
    serial: Arc<Mutex<u64>>,
}

impl Api {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = Api {
            url: format!("http://{}", listener.local_addr().unwrap()),
            world: Arc::new(watch::channel(World::default()).0),
            pod_events: broadcast::channel(64).0,
            node_events: broadcast::channel(64).0,
            serial: Arc::default(),
        };
        let app = Router::new()
            .route("/api/v1/nodes", get(nodes))
            .route("/api/v1/nodes/{name}", get(node).patch(apply_node))
            .route("/api/v1/nodes/{name}/status", patch(apply_status))
            .route("/api/v1/namespaces/default/events", post(event))
            .route("/api/v1/namespaces/{ns}/events", post(event))
            .route("/api/v1/namespaces/{ns}/pods/{name}/eviction", post(evict))
            .route("/api/v1/namespaces/{ns}/pods", get(pods))
            .route("/api/v1/namespaces/{ns}/pods/{name}", get(pod))
            .route("/api/v1/namespaces/{ns}/pods/{name}/status", patch(patch_pod))
            .route("/apis/node.k8s.io/v1/runtimeclasses/{name}", get(runtime_class))
            .with_state(api.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        api
    }

    pub fn world(&self) -> watch::Receiver<World> {
        self.world.subscribe()
    }

    pub fn change(&self, change: impl FnOnce(&mut World)) {
        self.world.send_modify(change);
    }

    /// Sets or removes a label of the node, as a user does.
    pub fn label_node(&self, key: &str, value: Option<&str>) {
        self.change(|world| {
            match value {
                Some(value) => world.user_labels.insert(key.to_owned(), value.to_owned()),
                None => world.user_labels.remove(key),
            };
        });
        let node = node_object(&self.world.borrow(), "n1", &self.next());
        let event = json!({ "type": "MODIFIED", "object": metadata_only(&node) });
        let _ = self.node_events.send(event);
    }

    /// A reservation pod.
    pub fn add_pod(&self, name: &str, uid: &str) {
        self.put_pod(json!({ "name": name, "namespace": RESERVATIONS, "uid": uid }));
    }

    /// A reservation pod of a GPU group, annotated with its GPU.
    pub fn add_reservation(&self, group: &str, gpu: &str) {
        let name = format!("gpu-reservation-{group}");
        self.put_pod(json!({
            "name": name, "namespace": RESERVATIONS, "uid": name, "labels": { "runai-gpu-group": group },
            "annotations": { "run.ai/reserve_for_gpu_index": gpu },
        }));
    }

    /// A pod on the node, with this metadata.
    pub fn put_pod(&self, mut metadata: Value) {
        metadata["resourceVersion"] = self.next().into();
        let name = metadata["name"].as_str().unwrap().to_owned();
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": { "nodeName": "n1" } });
        self.change(|world| {
            world.pods.insert(name, pod.clone());
        });
        let _ = self
            .pod_events
            .send(json!({ "type": "ADDED", "object": metadata_only(&pod) }));
    }

    pub fn annotation(world: &World, pod: &str) -> Option<String> {
        let pod = world.pods.get(pod)?;
        Some(
            pod["metadata"]["annotations"]["run.ai/reserve_for_gpu_index"]
                .as_str()?
                .to_owned(),
        )
    }

    fn next(&self) -> String {
        let mut serial = self.serial.lock();
        *serial += 1;
        serial.to_string()
    }

    fn refused(&self) -> Option<Response> {
        let code = self.world.borrow().fail?;
        Some(status(code, "told to fail"))
    }
}

fn status(code: u16, message: &str) -> Response {
    let body = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code });
    (StatusCode::from_u16(code).unwrap(), body.to_string()).into_response()
}

const RESERVATIONS: &str = "kai-resource-reservation";

/// The pod as the client requested it: whole, or its metadata only.
fn as_asked(headers: &HeaderMap, object: &Value) -> Value {
    let accepted = headers.get("accept").and_then(|value| value.to_str().ok());
    match accepted.is_some_and(|accepted| accepted.contains("PartialObjectMetadata")) {
        true => metadata_only(object),
        false => object.clone(),
    }
}

fn metadata_only(object: &Value) -> Value {
    json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": object["metadata"] })
}

async fn node(State(api): State<Api>, Path(name): Path<String>) -> Response {
    if let Some(refused) = api.refused() {
        return refused;
    }
    let world = api.world.borrow().clone();
    if world.only_node.as_ref().is_some_and(|only| *only != name) {
        return status(404, &format!("nodes \"{name}\" not found"));
    }
    node_object(&world, &name, "1").to_string().into_response()
}

fn node_object(world: &World, name: &str, version: &str) -> Value {
    let labels: BTreeMap<&String, &String> = world.labels.iter().chain(&world.user_labels).collect();
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": {
        "name": name, "uid": "node-uid", "labels": labels, "managedFields": world.managed_fields, "resourceVersion": version,
    } })
}

/// The agent may list and watch its own node only.
async fn nodes(State(api): State<Api>, Query(query): Query<BTreeMap<String, String>>) -> Response {
    if let Some(refused) = api.refused() {
        return refused;
    }
    assert_eq!(query.get("fieldSelector").map(String::as_str), Some("metadata.name=n1"));
    if query.contains_key("watch") {
        // The node may have changed since the list, before this subscription.
        let events = api.node_events.subscribe();
        let now = node_object(&api.world.borrow(), "n1", &api.next());
        let _ = api
            .node_events
            .send(json!({ "type": "MODIFIED", "object": metadata_only(&now) }));
        return watched(events);
    }
    let version = api.next();
    let node = node_object(&api.world.borrow(), "n1", &version);
    json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": version }, "items": [metadata_only(&node)] })
        .to_string()
        .into_response()
}

/// The events of a watch, one per line.
fn watched(events: broadcast::Receiver<Value>) -> Response {
    let lines = BroadcastStream::new(events)
        .filter_map(|event| event.ok())
        .map(|event| Ok::<_, std::io::Error>(format!("{event}\n")));
    Response::new(Body::from_stream(lines))
}

async fn runtime_class(State(api): State<Api>, Path(name): Path<String>) -> Response {
    if let Some(refused) = api.refused() {
        return refused;
    }
    match api.world.borrow().runtime_classes.get(&name) {
        Some(handler) => json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": name }, "handler": handler })
            .to_string()
            .into_response(),
        None => status(404, "runtimeclasses.node.k8s.io not found"),
    }
}

async fn apply_node(State(api): State<Api>, Query(query): Query<BTreeMap<String, String>>, body: Bytes) -> Response {
    if let Some(refused) = api.refused() {
        return refused;
    }
    assert_eq!(query.get("fieldManager").map(String::as_str), Some("kai-node-agent"));
    let body: Value = serde_json::from_slice(&body).unwrap();
    let labels = serde_json::from_value(body["metadata"]["labels"].clone()).unwrap();
    api.change(|world| world.labels = labels);
    body.to_string().into_response()
}

async fn apply_status(State(api): State<Api>, Query(query): Query<BTreeMap<String, String>>, body: Bytes) -> Response {
    if let Some(refused) = api.refused() {
        return refused;
    }
    let body: Value = serde_json::from_slice(&body).unwrap();
    if query.get("fieldManager").map(String::as_str) == Some("kai-node-agent-fractioning") {
        assert_eq!(
            query.get("force"),
            None,
            "another program's condition is not taken over"
        );
        if api.world.borrow().fractioning_is_foreign {
            return status(409, "conflict with \"fractiond\"");
        }
    }
    let applied = body["status"]["conditions"].as_array().unwrap();
    let of_type = |kind: &str| applied.iter().find(|condition| condition["type"] == kind).cloned();
    // By server-side apply: conditions that the field manager leaves out are removed.
    api.change(|world| match query.get("fieldManager").map(String::as_str) {
        Some("kai-node-agent-setup") => {
            world.setup = of_type("GPUSetupHealthy");
            world.setup_writes += 1;
        }
        Some("kai-node-agent-fractioning") => {
            world.fractioning = of_type("gpu-fractioning.nvidia.com/Ready");
        }
        _ => {
            world.condition = of_type("GPUsHealthy");
            world.config_condition = of_type("GPUConfigApplied");
            world.limits_condition = of_type("GPULimits");
        }
    });
    body.to_string().into_response()
}

async fn event(State(api): State<Api>, body: Bytes) -> Response {
    if let Some(refused) = api.refused() {
        return refused;
    }
    let body: Value = serde_json::from_slice(&body).unwrap();
    api.change(|world| world.events.push(body.clone()));
    (StatusCode::CREATED, body.to_string()).into_response()
}

async fn evict(State(api): State<Api>, Path((_, name)): Path<(String, String)>, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert!(body["deleteOptions"]["preconditions"]["uid"].is_string());
    api.change(|world| world.evicted.push(name));
    (
        StatusCode::CREATED,
        json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }).to_string(),
    )
        .into_response()
}

async fn pods(
    State(api): State<Api>,
    Path(namespace): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    if let Some(refused) = api.refused() {
        return refused;
    }
    assert_eq!(query.get("fieldSelector").map(String::as_str), Some("spec.nodeName=n1"));
    if query.contains_key("watch") {
        return watched(api.pod_events.subscribe());
    }
    let label = query.get("labelSelector").map(String::as_str).unwrap_or_default();
    let wanted = |pod: &&Value| {
        let metadata = &pod["metadata"];
        metadata["namespace"] == namespace && (label.is_empty() || metadata["labels"][label].is_string())
    };
    let world = api.world.borrow().clone();
    let items: Vec<Value> = world
        .pods
        .values()
        .filter(wanted)
        .map(|pod| as_asked(&headers, pod))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "List",
        "metadata": { "resourceVersion": api.next() }, "items": items,
    })
    .to_string()
    .into_response()
}

async fn pod(State(api): State<Api>, Path((namespace, name)): Path<(String, String)>, headers: HeaderMap) -> Response {
    if let Some(refused) = api.refused() {
        return refused;
    }
    let world = api.world.borrow().clone();
    let of_namespace = |pod: &&Value| pod["metadata"]["namespace"] == namespace;
    match world.pods.get(&name).filter(of_namespace) {
        Some(pod) => as_asked(&headers, pod).to_string().into_response(),
        None => status(404, "pods not found"),
    }
}

async fn patch_pod(State(api): State<Api>, Path((_, name)): Path<(String, String)>, body: Bytes) -> Response {
    if let Some(refused) = api.refused() {
        return refused;
    }
    let body: Value = serde_json::from_slice(&body).unwrap();
    let Some(mut pod) = api.world.borrow().pods.get(&name).cloned() else {
        return status(404, "pods not found");
    };
    if body["metadata"]["uid"]
        .as_str()
        .is_some_and(|uid| uid != pod["metadata"]["uid"])
    {
        return status(409, "the UID in the precondition does not match");
    }
    pod["metadata"]["annotations"] = body["metadata"]["annotations"].clone();
    pod["metadata"]["resourceVersion"] = json!(api.next());
    api.change(|world| {
        world.pods.insert(name, pod.clone());
    });
    let _ = api
        .pod_events
        .send(json!({ "type": "MODIFIED", "object": metadata_only(&pod) }));
    pod.to_string().into_response()
}
