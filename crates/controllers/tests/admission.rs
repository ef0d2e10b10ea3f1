//! Admission on the embedded API server: which writes of a tenant are admitted while the webhooks are up, down and uninstalled.
#![allow(clippy::unwrap_used)] // It is all test; the lint knows only functions marked as such.

use std::net::TcpListener;
use std::sync::Arc;

use kai_api::{GpuSharingMode, Resource, Scope};
use kai_cluster::{Client, Clock, Context, Deletion, Part, Patch, Target};
use kai_controllers::admission::{self, Args, Feature, Settings, State};
use kai_embedded::server::{Backend, Options, Server};
use serde_json::{Value, json};

const PODS: Resource = Resource::new("", "v1", "Pod", "pods", Scope::Namespaced);
const CONFIG_MAPS: Resource = Resource::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced);
const NAMESPACES: Resource = Resource::new("", "v1", "Namespace", "namespaces", Scope::Cluster);
const DEFINITIONS: Resource = Resource::new(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    Scope::Cluster,
);
const QUEUES: Resource = Resource::new("scheduling.run.ai", "v2", "Queue", "queues", Scope::Cluster);
const POD_GROUPS: Resource = Resource::new(
    "scheduling.run.ai",
    "v2alpha2",
    "PodGroup",
    "podgroups",
    Scope::Namespaced,
);
const BIND_REQUESTS: Resource = Resource::new(
    "scheduling.run.ai",
    "v1alpha2",
    "BindRequest",
    "bindrequests",
    Scope::Namespaced,
);
const TOPOLOGIES: Resource = Resource::new("kai.scheduler", "v1alpha1", "Topology", "topologies", Scope::Cluster);
const MUTATING: Resource = Resource::new(
    "admissionregistration.k8s.io",
    "v1",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    Scope::Cluster,
);

const BINDINGS: Resource = Resource::new(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingAdmissionPolicyBinding",
    "validatingadmissionpolicybindings",
    Scope::Cluster,
);

const TENANT: &str = "system:serviceaccount:team-a:default";
const BINDER: &str = "system:serviceaccount:kai-scheduler:binder";
const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";

/// An API server with the admission role, which serves TLS on a port of this machine.
struct Cluster {
    server: Server,
    role: tokio::task::JoinHandle<()>,
}

impl Cluster {
    async fn start(change: impl FnOnce(&mut Settings)) -> Cluster {
        let server = Server::new(Options::default());
        let admin = Client::in_process(server.service());
        for definition in kai_api::crd::crds() {
            admin.create(&DEFINITIONS, "", definition).await.unwrap();
        }
        for name in ["team-a", "kai-resource-reservation"] {
            admin
                .create(&NAMESPACES, "", json!({"metadata": {"name": name}}))
                .await
                .unwrap();
        }
        let mut settings = Settings { ..Settings::default() };
        change(&mut settings);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        server.route_service("kai-scheduler", "admission", Backend::address(address));
        let context = Context::new(
            Client::in_process(server.service_as("system:serviceaccount:kai-scheduler:admission")),
            Clock::System,
        );
        let health = context.health.clone();
        let role = tokio::spawn(async move {
            let ended = admission::serve(context, settings, listener).await;
            panic!("admission ended: {ended:?}");
        });
        let cluster = Cluster { server, role };
        // The role registers with health when it first runs, and is ready when the API server knows its webhooks and policies.
        let last = Target {
            resource: &BINDINGS,
            namespace: "",
            name: "kai-shared-gpu-config-maps",
        };
        while admin.get_value(last).await.unwrap().is_none() || !health.not_ready().is_empty() {
            assert!(!cluster.role.is_finished());
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        cluster
    }

    fn client(&self, user: &str) -> Client {
        Client::in_process(self.server.service_as(user))
    }

    /// Stops the webhook server, as a crash would.
    fn stop(&self) {
        self.role.abort();
        self.server.unroute_service("kai-scheduler", "admission");
    }

    async fn create(&self, user: &str, resource: &Resource, object: Value) -> Result<Value, String> {
        let namespace = match resource.scope {
            Scope::Namespaced => object["metadata"]["namespace"].as_str().unwrap_or("team-a").to_owned(),
            Scope::Cluster => String::new(),
        };
        let created = self.client(user).create(resource, &namespace, object).await;
        created.map_err(|error| error.to_string())
    }

    async fn change(&self, user: &str, resource: &Resource, name: &str, change: Value) -> Result<Value, String> {
        self.change_part(user, resource, name, Part::Object, change).await
    }

    async fn change_part(
        &self,
        user: &str,
        resource: &Resource,
        name: &str,
        part: Part,
        change: Value,
    ) -> Result<Value, String> {
        let namespace = match resource.scope {
            Scope::Namespaced => "team-a",
            Scope::Cluster => "",
        };
        let target = Target {
            resource,
            namespace,
            name,
        };
        let changed = self.client(user).patch(target, part, Patch::Merge(change)).await;
        changed.map_err(|error| error.to_string())
    }

    async fn delete(&self, user: &str, resource: &Resource, name: &str) -> Result<(), String> {
        let namespace = match resource.scope {
            Scope::Namespaced => "team-a",
            Scope::Cluster => "",
        };
        let target = Target {
            resource,
            namespace,
            name,
        };
        let deleted = self.client(user).delete(target, &Deletion::default()).await;
        deleted.map_err(|error| error.to_string())
    }
}

fn pod(name: &str, labels: Value, annotations: Value) -> Value {
    json!({
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "main", "image": "i"}]},
    })
}

