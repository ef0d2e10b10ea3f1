//! Workload controllers and simulated kubelets on the embedded API server, in virtual time. Pods are bound by the test.

#![allow(clippy::unwrap_used)] // Helpers of tests: a panic is the failure.

use std::time::Duration;

use kai_cluster::{Client, Clock, Context};
use kai_embedded::kubelet::{Delays, Kubelets, NodeTemplate, RUN_SECONDS};
use kai_embedded::server::{DeleteOptions, Object, Options, Patch, Selector, Server};
use kai_embedded::workloads::{VOLUME_PROVISIONER, Workloads};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// The longest wait, in virtual time.
const PATIENCE: Duration = Duration::from_secs(3_600);
const START: &str = "2026-01-01T00:00:00Z";

struct Cluster {
    server: Server,
    _tasks: JoinSet<()>,
}

impl Cluster {
    async fn start(nodes: &[&str]) -> Cluster {
        let start = START.parse().unwrap();
        let server = Server::new(Options {
            clock: Some(kai_embedded::server::Clock::starting_at(start)),
            ..Options::default()
        });
        let context = Context::new(Client::in_process(server.service()), Clock::runtime(start));
        let kubelets = Kubelets::new(&context, Delays::default());
        for name in nodes {
            kubelets.add(&NodeTemplate::new(name, "h100:1")).await.unwrap();
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { kubelets.run().await });
        let workloads = Workloads::new(&context);
        tasks.spawn(async move { workloads.run().await });
        tasks.spawn(bind_pods(server.clone()));
        Cluster { server, _tasks: tasks }
    }

    fn create(&self, object: Value) -> Object {
        self.server.store().create(object).unwrap()
    }

    fn get(&self, resource: &str, name: &str) -> Value {
        let found = self.server.store().get(resource, "default", name);
        found.map(|object| object.to_value()).unwrap_or_default()
    }

    fn list(&self, resource: &str) -> Vec<Object> {
        list(&self.server, resource)
    }

    fn names(&self, resource: &str) -> Vec<String> {
        self.list(resource)
            .iter()
            .map(|object| object.name().to_owned())
            .collect()
    }

    fn patch(&self, resource: &str, name: &str, change: Value) {
        let patched = self
            .server
            .store()
            .patch(resource, "default", name, &Patch::Merge(change));
        patched.unwrap();
    }

    fn delete(&self, resource: &str, namespace: &str, name: &str) {
        let deleted = self
            .server
            .store()
            .delete(resource, namespace, name, &DeleteOptions::default());
        deleted.unwrap();
    }

    /// Waits for a condition.
    async fn until(&self, what: &str, holds: impl Fn(&Cluster) -> bool) {
        let waited = async {
            while !holds(self) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, waited).await.is_err() {
            let pods: Vec<String> = self.list("pods").iter().map(|pod| pod.to_string()).collect();
            panic!("never: {what}\n{}", pods.join("\n"));
        }
    }

    /// Messages of the events with this reason.
    fn events(&self, reason: &str) -> Vec<String> {
        let events = self
            .list("events")
            .into_iter()
            .filter(|event| event["reason"] == reason);
        events
            .map(|event| event["message"].as_str().unwrap().to_owned())
            .collect()
    }
}

fn list(server: &Server, resource: &str) -> Vec<Object> {
    let page = server.store().list(resource, "", &Selector::everything());
    page.unwrap().objects
}

