//! The same objects through both doors of the mirror: the watches of an API server, and the files of `kai simulate`. The engine must see
//! the same cluster and decide the same.

use std::path::Path;
use std::sync::Arc;

use kai_embedded::server::{Clock, DeleteOptions, Options, Patch, Server, StoreHandle};
use kai_engine::Cluster;
use kai_engine::model::{Config, Millis};
use kai_mirror::ClusterMirror;
use kai_simulate::SimulatedCluster;
use kai_simulate::scenario::{NotInstalled, load_case, load_manifests};
use serde_json::{Map, Value, json};

use super::sources::Sources;
use crate::Settings;

const START: &str = "2026-01-01T00:00:00Z";
/// The kinds that the scheduler watches: the resource, and the list in a case.
const RESOURCES: [(&str, &str); 12] = [
    ("nodes", "nodes"),
    ("queues.scheduling.run.ai", "queues"),
    ("podgroups.scheduling.run.ai", "podGroups"),
    ("pods", "pods"),
    ("bindrequests.scheduling.run.ai", "bindRequests"),
    ("topologies.kai.scheduler", "topologies"),
    ("priorityclasses.scheduling.k8s.io", "priorityClasses"),
    ("persistentvolumes", "persistentVolumes"),
    ("persistentvolumeclaims", "persistentVolumeClaims"),
    ("storageclasses.storage.k8s.io", "storageClasses"),
    ("csinodes.storage.k8s.io", "csiNodes"),
    ("configmaps", "configMaps"),
];

/// Creates an object with its status.
fn put(store: &StoreHandle, resource: &str, object: Value) {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text("namespace"), text("name"));
    store.put(object.clone()).unwrap();
    if let Some(status) = object.get("status") {
        let patch = Patch::Merge(json!({ "status": status }));
        store.patch_status(resource, &namespace, &name, &patch).unwrap();
    }
}

fn queue(store: &StoreHandle, name: &str, parent: Option<&str>, annotations: Value) {
    let share = |quota: i32| json!({ "quota": quota, "limit": -1, "overQuotaWeight": 1 });
    let mut spec = json!({ "resources": { "gpu": share(2), "cpu": share(-1), "memory": share(-1) } });
    if let Some(parent) = parent {
        spec["parentQueue"] = parent.into();
    }
    let metadata = json!({ "name": name, "annotations": annotations });
    put(
        store,
        "queues.scheduling.run.ai",
        json!({ "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": metadata, "spec": spec }),
    );
}

fn node(store: &StoreHandle, name: &str, rack: &str) {
    put(
        store,
        "nodes",
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": { "nvidia.com/gpu.memory": "16000", "nvidia.com/gpu.count": "2", "rack": rack } },
            "status": {
                "capacity": { "cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "2" },
                "allocatable": { "cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "2" },
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        }),
    );
}

/// A pod group, and a pod of the same name with these fields.
fn workload(store: &StoreHandle, name: &str, group: Value, pod: Value) {
    let mut spec = json!({ "queue": "q", "minMember": 1 });
    merge(&mut spec, group);
    put(
        store,
        "podgroups.scheduling.run.ai",
        json!({ "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
                "metadata": { "name": name, "namespace": "a" }, "spec": spec }),
    );
    member(store, name, name, pod);
}

fn member(store: &StoreHandle, name: &str, group: &str, pod: Value) {
    let mut object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "a", "annotations": { "pod-group-name": group } },
        "spec": { "schedulerName": "kai-scheduler", "containers": [{ "name": "main", "image": "x" }] },
    });
    merge(&mut object, pod);
    put(store, "pods", object);
}

fn whole_gpu() -> Value {
    json!([{ "name": "main", "image": "x", "resources": { "limits": { "nvidia.com/gpu": "1" } } }])
}

fn share(fraction: &str, group: &str, node: &str) -> Value {
    json!({
        "metadata": { "labels": { "runai-gpu-group": group },
                      "annotations": { "gpu-fraction": fraction, "kai.scheduler/received-gpus": format!("GPU-{group}") } },
        "spec": { "nodeName": node }, "status": { "phase": "Running" },
    })
}

fn reservation(store: &StoreHandle, group: &str, node: &str) {
    put(
        store,
        "pods",
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("reservation-{group}"), "namespace": "kai-resource-reservation",
                          "labels": { "app": "kai-resource-reservation", "runai-gpu-group": group },
                          "annotations": { "run.ai/reserve_for_gpu_index": format!("GPU-{group}") } },
            "spec": { "nodeName": node, "containers": whole_gpu() }, "status": { "phase": "Running" },
        }),
    );
}

fn merge(into: &mut Value, from: Value) {
    match (into.as_object_mut(), from) {
        (Some(fields), Value::Object(from)) => {
            for (key, value) in from {
                merge(fields.entry(key).or_insert(Value::Null), value);
            }
        }
        (_, from) => *into = from,
    }
}