fn foreign(mut pod: Value) -> Value {
    pod["spec"]["schedulerName"] = "default-scheduler".into();
    pod
}

fn queue(name: &str, parent: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"parentQueue": parent, "resources": {
        "gpu": {"quota": 1, "limit": -1, "overQuotaWeight": 1}}}})
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, String>, words: &str) {
    let message = result.unwrap_err();
    assert!(message.contains(words), "{message}");
}

#[tokio::test]
async fn a_share_is_prepared_over_tls() {
    let cluster = Cluster::start(|_| {}).await;
    let created = cluster
        .create(TENANT, &PODS, pod("half", json!({}), json!({"gpu-fraction": "0.5"})))
        .await
        .unwrap();
    let prefix = created["metadata"]["annotations"]["runai/shared-gpu-configmap"]
        .as_str()
        .unwrap();
    assert!(
        prefix.starts_with("half-") && prefix.ends_with("-shared-gpu"),
        "{prefix}"
    );
    assert_eq!(
        created["spec"]["runtimeClassName"],
        Value::Null,
        "the cluster has no such class"
    );
    let share_device =
        json!({"requests": {"kai.scheduler/gpu-share": "1"}, "limits": {"kai.scheduler/gpu-share": "1"}});
    assert_eq!(created["spec"]["containers"][0]["resources"], share_device);
    let env = &created["spec"]["containers"][0]["env"];
    assert_eq!(env[0]["valueFrom"]["configMapKeyRef"]["name"], format!("{prefix}-0"));
    for (annotations, words) in [
        (
            json!({"gpu-fraction": "NaN"}),
            "gpu-fraction: \"NaN\" is not a fraction",
        ),
        (json!({"gpu-fraction": "1e300"}), "is more than one GPU"),
        (
            json!({"gpu-memory": "99999999999999999999"}),
            "is more than any machine has",
        ),
        (
            json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "1000000"}),
            "is not a number of GPUs",
        ),
    ] {
        refused(
            cluster.create(TENANT, &PODS, pod("odd", json!({}), annotations)).await,
            words,
        );
    }
}