/// Binds each pod to the node that its affinity names, or to the first node.
async fn bind_pods(server: Server) {
    loop {
        for pod in list(&server, "pods")
            .iter()
            .filter(|pod| pod["spec"]["nodeName"].is_null())
        {
            let terms = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
            let named = &terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0];
            let nodes = list(&server, "nodes");
            let node = named.as_str().or(nodes.first().map(|node| node.name()));
            if let Some(node) = node {
                server.store().bind(pod.namespace(), pod.name(), node).unwrap();
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn template(image: &str) -> Value {
    let containers = json!([{ "name": "main", "image": image }]);
    json!({ "metadata": { "labels": { "app": "a" } }, "spec": { "containers": containers } })
}

fn workload(kind: &str, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": { "name": "a", "namespace": "default" },
        "spec": { "selector": { "matchLabels": { "app": "a" } }, "template": template("one") },
    });
    object["spec"]
        .as_object_mut()
        .unwrap()
        .extend(spec.as_object().unwrap().clone());
    object
}

fn job(spec: Value, seconds: &str) -> Value {
    let mut template = template("one");
    template["metadata"]["annotations"] = json!({ RUN_SECONDS: seconds });
    template["spec"]["restartPolicy"] = "Never".into();
    let mut object = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "a", "namespace": "default" },
        "spec": { "template": template },
    });
    object["spec"]
        .as_object_mut()
        .unwrap()
        .extend(spec.as_object().unwrap().clone());
    object
}