/// A cluster with an object of every kind, and a pod for every rule of the mirror.
fn fill(store: &StoreHandle) {
    for name in ["a", "kai-resource-reservation"] {
        put(
            store,
            "namespaces",
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }),
        );
    }
    for (name, value) in [("train", 50), ("build", 100), ("urgent", 90)] {
        put(
            store,
            "priorityclasses.scheduling.k8s.io",
            json!({ "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": name }, "value": value }),
        );
    }
    put(
        store,
        "topologies.kai.scheduler",
        json!({ "apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology", "metadata": { "name": "racks" },
                "spec": { "levels": [{ "nodeLabel": "rack" }] } }),
    );
    queue(store, "top", None, json!({}));
    queue(store, "q", Some("top"), json!({ "kai.scheduler/max-priority": "75" }));
    queue(
        store,
        "theirs",
        Some("top"),
        json!({ "kai.scheduler/allowed-namespaces": "b" }),
    );
    for (name, rack) in [("n1", "r1"), ("n2", "r1"), ("n3", "r2"), ("n4", "r2"), ("n5", "r3")] {
        node(store, name, rack);
    }
    shares(store);
    volumes(store);
    plain_workloads(store);
}

fn shares(store: &StoreHandle) {
    reservation(store, "used", "n1");
    reservation(store, "unused", "n2");
    workload(store, "shares", json!({}), share("0.5", "used", "n1"));
    workload(
        store,
        "joins",
        json!({}),
        json!({ "metadata": { "annotations": { "gpu-fraction": "0.25" } } }),
    );
    // Its reservation pod is lost, so that no other pod may get a GPU of n3.
    workload(store, "unreserved", json!({}), share("0.5", "lost", "n3"));
    let request = |name: &str, node: &str, status: Value| {
        let uid = store.get("pods", "a", name).unwrap().to_value()["metadata"]["uid"].clone();
        let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid });
        put(
            store,
            "bindrequests.scheduling.run.ai",
            json!({ "apiVersion": "scheduling.run.ai/v1alpha2", "kind": "BindRequest",
                    "metadata": { "name": name, "namespace": "a", "ownerReferences": [owner] },
                    "spec": { "podName": name, "selectedNode": node, "selectedGPUGroups": [format!("of-{name}")] },
                    "status": status }),
        );
    };
    for name in ["binding", "failed", "misled"] {
        workload(
            store,
            name,
            json!({}),
            json!({ "metadata": { "annotations": { "gpu-fraction": "0.5" } } }),
        );
    }
    request("binding", "n4", json!({ "phase": "Pending" }));
    request(
        "failed",
        "n5",
        json!({ "phase": "Failed", "failedAttempts": 1, "reason": "no GPU" }),
    );
    request("misled", "gone", json!({ "phase": "Pending" }));
}

fn volumes(store: &StoreHandle) {
    let here = json!([{ "matchExpressions": [{ "key": "rack", "operator": "In", "values": ["r3"] }] }]);
    put(
        store,
        "persistentvolumes",
        json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "disk" },
                "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
                          "claimRef": { "namespace": "a", "name": "data" },
                          "nodeAffinity": { "required": { "nodeSelectorTerms": here } } } }),
    );
    put(
        store,
        "storageclasses.storage.k8s.io",
        json!({ "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "late" },
                "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer" }),
    );
    let there = json!([{ "matchExpressions": [{ "key": "rack", "operator": "In", "values": ["r2"] }] }]);
    put(
        store,
        "persistentvolumes",
        json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "free" },
                "spec": { "capacity": { "storage": "2Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "late",
                          "nodeAffinity": { "required": { "nodeSelectorTerms": there } } },
                "status": { "phase": "Available" } }),
    );
    put(
        store,
        "persistentvolumeclaims",
        json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "first", "namespace": "a" },
                "spec": { "storageClassName": "late", "accessModes": ["ReadWriteOnce"],
                          "resources": { "requests": { "storage": "1Gi" } } },
                "status": { "phase": "Pending" } }),
    );
    for (name, volume, phase) in [("data", "disk", "Bound"), ("later", "", "Pending")] {
        put(
            store,
            "persistentvolumeclaims",
            json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "namespace": "a" },
                    "spec": { "volumeName": volume, "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
                    "status": { "phase": phase } }),
        );
    }
    put(
        store,
        "configmaps",
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "present", "namespace": "a" } }),
    );
    for claim in ["data", "later", "missing", "first"] {
        let volume = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }]);
        workload(
            store,
            &format!("claims-{claim}"),
            json!({}),
            json!({ "spec": { "containers": whole_gpu(), "volumes": volume } }),
        );
    }
    for map in ["present", "absent"] {
        let container = json!([{ "name": "main", "image": "x", "envFrom": [{ "configMapRef": { "name": map } }] }]);
        workload(
            store,
            &format!("map-{map}"),
            json!({}),
            json!({ "spec": { "containers": container } }),
        );
    }
}