#[tokio::test]
async fn nobody_but_us_writes_our_keys_webhook_or_not() {
    let cluster = Cluster::start(|_| {}).await;
    let ours = pod("ours", json!({"team": "a"}), json!({"gpu-fraction": "0.5"}));
    cluster.create(TENANT, &PODS, ours).await.unwrap();
    let bound = json!({"metadata": {"labels": {"runai-gpu-group": "g"}, "annotations": {"received-resource-type": "Fraction"}}});
    cluster.change(BINDER, &PODS, "ours", bound).await.unwrap();

    for round in ["served", "not served"] {
        for (labels, annotations) in [
            (json!({"runai-gpu-group": "g"}), json!({})),
            (json!({"runai-gpu-group/g": "g"}), json!({})),
            (json!({}), json!({"received-resource-type": "Regular"})),
            (json!({}), json!({"run.ai/reserve_for_gpu_index": "GPU-1"})),
            (json!({}), json!({"kai.scheduler/received-gpus": "GPU-1"})),
            (json!({}), json!({"kai.scheduler/numa-placement-observed": "[]"})),
            (json!({}), json!({"kai.scheduler/gpu-limits": "{}"})),
            (json!({}), json!({"kai.scheduler/gpu-enforcement-tier": "driver"})),
            (json!({}), json!({"nvidia.com/container.main.gpus.devices": "GPU-1"})),
        ] {
            let forged = foreign(pod("forged", labels, annotations));
            refused(
                cluster.create(TENANT, &PODS, forged).await,
                "only the scheduler writes this",
            );
        }
        for app in ["kai-resource-reservation", "scaling-pod"] {
            let mut pretender = foreign(pod("pretender", json!({"app": app}), json!({})));
            refused(
                cluster.create(TENANT, &PODS, pretender.clone()).await,
                "marks reservation pods and scaling pods",
            );
            pretender["metadata"]["namespace"] = "kai-resource-reservation".into();
            refused(
                cluster.create(TENANT, &PODS, pretender).await,
                "marks reservation pods and scaling pods",
            );
        }
        for (change, words) in [
            (json!({"labels": {"runai-gpu-group": "other"}}), "only the scheduler"),
            (json!({"labels": {"runai-gpu-group": null}}), "only the scheduler"),
            (
                json!({"annotations": {"received-resource-type": "Regular"}}),
                "only the scheduler",
            ),
        ] {
            let change = json!({"metadata": change});
            refused(cluster.change(TENANT, &PODS, "ours", change.clone()).await, words);
            refused(
                cluster.change_part(TENANT, &PODS, "ours", Part::Status, change).await,
                words,
            );
        }
        if round == "served" {
            // An update that leaves the protected keys alone.
            let edit = json!({"metadata": {"labels": {"team": "b"}}});
            cluster.change(TENANT, &PODS, "ours", edit).await.unwrap();
            cluster.stop();
        }
    }
    // Our own roles keep working while no webhook server runs.
    let healed = json!({"metadata": {"labels": {"runai-gpu-group": "h"}}});
    cluster.change(BINDER, &PODS, "ours", healed).await.unwrap();
}

#[tokio::test]
async fn slots_are_ours_to_give_webhook_or_not() {
    let cluster = Cluster::start(|_| {}).await;
    let with_slot = |name: &str, annotations: Value, list: &str| {
        let mut pod = pod(name, json!({}), annotations);
        let share_device =
            json!([{"name": "x", "image": "i", "resources": {"limits": {"kai.scheduler/gpu-share": "1"}}}]);
        pod["spec"][list] = share_device;
        pod
    };
    let half = json!({"gpu-fraction": "0.5"});
    for round in ["served", "not served"] {
        for list in ["containers", "initContainers"] {
            for forged in [
                foreign(with_slot("p", json!({}), list)),
                foreign(with_slot("p", half.clone(), list)),
            ] {
                refused(cluster.create(TENANT, &PODS, forged).await, "the scheduler adds it");
            }
        }
        if round == "served" {
            for forged in [
                with_slot("p", json!({}), "containers"),
                with_slot("p", half.clone(), "initContainers"),
            ] {
                refused(cluster.create(TENANT, &PODS, forged).await, "the scheduler adds it");
            }
            let copied = with_slot("copied", half.clone(), "containers");
            cluster.create(TENANT, &PODS, copied).await.unwrap();
            cluster.stop();
        }
    }
}

#[tokio::test]
async fn a_request_for_gpus_stays_as_it_was() {
    let cluster = Cluster::start(|_| {}).await;
    cluster
        .create(TENANT, &PODS, pod("p", json!({}), json!({"gpu-fraction": "0.9"})))
        .await
        .unwrap();
    for change in [
        json!({"gpu-fraction": "0.1"}),
        json!({"gpu-fraction": null}),
        json!({"gpu-fraction-num-devices": "2"}),
        json!({"runai/shared-gpu-configmap": "mine"}),
    ] {
        let change = json!({"metadata": {"annotations": change}});
        refused(
            cluster.change(TENANT, &PODS, "p", change).await,
            "can't change after the pod was created",
        );
    }
    let mut placed = pod("placed", json!({}), json!({}));
    placed["spec"]["nodeName"] = "n1".into();
    refused(
        cluster.create(TENANT, &PODS, placed.clone()).await,
        "the scheduler chooses the node",
    );
    cluster.create(TENANT, &PODS, foreign(placed)).await.unwrap();
}