#[tokio::test(start_paused = true)]
async fn a_deployment_replaces_its_pods_and_keeps_the_old_revision() {
    let cluster = Cluster::start(&["node"]).await;
    cluster.create(workload("Deployment", json!({ "replicas": 3 })));
    let rolled_out = |cluster: &Cluster| {
        let deployment = cluster.get("deployments.apps", "a");
        let status = &deployment["status"];
        let counters = ["replicas", "updatedReplicas", "availableReplicas"];
        status["observedGeneration"] == deployment["metadata"]["generation"]
            && counters.iter().all(|field| status[field] == 3)
    };
    cluster.until("the deployment is complete", rolled_out).await;
    let before = cluster.names("pods");
    cluster.patch(
        "deployments.apps",
        "a",
        json!({ "spec": { "template": template("two") } }),
    );
    cluster.until("the update is complete", rolled_out).await;
    let replaced = |cluster: &Cluster| {
        let after = cluster.names("pods");
        after.len() == 3 && after.iter().all(|pod| !before.contains(pod))
    };
    cluster.until("the old pods are gone", replaced).await;
    let mut revisions: Vec<Value> = Vec::new();
    for set in cluster.list("replicasets.apps") {
        revisions.push(set["metadata"]["annotations"]["deployment.kubernetes.io/revision"].clone());
    }
    revisions.sort_by_key(Value::to_string);
    assert_eq!(revisions, ["1", "2"]);
    let deployment = cluster.get("deployments.apps", "a");
    let mut conditions = deployment["status"]["conditions"].as_array().unwrap().iter();
    assert!(
        conditions.all(|condition| condition["status"] == "True"),
        "{deployment}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stateful_set_updates_its_pods_one_by_one_and_numbers_its_templates() {
    let cluster = Cluster::start(&["node"]).await;
    let claims = json!([{ "metadata": { "name": "data" }, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
    } }]);
    cluster.create(workload(
        "StatefulSet",
        json!({ "replicas": 2, "serviceName": "a", "volumeClaimTemplates": claims }),
    ));
    let updated = |cluster: &Cluster| {
        let status = cluster.get("statefulsets.apps", "a")["status"].clone();
        status["readyReplicas"] == 2
            && status["currentRevision"] == status["updateRevision"]
            && status["updatedReplicas"] == 2
    };
    cluster.until("all pods are ready", updated).await;
    assert_eq!(cluster.names("pods"), ["a-0", "a-1"]);
    assert_eq!(cluster.names("persistentvolumeclaims"), ["data-a-0", "data-a-1"]);
    let first = cluster.get("statefulsets.apps", "a")["status"]["currentRevision"].clone();
    cluster.patch(
        "statefulsets.apps",
        "a",
        json!({ "spec": { "template": template("two") } }),
    );
    let other = |cluster: &Cluster| {
        updated(cluster) && cluster.get("statefulsets.apps", "a")["status"]["currentRevision"] != first
    };
    cluster.until("all pods are updated", other).await;
    let pods = cluster.list("pods");
    assert!(pods.iter().all(|pod| pod["spec"]["containers"][0]["image"] == "two"));
    let mut numbers: Vec<i64> = cluster
        .list("controllerrevisions.apps")
        .iter()
        .filter_map(|revision| revision["revision"].as_i64())
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_daemon_set_has_a_pod_on_each_node_also_on_new_ones() {
    let cluster = Cluster::start(&["one", "two"]).await;
    cluster.create(workload("DaemonSet", json!({})));
    let available = |count: i64| {
        move |cluster: &Cluster| {
            let status = cluster.get("daemonsets.apps", "a")["status"].clone();
            status["desiredNumberScheduled"] == count
                && status["numberAvailable"] == count
                && status["updatedNumberScheduled"] == count
        }
    };
    cluster.until("both nodes have a pod", available(2)).await;
    let mut nodes: Vec<Value> = cluster
        .list("pods")
        .iter()
        .map(|pod| pod["spec"]["nodeName"].clone())
        .collect();
    nodes.sort_by_key(Value::to_string);
    assert_eq!(nodes, ["one", "two"]);
    cluster.delete("nodes", "", "two");
    let one_left = |cluster: &Cluster| available(1)(cluster) && cluster.list("pods").len() == 1;
    cluster.until("the pod of the lost node is gone", one_left).await;
    cluster.patch(
        "daemonsets.apps",
        "a",
        json!({ "spec": { "template": template("two") } }),
    );
    let updated = |cluster: &Cluster| {
        let pods = cluster.list("pods");
        available(1)(cluster) && pods.len() == 1 && pods[0]["spec"]["containers"][0]["image"] == "two"
    };
    cluster.until("the pod is of the new template", updated).await;
}

#[tokio::test(start_paused = true)]
async fn a_finished_job_says_so_and_is_deleted_after_its_time() {
    let cluster = Cluster::start(&["node"]).await;
    cluster.create(job(
        json!({ "completions": 2, "parallelism": 2, "ttlSecondsAfterFinished": 60 }),
        "5",
    ));
    let complete = |cluster: &Cluster| {
        let status = cluster.get("jobs.batch", "a")["status"].clone();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        status["succeeded"] == 2
            && !status["completionTime"].is_null()
            && conditions.iter().any(|c| c["type"] == "Complete")
    };
    cluster.until("the job is complete", complete).await;
    cluster
        .until("the job is gone", |cluster| cluster.get("jobs.batch", "a").is_null())
        .await;
    cluster
        .until("its pods are gone", |cluster| cluster.list("pods").is_empty())
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_cron_job_starts_jobs_by_its_schedule_and_forgets_old_ones() {
    let cluster = Cluster::start(&["node"]).await;
    let cron_job = json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": { "name": "c", "namespace": "default" },
        "spec": { "schedule": "*/10 * * * *", "successfulJobsHistoryLimit": 2, "jobTemplate": { "spec": job(json!({}), "1")["spec"] } },
    });
    cluster.create(cron_job);
    let last = |cluster: &Cluster| cluster.get("cronjobs.batch", "c")["status"]["lastScheduleTime"].clone();
    cluster
        .until("four times came", |cluster| last(cluster) == "2026-01-01T00:40:00Z")
        .await;
    cluster
        .until("two finished jobs are kept", |cluster| {
            let jobs = cluster.list("jobs.batch");
            jobs.len() == 2 && jobs.iter().all(|job| job["status"]["succeeded"] == 1)
        })
        .await;
    let minutes: Vec<String> = [30, 40]
        .map(|minute| format!("c-{}", 1_767_225_600 / 60 + minute))
        .into();
    assert_eq!(cluster.names("jobs.batch"), minutes);
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_deleted_node_are_collected_and_replaced() {
    let cluster = Cluster::start(&["a", "b"]).await;
    cluster.create(workload("Deployment", json!({ "replicas": 1 })));
    let running_on = |node: &'static str| {
        move |cluster: &Cluster| {
            let pods = cluster.list("pods");
            pods.len() == 1 && pods[0]["spec"]["nodeName"] == node && pods[0]["status"]["phase"] == "Running"
        }
    };
    cluster.until("the pod runs", running_on("a")).await;
    cluster.delete("nodes", "", "a");
    cluster.until("another pod runs elsewhere", running_on("b")).await;
}