fn plain_workloads(store: &StoreHandle) {
    let gpu = || json!({ "spec": { "containers": whole_gpu() } });
    workload(store, "waits", json!({ "priorityClassName": "urgent" }), gpu());
    workload(store, "forbidden", json!({ "queue": "theirs" }), gpu());
    workload(
        store,
        "gated",
        json!({}),
        json!({ "spec": { "schedulingGates": [{ "name": "g" }] } }),
    );
    let constraint = json!({ "topology": "racks", "requiredTopologyLevel": "rack" });
    workload(
        store,
        "gang",
        json!({ "minMember": 2, "topologyConstraint": constraint }),
        gpu(),
    );
    member(store, "gang-1", "gang", gpu());
    for name in ["runs", "leaves"] {
        let mut pod = gpu();
        merge(
            &mut pod,
            json!({ "spec": { "nodeName": "n2" }, "status": { "phase": "Running" } }),
        );
        workload(store, name, json!({ "priorityClassName": "build" }), pod);
    }
    store.delete("pods", "a", "leaves", &DeleteOptions::default()).unwrap();
    let mut succeeded = gpu();
    merge(
        &mut succeeded,
        json!({ "spec": { "nodeName": "n2" }, "status": { "phase": "Succeeded" } }),
    );
    member(store, "runs-0", "runs", succeeded.clone());
    // A pod that has ended without a gang.
    merge(
        &mut succeeded,
        json!({ "metadata": { "annotations": null }, "status": { "phase": "Failed" } }),
    );
    member(store, "ended", "", succeeded);
    let mut foreign = gpu();
    merge(
        &mut foreign,
        json!({ "spec": { "schedulerName": "other", "nodeName": "n5" }, "status": { "phase": "Running" } }),
    );
    member(store, "foreign", "nothing", foreign);
}

/// The scheduler's mirror and engine after the initial lists.
async fn through_watches(server: &Server, now: Millis) -> Cluster {
    let client = kai_cluster::Client::in_process(server.service());
    let context = kai_cluster::Context::new(client, kai_cluster::Clock::runtime(START.parse().unwrap()));
    let settings = Settings::default().mirror();
    let sources = Sources::new(&context.informers, &Arc::default(), &settings);
    sources.synced().await;
    let (mut mirror, mut engine) = (ClusterMirror::new(&Settings::default().mirror()), Cluster::new());
    mirror.tick(now);
    sources.apply_changes(&mut mirror, &mut engine);
    mirror.mark_synced();
    let outbox = mirror.take_outbox();
    outbox.events.into_iter().for_each(|event| engine.apply(event));
    // The scheduler deletes stale bind requests, and the watch shows it.
    let stale: Vec<&str> = outbox
        .stale_bind_requests
        .iter()
        .map(|request| &*request.key.name)
        .collect();
    assert_eq!(stale.len(), 2, "{stale:?}");
    for request in &outbox.stale_bind_requests {
        mirror.remove_bind_request(&request.key);
    }
    let outbox = mirror.take_outbox();
    outbox.events.into_iter().for_each(|event| engine.apply(event));
    engine
}

/// The objects of the server by the lists of a case.
fn dump(store: &StoreHandle) -> Map<String, Value> {
    let of_resource = |resource: &str| -> Value {
        let everything = store.selector(resource, "", "").unwrap();
        let page = store.list(resource, "", &everything).unwrap();
        page.objects.iter().map(|object| object.to_value()).collect()
    };
    let lists = RESOURCES.iter();
    lists
        .map(|(resource, list)| ((*list).to_owned(), of_resource(resource)))
        .collect()
}

fn assert_same(watched: &Cluster, read: &Cluster, when: &str) {
    assert_eq!(watched.pods(), read.pods(), "{when}");
    assert_eq!(watched.nodes(), read.nodes(), "{when}");
    assert_eq!(watched.queues(), read.queues(), "{when}");
    assert_eq!(watched.anomalies(), read.anomalies(), "{when}");
}

#[tokio::test(start_paused = true)]
async fn files_and_watches_give_the_engine_the_same_cluster() {
    let server = Server::new(Options {
        clock: Some(Clock::starting_at(START.parse().unwrap())),
        ..Options::default()
    });
    let store = server.store();
    for crd in kai_api::crd::crds() {
        store.create(crd).unwrap();
    }
    fill(&store);
    let lists = dump(&store);
    let items: Vec<&Value> = lists.values().filter_map(Value::as_array).flatten().collect();
    let manifests = json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string();
    let case = json!({ "now": START, "objects": lists }).to_string();
    for mut scenario in [
        load_manifests(Path::new("cluster.json"), &manifests, &NotInstalled).unwrap(),
        load_case(Path::new("case.json"), &case).unwrap(),
    ] {
        let name = scenario.origin.display().to_string();
        let now = scenario.now;
        let mut watched = through_watches(&server, now).await;
        let mut simulated = SimulatedCluster::new(&mut scenario);
        assert_same(&watched, simulated.engine(), &format!("{name}, before the cycle"));
        let report = watched.cycle(now, &Config::default());
        assert_eq!(report, simulated.engine_mut().cycle(now, &Config::default()), "{name}");
        assert_same(&watched, simulated.engine(), &format!("{name}, after the cycle"));
        assert_ne!(report.decisions, [], "{name}: a cycle without decisions proves little");
    }
}