#[tokio::test]
async fn request_and_limit_of_a_container_are_admitted_translated_and_fixed() {
    let cluster = Cluster::start(|_| {}).await;
    let request = |container: &str| format!("nvidia.com/container.{container}.gpu-memory.request");
    let limit = "nvidia.com/container.main.gpu-memory.limit";
    let memory = json!({"gpu-memory": "4096", "gpu-memory.limit": "8Gi"});
    let created = cluster
        .create(TENANT, &PODS, pod("memory", json!({}), memory))
        .await
        .unwrap();
    let annotations = &created["metadata"]["annotations"];
    assert_eq!(
        (&annotations[request("main")], &annotations[limit]),
        (&json!("4096Mi"), &json!("8Gi"))
    );
    let share_device = json!({"kai.scheduler/gpu-share": "1"});
    let by_container = json!({request("main"): "4Gi", "kai.scheduler/gpu-enforcement": "required"});
    let created = cluster
        .create(TENANT, &PODS, pod("p", json!({}), by_container))
        .await
        .unwrap();
    assert_eq!(created["spec"]["containers"][0]["resources"]["limits"], share_device);
    for (annotations, words) in [
        (json!({request("side"): "4Gi"}), "the pod has no container"),
        (json!({request("main"): "4096"}), "is not an amount of GPU memory"),
        (
            json!({request("main"): "4Gi", limit: "1Gi"}),
            "is not above the request",
        ),
        (json!({"gpu-fraction": "0.5", limit: "1Gi"}), "write gpu-fraction.limit"),
    ] {
        refused(
            cluster.create(TENANT, &PODS, pod("odd", json!({}), annotations)).await,
            words,
        );
    }
    let bound = json!({"metadata": {"annotations": {"nvidia.com/container.main.gpus.devices": "GPU-1", limit: "4Gi"}}});
    cluster.change(BINDER, &PODS, "p", bound).await.unwrap();
    for round in ["served", "not served"] {
        for change in [
            json!({request("main"): "1Gi"}),
            json!({request("main"): null}),
            json!({request("side"): "1Gi"}),
            json!({limit: "80Gi"}),
            json!({"nvidia.com/container.main.gpu-compute.mode": "sm-sharing"}),
            json!({"kai.scheduler/container.main.gpu-memory.portion.limit": "0.9"}),
            json!({"gpu-memory.limit": "80Gi"}),
            json!({"gpu-fraction.limit": "0.9"}),
            json!({"kai.scheduler/gpu-enforcement": null}),
        ] {
            let change = json!({"metadata": {"annotations": change}});
            let words = "can't change after the pod was created";
            refused(cluster.change(TENANT, &PODS, "p", change.clone()).await, words);
            refused(
                cluster.change_part(TENANT, &PODS, "p", Part::Status, change).await,
                words,
            );
        }
        for change in [
            json!({"nvidia.com/container.main.gpus.devices": "GPU-2"}),
            json!({"nvidia.com/container.main.gpus.devices": null}),
            json!({"nvidia.com/container.other.gpus.devices": "GPU-2"}),
            json!({"kai.scheduler/gpu-limits": r#"{"container":"main","memoryMiB":81559}"#}),
            json!({"kai.scheduler/gpu-enforcement-tier": "driver"}),
        ] {
            let change = json!({"metadata": {"annotations": change}});
            refused(cluster.change(TENANT, &PODS, "p", change).await, "only the scheduler");
        }
        if round == "served" {
            let edit = json!({"metadata": {"annotations": {"team": "a", "nvidia.com/other": "b"}}});
            cluster.change(TENANT, &PODS, "p", edit).await.unwrap();
            cluster.stop();
        }
    }
    let healed = json!({"metadata": {"annotations": {"nvidia.com/container.main.gpus.devices": null}}});
    cluster.change(BINDER, &PODS, "p", healed).await.unwrap();
}

#[tokio::test]
async fn only_the_binder_changes_limits_webhook_or_not() {
    let cluster = Cluster::start(|_| {}).await;
    let half = pod("half", json!({}), json!({"gpu-fraction": "0.5"}));
    cluster.create(TENANT, &PODS, half).await.unwrap();
    let limits = |mib: u32| {
        let limits = format!(r#"{{"container":"main","memoryMiB":{mib}}}"#);
        json!({"metadata": {"annotations": {"kai.scheduler/gpu-limits": limits}}})
    };
    cluster.change(BINDER, &PODS, "half", limits(1)).await.unwrap();
    let agent = "system:serviceaccount:kai-scheduler:kai-node-agent";
    let scheduler = "system:serviceaccount:kai-scheduler:scheduler";
    for round in ["served", "not served"] {
        for account in [agent, scheduler] {
            for part in [Part::Object, Part::Status] {
                let changed = cluster.change_part(account, &PODS, "half", part, limits(2)).await;
                refused(changed, "only");
            }
        }
        if round == "served" {
            let label = json!({"metadata": {"labels": {"team": "a"}}});
            cluster.change(scheduler, &PODS, "half", label).await.unwrap();
            cluster.stop();
        }
    }
    cluster.change(BINDER, &PODS, "half", limits(3)).await.unwrap();
}

#[tokio::test]
async fn no_pod_shares_gpus_where_that_is_off() {
    let cluster = Cluster::start(|settings| settings.gpu_sharing = GpuSharingMode::Disabled).await;
    for annotations in [
        json!({"gpu-fraction": "0.5"}),
        json!({"gpu-memory": "4096"}),
        json!({"nvidia.com/container.main.gpu-memory.request": "4Gi"}),
    ] {
        refused(
            cluster.create(TENANT, &PODS, pod("p", json!({}), annotations)).await,
            "sharing of GPUs is turned off in this cluster; request whole GPUs",
        );
    }
}

#[tokio::test]
async fn other_pods_come_and_go_while_nobody_serves() {
    let cluster = Cluster::start(|_| {}).await;
    cluster.stop();
    let other = foreign(pod("other", json!({}), json!({"gpu-fraction": "whatever"})));
    cluster.create(TENANT, &PODS, other).await.unwrap();
    cluster
        .change(TENANT, &PODS, "other", json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .unwrap();
    cluster.delete(TENANT, &PODS, "other").await.unwrap();
    cluster
        .create(TENANT, &PODS, pod("ours", json!({}), json!({})))
        .await
        .unwrap_err();
}

#[tokio::test]
async fn nothing_stands_in_the_way_after_uninstallation() {
    let cluster = Cluster::start(|_| {}).await;
    cluster.stop();
    admission::uninstall(&cluster.client("system:admin")).await.unwrap();
    cluster
        .create(TENANT, &PODS, pod("ours", json!({"runai-gpu-group": "g"}), json!({})))
        .await
        .unwrap();
    cluster
        .create(TENANT, &QUEUES, json!({"metadata": {"name": "q"}, "spec": {}}))
        .await
        .unwrap();
    cluster.delete(TENANT, &QUEUES, "q").await.unwrap();
    // A second uninstallation is no error.
    admission::uninstall(&cluster.client("system:admin")).await.unwrap();
}

#[tokio::test]
async fn config_maps_of_shares_are_left_alone() {
    let cluster = Cluster::start(|_| {}).await;
    let map = |name: &str| {
        json!({"metadata": {"name": name, "labels": {"kai.scheduler/shared-gpu": "true"}},
            "data": {"NVIDIA_VISIBLE_DEVICES": "GPU-1"}})
    };
    cluster.stop();
    cluster.create(BINDER, &CONFIG_MAPS, map("share")).await.unwrap();
    let words = "only the scheduler writes it";
    refused(cluster.create(TENANT, &CONFIG_MAPS, map("forged")).await, words);
    for change in [
        json!({"data": {"NVIDIA_VISIBLE_DEVICES": "all"}}),
        json!({"data": null}),
        json!({"binaryData": {"x": "eA=="}}),
        json!({"metadata": {"labels": {"kai.scheduler/shared-gpu": null}}}),
        json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1"}]}}),
    ] {
        refused(cluster.change(TENANT, &CONFIG_MAPS, "share", change).await, words);
    }
    refused(cluster.delete(TENANT, &CONFIG_MAPS, "share").await, words);
    let note = json!({"metadata": {"annotations": {"seen": "yes"}}});
    cluster.change(TENANT, &CONFIG_MAPS, "share", note).await.unwrap();
    cluster.delete(COLLECTOR, &CONFIG_MAPS, "share").await.unwrap();
    // A tenant may write its own ConfigMaps, but may not label one as the scheduler's.
    cluster
        .create(
            TENANT,
            &CONFIG_MAPS,
            json!({"metadata": {"name": "own"}, "data": {"a": "b"}}),
        )
        .await
        .unwrap();
    let marked = json!({"metadata": {"labels": {"kai.scheduler/shared-gpu": "true"}}});
    refused(cluster.change(TENANT, &CONFIG_MAPS, "own", marked).await, words);
    cluster
        .change(TENANT, &CONFIG_MAPS, "own", json!({"data": {"a": "c"}}))
        .await
        .unwrap();
    cluster.delete(TENANT, &CONFIG_MAPS, "own").await.unwrap();
}

#[tokio::test]
async fn bind_requests_and_notes_on_pod_groups_are_ours() {
    let cluster = Cluster::start(|_| {}).await;
    let request = json!({"metadata": {"name": "p"}, "spec": {"podName": "p", "selectedNode": "n"}});
    refused(
        cluster.create(TENANT, &BIND_REQUESTS, request.clone()).await,
        "only the scheduler writes bind requests",
    );
    cluster.create(BINDER, &BIND_REQUESTS, request).await.unwrap();
    let elsewhere = json!({"spec": {"selectedNode": "m"}});
    refused(
        cluster.change(TENANT, &BIND_REQUESTS, "p", elsewhere).await,
        "only the scheduler",
    );
    refused(cluster.delete(TENANT, &BIND_REQUESTS, "p").await, "only the scheduler");
    cluster.delete(COLLECTOR, &BIND_REQUESTS, "p").await.unwrap();

    let group =
        |annotations: Value| json!({"metadata": {"name": "g", "annotations": annotations}, "spec": {"minMember": 1}});
    let forged = group(json!({"kai.scheduler/last-start-timestamp": "2020-01-01T00:00:00Z"}));
    refused(
        cluster.create(TENANT, &POD_GROUPS, forged).await,
        "only the scheduler writes this",
    );
    cluster.create(TENANT, &POD_GROUPS, group(json!({}))).await.unwrap();
    let note = json!({"metadata": {"annotations": {"kai.scheduler/stale-podgroup-timestamp": "2020-01-01T00:00:00Z"}}});
    refused(
        cluster.change(TENANT, &POD_GROUPS, "g", note.clone()).await,
        "only the scheduler",
    );
    cluster.change(BINDER, &POD_GROUPS, "g", note).await.unwrap();
    let status = json!({"status": {"resourcesStatus": {"allocated": {"nvidia.com/gpu": "0"}}}});
    refused(
        cluster
            .change_part(TENANT, &POD_GROUPS, "g", Part::Status, status.clone())
            .await,
        "only the scheduler",
    );
    cluster
        .change_part(BINDER, &POD_GROUPS, "g", Part::Status, status)
        .await
        .unwrap();
    refused(
        cluster
            .change(TENANT, &POD_GROUPS, "g", json!({"spec": {"minSubGroup": 1}}))
            .await,
        "minMember and minSubGroup exclude each other",
    );
}

#[tokio::test]
async fn queues_are_a_tree_and_may_be_for_some() {
    let cluster = Cluster::start(|_| {}).await;
    let admin = "system:admin";
    cluster.create(admin, &QUEUES, queue("top", "")).await.unwrap();
    cluster.create(admin, &QUEUES, queue("leaf", "top")).await.unwrap();
    refused(
        cluster
            .create(admin, &QUEUES, json!({"metadata": {"name": "x"}, "spec": {}}))
            .await,
        "spec.resources",
    );
    let negative = json!({"spec": {"resources": {"gpu": {"quota": -7}}}});
    refused(
        cluster.change(admin, &QUEUES, "leaf", negative).await,
        "-7 is no amount",
    );
    // The informer has the object soon after the write.
    let cycle = json!({"spec": {"parentQueue": "leaf"}});
    loop {
        match cluster.change(admin, &QUEUES, "top", cycle.clone()).await {
            Err(message) => break assert!(message.contains("its own ancestor"), "{message}"),
            Ok(_) => {
                cluster
                    .change(admin, &QUEUES, "top", json!({"spec": {"parentQueue": ""}}))
                    .await
                    .unwrap();
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
    }
    let only_b = json!({"metadata": {"annotations": {"kai.scheduler/allowed-namespaces": "team-b"}}});
    cluster.change(admin, &QUEUES, "leaf", only_b).await.unwrap();
    let group = json!({"metadata": {"name": "g"}, "spec": {"queue": "leaf"}});
    let words = "queue leaf is not for namespace team-a";
    loop {
        match cluster.create(BINDER, &POD_GROUPS, group.clone()).await {
            Err(message) => break assert!(message.contains(words), "{message}"),
            Ok(_) => cluster.delete(BINDER, &POD_GROUPS, "g").await.unwrap(),
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let pod = pod("p", json!({"kai.scheduler/queue": "leaf"}), json!({}));
    refused(cluster.create(TENANT, &PODS, pod).await, words);
    let topology = json!({"metadata": {"name": "t"}, "spec": {"levels": [
        {"nodeLabel": "zone", "alias": "a"}, {"nodeLabel": "rack", "alias": "a"}]}});
    refused(
        cluster.create(admin, &TOPOLOGIES, topology).await,
        "aliases occur more than once: a",
    );
}

#[tokio::test]
async fn gpus_named_by_hand_are_refused() {
    let cluster = Cluster::start(|settings| settings.block_visible_devices = Feature::On).await;
    let mut named = pod("p", json!({}), json!({}));
    named["spec"]["containers"][0]["env"] = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
    refused(
        cluster.create(TENANT, &PODS, named.clone()).await,
        "env.NVIDIA_VISIBLE_DEVICES: \"all\" shows GPUs to a container that asked for none",
    );
    named["metadata"]["name"] = "q".into();
    named["spec"]["containers"][0]["env"][0] =
        json!({"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}});
    refused(cluster.create(TENANT, &PODS, named).await, "a reference may show GPUs");
}

#[tokio::test]
async fn replicas_share_a_bundle() {
    let cluster = Cluster::start(|settings| settings.identity = "first".into()).await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let second = listener.local_addr().unwrap();
    let context = Context::new(
        cluster.client("system:serviceaccount:kai-scheduler:admission"),
        Clock::System,
    );
    let health = context.health.clone();
    let settings = Settings {
        identity: "second".into(),
        ..Settings::default()
    };
    let role = tokio::spawn(admission::serve(context, settings, listener));
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        if health.not_ready().is_empty() && bundle_names(&cluster, "second").await {
            break;
        }
    }
    let share = |name| pod(name, json!({}), json!({"gpu-fraction": "0.5"}));
    // The API server trusts both replicas, whichever the service routes to.
    cluster.create(TENANT, &PODS, share("a")).await.unwrap();
    cluster
        .server
        .route_service("kai-scheduler", "admission", Backend::address(second));
    cluster.create(TENANT, &PODS, share("b")).await.unwrap();
    role.abort();
}

/// Whether the CA bundle has a certificate of the replica.
async fn bundle_names(cluster: &Cluster, replica: &str) -> bool {
    use base64::Engine as _;
    let target = Target {
        resource: &MUTATING,
        namespace: "",
        name: "mutating-kai-admission",
    };
    let configuration = cluster.client("system:admin").get_value(target).await.unwrap().unwrap();
    let bundle = configuration["webhooks"][0]["clientConfig"]["caBundle"]
        .as_str()
        .unwrap();
    let text = String::from_utf8(base64::engine::general_purpose::STANDARD.decode(bundle).unwrap()).unwrap();
    text.contains(&format!(" {replica}\n")) && text.contains(" first\n")
}

#[tokio::test]
async fn the_router_serves_without_tls() {
    let metrics = kai_cluster::Metrics::default();
    let queues: Vec<Arc<kai_api::Queue>> = Vec::new();
    let server = Server::new(Options::default());
    let router = admission::router(State::new(Settings::default(), queues, |_| false, &metrics));
    server.route_service("kai-scheduler", "admission", Backend::service(router));
    let admin = Client::in_process(server.service());
    let hook = json!({"metadata": {"name": "h"}, "webhooks": [{
        "name": "h.h.h", "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
        "clientConfig": {"service": {"namespace": "kai-scheduler", "name": "admission", "path": admission::MUTATE_POD}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]}]});
    admin.create(&MUTATING, "", hook).await.unwrap();
    let pod = pod(
        "p",
        json!({}),
        json!({"gpu-fraction": "0.5", "gpu-fraction-container-name": "none"}),
    );
    let error = admin.create(&PODS, "default", pod).await.unwrap_err().to_string();
    assert!(error.contains("the pod has no container"), "{error}");
    let counted = r#"kai_admission_requests_total{path="/mutate--v1-pod",result="denied"} 1"#;
    assert!(metrics.text().contains(counted), "{}", metrics.text());
}

#[derive(clap::Parser)]
struct NoFlags {
    #[command(flatten)]
    args: Args,
}

fn default_settings() -> admission::Settings {
    let flags = <NoFlags as clap::Parser>::try_parse_from(["admission"]).unwrap();
    flags.args.settings().unwrap()
}

fn deployed(file: &str) -> std::path::PathBuf {
    std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy")).join(file)
}

/// Compares a committed file; `KAI_UPDATE=1` writes it.
fn assert_committed(file: &str, head: &str, objects: impl IntoIterator<Item = Value>) {
    let mut text = head.to_owned();
    for object in objects {
        text.push_str("---\n");
        text.push_str(&serde_saphyr::to_string(&object).unwrap());
    }
    let path = deployed(file);
    if std::env::var_os("KAI_UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(&path).unwrap_or_default(),
        text,
        "run this test with KAI_UPDATE=1"
    );
}

/// The committed policies are those of a default installation.
#[test]
fn committed_policies_are_current() {
    let head = "# The scheduler's own keys and objects, guarded by the API server itself. `kai admission` applies these at start;\n\
                # this file is for installations that apply them beforehand. Generated; see crates/controllers/tests/admission.rs.\n";
    assert_committed(
        "admission-policies.yaml",
        head,
        admission::admission_policies(&default_settings()),
    );
}

/// The committed webhooks are those of a default installation.
#[test]
fn committed_webhooks_are_current() {
    let head = "# The webhooks, for installations whose `kai admission --register=false` may not register them. They have no caBundle: write\n\
                # the authority of the certificate in --cert-dir there, or let cert-manager do it (cert-manager.io/inject-ca-from).\n\
                # Generated; see crates/controllers/tests/admission.rs.\n";
    let configurations = admission::webhook_configurations(&default_settings(), "");
    assert_committed("admission-webhooks.yaml", head, configurations);
}

/// The account that registers may write each webhook configuration and policy by name; the account that only serves may write none.
#[test]
fn the_right_to_register_is_apart_and_names_every_object() {
    let text = std::fs::read_to_string(deployed("rbac.yaml")).unwrap();
    let manifests = serde_saphyr::from_multiple::<Value>(&text).unwrap();
    let rules = |name: &str| -> Vec<Value> {
        let role = manifests
            .iter()
            .find(|object| object["kind"] == "ClusterRole" && object["metadata"]["name"] == name);
        role.unwrap()["rules"].as_array().unwrap().clone()
    };
    let registration = "admissionregistration.k8s.io";
    let of_group = |rule: &&Value| rule["apiGroups"][0] == registration;
    assert_eq!(rules("kai-admission").iter().filter(of_group).count(), 0);
    let may_patch = |resource: &str, name: &str| {
        rules("kai-admission-registration").iter().filter(of_group).any(|rule| {
            let has = |field: &str, value: &str| rule[field].as_array().unwrap().iter().any(|entry| entry == value);
            has("verbs", "patch") && has("resources", resource) && has("resourceNames", name)
        })
    };
    let settings = default_settings();
    let objects = admission::admission_policies(&settings).into_iter();
    for object in objects.chain(admission::webhook_configurations(&settings, "")) {
        let kind = object["kind"].as_str().unwrap().to_lowercase();
        let plural = match kind.strip_suffix('y') {
            Some(stem) => format!("{stem}ies"),
            None => format!("{kind}s"),
        };
        let name = object["metadata"]["name"].as_str().unwrap();
        assert!(may_patch(&plural, name), "{plural} {name}");
    }
}