fn claim(name: &str, class: Option<&str>) -> Value {
    let mut claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "namespace": "default" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "2Gi" } } },
    });
    if let Some(class) = class {
        claim["spec"]["storageClassName"] = class.into();
    }
    claim
}

fn class(name: &str, mode: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": VOLUME_PROVISIONER, "volumeBindingMode": mode,
        "metadata": { "name": name, "annotations": { "storageclass.kubernetes.io/is-default-class": (mode == "Immediate").to_string() } },
    })
}

fn is_bound(name: &'static str) -> impl Fn(&Cluster) -> bool {
    move |cluster| {
        let claim = cluster.get("persistentvolumeclaims", name);
        claim["status"]["phase"] == "Bound" && !claim["spec"]["volumeName"].is_null()
    }
}

#[tokio::test(start_paused = true)]
async fn claims_get_volumes_that_exist_or_are_made_for_them() {
    let cluster = Cluster::start(&[]).await;
    cluster.create(claim("by-hand", Some("")));
    cluster
        .until("the user is told what is missing", |cluster| {
            !cluster.events("FailedBinding").is_empty()
        })
        .await;
    cluster.create(json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "disk" },
        "spec": { "capacity": { "storage": "5Gi" }, "accessModes": ["ReadWriteOnce"], "hostPath": { "path": "/x" } },
    }));
    cluster.until("the claim has the volume", is_bound("by-hand")).await;
    assert_eq!(
        cluster.get("persistentvolumeclaims", "by-hand")["spec"]["volumeName"],
        "disk"
    );

    cluster.create(class("standard", "Immediate"));
    cluster.create(claim("made", None));
    cluster.until("a volume was made", is_bound("made")).await;
    let made = cluster.get("persistentvolumeclaims", "made");
    assert_eq!(made["spec"]["storageClassName"], "standard");
    assert_eq!(made["status"]["capacity"]["storage"], "2Gi");
    cluster.delete("persistentvolumeclaims", "default", "made");
    cluster.delete("persistentvolumeclaims", "default", "by-hand");
    cluster
        .until("the made volume goes, the other is kept", |cluster| {
            let volumes = cluster.list("persistentvolumes");
            volumes.len() == 1 && volumes[0].name() == "disk" && volumes[0]["status"]["phase"] == "Released"
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_waits_for_its_consumer_is_bound_once_a_node_is_chosen() {
    let cluster = Cluster::start(&[]).await;
    cluster.create(class("late", "WaitForFirstConsumer"));
    cluster.create(claim("late", Some("late")));
    cluster
        .until("the user is told", |cluster| {
            !cluster.events("WaitForFirstConsumer").is_empty()
        })
        .await;
    assert!(cluster.list("persistentvolumes").is_empty());
    let chosen = json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": "n" } } });
    cluster.patch("persistentvolumeclaims", "late", chosen);
    cluster.until("the claim is bound", is_bound("late")).await;
}

#[tokio::test(start_paused = true)]
async fn new_namespaces_get_a_service_account() {
    let cluster = Cluster::start(&[]).await;
    cluster.create(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "team" } }));
    let has_account = |cluster: &Cluster| cluster.server.store().get("serviceaccounts", "team", "default").is_ok();
    cluster.until("the namespace has an account", has_account).await;
}

/// Creates a pod with this spec.
fn create_pod(server: &Server, spec: Value) -> Result<Value, String> {
    let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "generateName": "p-" }, "spec": template("x")["spec"] });
    pod["spec"]
        .as_object_mut()
        .unwrap()
        .extend(spec.as_object().unwrap().clone());
    let created = server.store().create(pod);
    created.map(|pod| pod.to_value()).map_err(|refusal| refusal.message)
}

#[test]
fn pods_get_the_overhead_selector_and_tolerations_of_their_runtime_class() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _within = runtime.enter();
    let server = Server::new(Options::default());
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": "kata" }, "handler": "kata",
        "overhead": { "podFixed": { "cpu": "250m" } },
        "scheduling": { "nodeSelector": { "kata": "yes" }, "tolerations": [{ "key": "kata", "operator": "Exists" }] },
    });
    server.store().create(class).unwrap();
    let pod = create_pod(&server, json!({ "runtimeClassName": "kata" })).unwrap();
    assert_eq!(pod["spec"]["overhead"], json!({ "cpu": "250m" }));
    assert_eq!(pod["spec"]["nodeSelector"], json!({ "kata": "yes" }));
    let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
    assert!(
        tolerations.iter().any(|toleration| toleration["key"] == "kata"),
        "{pod}"
    );
    for (spec, words) in [
        (
            json!({ "runtimeClassName": "gvisor" }),
            "RuntimeClass \"gvisor\" not found",
        ),
        (
            json!({ "overhead": { "cpu": "1" } }),
            "without corresponding RuntimeClass",
        ),
        (
            json!({ "runtimeClassName": "kata", "overhead": { "cpu": "1" } }),
            "doesn't match",
        ),
        (
            json!({ "runtimeClassName": "kata", "nodeSelector": { "kata": "no" } }),
            "conflict",
        ),
    ] {
        let message = create_pod(&server, spec).unwrap_err();
        assert!(message.contains(words) && message.contains("forbidden"), "{message}");
    }
}

#[test]
fn pods_get_the_priority_of_their_class_or_of_the_default_one() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _within = runtime.enter();
    let server = Server::new(Options::default());
    let class = |name: &str, value: i64, default: bool| json!({ "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": name }, "value": value, "globalDefault": default });
    let priority = |spec: Value| create_pod(&server, spec).unwrap()["spec"]["priority"].clone();
    assert_eq!(priority(json!({})), 0);
    assert_eq!(
        priority(json!({ "priorityClassName": "system-node-critical" })),
        2_000_001_000
    );
    assert_eq!(
        priority(json!({ "priorityClassName": "system-cluster-critical" })),
        2_000_000_000
    );
    server.store().create(class("high", 100, false)).unwrap();
    server.store().create(class("usual", 10, true)).unwrap();
    assert_eq!(priority(json!({ "priorityClassName": "high" })), 100);
    let pod = create_pod(&server, json!({})).unwrap();
    assert_eq!(
        (&pod["spec"]["priority"], &pod["spec"]["priorityClassName"]),
        (&json!(10), &json!("usual"))
    );
    let message = create_pod(&server, json!({ "priorityClassName": "none" })).unwrap_err();
    assert!(
        message.contains("no PriorityClass with name none was found"),
        "{message}"
    );
    let message = server.store().create(class("other", 5, true)).unwrap_err().message;
    assert!(message.contains("usual is already marked as default"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_annotations_have_no_effect_gets_an_event() {
    let cluster = Cluster::start(&["node"]).await;
    cluster.create(job(json!({}), "-5"));
    let reported = |cluster: &Cluster| !cluster.events("IgnoredAnnotation").is_empty();
    cluster.until("an event names the annotation", reported).await;
    let messages = cluster.events("IgnoredAnnotation");
    assert!(
        messages[0].contains(RUN_SECONDS) && messages[0].contains("\"-5\""),
        "{messages:?}"
    );
}
