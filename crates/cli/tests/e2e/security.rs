//! A tenant with all rights in its own namespace tries to get more than it was given. Each attempt is refused, or has no effect. The
//! tenant's namespace is `default`; on a real API server its rights are a Role there, on the embedded one nobody has fewer than all.
//! docs/security.md lists the attempts.

use api::{ConfigMap, Object, keys};
use cli::all::Settings;
use cluster::{Selection, Target};
use serde_json::{Value, json};
use sim::kubelet::NodeTemplate;

use crate::harness::manifest::{PodManifest, pod_group, queue};
use crate::harness::user::refused;
use crate::harness::{Cluster, User, scenario, scenario_with};

const TENANT: &str = "tenant";
/// An account of the tenant's that is called like one of ours.
const NAMESAKE: &str = "system:serviceaccount:default:binder";

fn node(gpus: &str) -> NodeTemplate {
    NodeTemplate::new("node", gpus)
}

/// Somebody who may do everything in namespace `default`, and nothing elsewhere.
async fn tenant(cluster: &Cluster) -> User {
    user(cluster, TENANT).await
}

async fn user(cluster: &Cluster, name: &str) -> User {
    let user = cluster.user(name).await;
    let Some(kube) = cluster.kube() else { return user };
    let all = json!(["*"]);
    kube.apply(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "name": "tenant", "namespace": "default" },
        "rules": [{ "apiGroups": all, "resources": all, "verbs": all }],
    }))
    .await;
    let subject = |name: &str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name });
    kube.apply(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "tenant", "namespace": "default" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant" },
        "subjects": [subject(TENANT), subject(NAMESAKE)],
    }))
    .await;
    let own = Selection {
        namespace: Some("default".to_owned()),
        ..Selection::default()
    };
    cluster
        .until_async("the tenant has its rights", async || {
            user.0.list_values(&api::Pod::RESOURCE, &own).await.is_ok()
        })
        .await;
    user
}

/// What only the scheduler writes on pods: the path within metadata, and a value.
fn owned_by_the_scheduler() -> Vec<(&'static str, &'static str, &'static str)> {
    vec![
        ("labels", "runai-gpu-group", "forged"),
        ("labels", "runai-gpu-group/forged", "forged"),
        ("labels", "app", "kai-resource-reservation"),
        ("labels", "app", "scaling-pod"),
        ("annotations", "received-resource-type", "MigInstance"),
        ("annotations", "kai.scheduler/received-gpus", "GPU-1"),
        ("annotations", "run.ai/reserve_for_gpu_index", "GPU-1"),
        ("annotations", "kai.scheduler/last-user", "default/x"),
        ("annotations", "kai.scheduler/numa-placement-predicted", "[]"),
        ("annotations", "kai.scheduler/numa-placement-observed", "[]"),
    ]
}

/// Pods with each of the keys, for any scheduler, and edits of a running pod.
async fn forge(tenant: &User, victim: &str) {
    let by = "kai-pods";
    for (place, key, value) in owned_by_the_scheduler() {
        let attempt = format!("{place} {key}={value}");
        let pod = |scheduler: &str| {
            let pod = PodManifest::new("forged").scheduler(scheduler);
            match place {
                "labels" => pod.label(key, value),
                _ => pod.annotation(key, value),
            }
            .build()
        };
        refused(&attempt, tenant.create(pod("default-scheduler")).await, by);
        let ours = tenant.create(pod(keys::SCHEDULER_NAME)).await;
        assert!(ours.is_err(), "{attempt}: {ours:?}");
        let edit = json!({ "metadata": { place: { key: value } } });
        refused(&attempt, tenant.patch_pod(victim, edit.clone()).await, by);
        let target = Target::of::<api::Pod>("default", victim);
        refused(&attempt, tenant.patch_status(target, edit).await, by);
    }
    for (place, key) in [
        ("labels", "runai-gpu-group"),
        ("annotations", "received-resource-type"),
        ("annotations", "kai.scheduler/received-gpus"),
    ] {
        let edit = json!({ "metadata": { place: { key: null } } });
        refused(&format!("removing {key}"), tenant.patch_pod(victim, edit).await, by);
    }
    for key in [
        "gpu-fraction",
        "gpu-memory",
        "gpu-fraction-num-devices",
        "gpu-fraction-container-name",
        "runai/shared-gpu-configmap",
    ] {
        for value in [json!("0.1"), json!("1"), Value::Null] {
            let edit = json!({ "metadata": { "annotations": { key: value } } });
            let nothing = value.is_null() && key != "gpu-fraction" && key != "runai/shared-gpu-configmap";
            if !nothing {
                refused(&format!("{key}: {value}"), tenant.patch_pod(victim, edit).await, by);
            }
        }
    }
}

#[test]
fn forged_keys_are_refused_also_while_the_webhooks_are_down() {
    scenario(&[node("h100:2")], async |cluster| {
        let tenant = tenant(cluster).await;
        tenant
            .create(PodManifest::new("half").fraction("0.5").build())
            .await
            .unwrap();
        cluster.until_only_running(&["half"]).await;
        let groups = cluster.pod("half").unwrap().gpu_groups().join(",");
        forge(&tenant, "half").await;
        let mut placed = PodManifest::new("placed").build();
        placed["spec"]["nodeName"] = "node".into();
        refused("a node by hand", tenant.create(placed).await, "spec.nodeName");
        tenant
            .patch_pod("half", json!({ "metadata": { "labels": { "team": "red" } } }))
            .await
            .expect("what is not ours is the tenant's");

        cluster.kill_roles().await;
        forge(&tenant, "half").await;
        cluster.start_roles();
        cluster.settle().await;
        assert_eq!(cluster.pod("half").unwrap().gpu_groups().join(","), groups);
        assert_eq!(cluster.running(), ["half"]);
    });
}

#[test]
fn a_debug_container_or_a_new_size_does_not_carry_forged_keys() {
    scenario(&[node("h100:1")], async |cluster| {
        // The embedded server does not guard these parts.
        if cluster.kube().is_none() {
            return;
        }
        let tenant = tenant(cluster).await;
        tenant
            .create(PodManifest::new("half").fraction("0.5").build())
            .await
            .unwrap();
        cluster.until_only_running(&["half"]).await;
        let before = cluster.pod("half").unwrap().gpu_groups().join(",");
        for part in ["half/ephemeralcontainers", "half/resize"] {
            let forged = json!({ "metadata": {
                "labels": { "runai-gpu-group": "forged" }, "annotations": { "received-resource-type": "Regular" },
            } });
            let answer = tenant.patch_pod(part, forged).await;
            if let Ok(pod) = answer {
                assert_eq!(pod["metadata"]["labels"]["runai-gpu-group"], before.as_str(), "{part}");
                assert_eq!(
                    pod["metadata"]["annotations"]["received-resource-type"], "Fraction",
                    "{part}"
                );
            }
        }
        cluster.settle().await;
        assert_eq!(cluster.pod("half").unwrap().gpu_groups().join(","), before);
    });
}

async fn config_map(cluster: &Cluster, name: &str) -> Value {
    let target = Target::of::<ConfigMap>("default", name);
    cluster.client.get_value(target).await.unwrap().unwrap_or_default()
}

/// How the names of a pod's ConfigMaps begin.
fn prefix(cluster: &Cluster, pod: &str) -> String {
    let pod = cluster.pod(pod).unwrap();
    pod.metadata
        .annotations
        .text(keys::SHARED_GPU_CONFIG_MAP)
        .unwrap()
        .to_owned()
}

fn tenants_config_map(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": "default" },
        "data": { "NVIDIA_VISIBLE_DEVICES": "all" },
    })
}

#[test]
fn the_config_map_that_names_a_pods_gpu_is_not_the_tenants() {
    scenario(&[node("h100:2")], async |cluster| {
        let tenant = tenant(cluster).await;
        tenant
            .create(PodManifest::new("half").fraction("0.5").build())
            .await
            .unwrap();
        cluster.until_only_running(&["half"]).await;
        let by = "kai-shared-gpu-config-maps";
        for suffix in ["-0", "-0-evar"] {
            let name = prefix(cluster, "half") + suffix;
            let before = config_map(cluster, &name).await;
            let target = Target::of::<ConfigMap>("default", &name);
            for edit in [
                json!({ "data": { "NVIDIA_VISIBLE_DEVICES": "all" } }),
                json!({ "binaryData": { "LD_PRELOAD": "eA==" } }),
                json!({ "metadata": { "labels": null } }),
                json!({ "metadata": { "ownerReferences": null } }),
            ] {
                let attempt = format!("{name}: {edit}");
                refused(&attempt, tenant.patch(target, edit).await, "");
            }
            refused(&name, tenant.delete::<ConfigMap>("default", &name).await, by);
            assert_eq!(config_map(cluster, &name).await, before);
        }
        let mut marked = tenants_config_map("mine");
        marked["metadata"]["labels"] = json!({ "kai.scheduler/shared-gpu": "true" });
        refused("a forged mark", tenant.create(marked).await, by);

        // Names that the pod will ask for, taken beforehand.
        for name in ["mine-0", "mine-0-evar"] {
            tenant.create(tenants_config_map(name)).await.unwrap();
        }
        let pod = PodManifest::new("early").fraction("0.5");
        let pod = pod.annotation(keys::SHARED_GPU_CONFIG_MAP, "mine");
        tenant.create(pod.build()).await.unwrap();
        cluster.until_only_running(&["early", "half"]).await;
        let map = config_map(cluster, "mine-0").await;
        let devices = map["data"]["NVIDIA_VISIBLE_DEVICES"].as_str().unwrap();
        assert!(devices.contains("GPU-"), "{map}");
        let second = config_map(cluster, "mine-0-evar").await;
        assert_ne!(second["data"]["NVIDIA_VISIBLE_DEVICES"], "all");
        for map in [map, second] {
            assert_eq!(
                (
                    &map["immutable"],
                    &map["metadata"]["labels"]["kai.scheduler/shared-gpu"]
                ),
                (&json!(true), &json!("true"))
            );
        }
    });
}

/// The running pod would find itself on the other pod's GPU at its next restart.
#[test]
fn a_pod_does_not_take_over_the_config_map_of_another() {
    scenario(&[node("h100:2")], async |cluster| {
        let tenant = tenant(cluster).await;
        tenant
            .create(PodManifest::new("large").fraction("0.9").build())
            .await
            .unwrap();
        cluster.until_only_running(&["large"]).await;
        let name = prefix(cluster, "large") + "-0";
        let before = config_map(cluster, &name).await;
        let thief = PodManifest::new("thief").fraction("0.5");
        let thief = thief.annotation(keys::SHARED_GPU_CONFIG_MAP, &prefix(cluster, "large"));
        tenant.create(thief.build()).await.unwrap();
        cluster
            .until("the bind is refused", |cluster| {
                let Some(pod) = cluster.pod("thief") else { return false };
                let bound = pod.condition(api::PodCondition::BOUND);
                bound
                    .and_then(|condition| condition.message.as_deref())
                    .is_some_and(|text| text.contains("tells another pod"))
            })
            .await;
        assert_eq!(config_map(cluster, &name).await, before);
        assert_eq!(cluster.running(), ["large"]);
        tenant.delete::<api::Pod>("default", "thief").await.unwrap();
        cluster
            .until("the thief is gone", |cluster| cluster.pod("thief").is_none())
            .await;
        assert_eq!(config_map(cluster, &name).await, before);
    });
}

/// With webhooks that hide GPUs from those who asked for none.
fn hiding() -> Settings {
    Settings::of_flags(|role| match role {
        "admission" => vec!["--block-nvidia-visible-devices".to_owned()],
        _ => Vec::new(),
    })
    .unwrap()
}

#[test]
fn gpus_named_by_hand_are_not_seen() {
    scenario_with(hiding(), &[node("h100:2")], async |cluster| {
        let tenant = tenant(cluster).await;
        let all = json!([{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" }]);
        let visible = |container: &Value| {
            let env = container["env"].as_array().cloned().unwrap_or_default();
            let mut named = env
                .into_iter()
                .filter(|variable| variable["name"] == "NVIDIA_VISIBLE_DEVICES");
            let first = named.next();
            assert_eq!(named.next(), None, "the kubelet takes the last of several");
            first
        };

        let mut plain = PodManifest::new("plain").build();
        plain["spec"]["containers"][0]["env"] = all.clone();
        plain["spec"]["initContainers"] = json!([{ "name": "first", "image": "example", "env": all }]);
        let plain = tenant.create(plain).await.unwrap();
        for list in ["containers", "initContainers"] {
            assert_eq!(visible(&plain["spec"][list][0]).unwrap()["value"], "void", "{list}");
        }

        // What comes with a ConfigMap or with the image is overruled by a variable of the pod.
        tenant.create(tenants_config_map("gpus")).await.unwrap();
        let mut imported = PodManifest::new("imported").build();
        imported["spec"]["containers"][0]["envFrom"] = json!([{ "configMapRef": { "name": "gpus" } }]);
        let imported = tenant.create(imported).await.unwrap();
        assert_eq!(visible(&imported["spec"]["containers"][0]).unwrap()["value"], "void");

        let reference = json!([{ "name": "NVIDIA_VISIBLE_DEVICES",
            "valueFrom": { "configMapKeyRef": { "name": "gpus", "key": "NVIDIA_VISIBLE_DEVICES" } } }]);
        let mut referring = PodManifest::new("referring").build();
        referring["spec"]["containers"][0]["env"] = reference.clone();
        refused("a reference", tenant.create(referring).await, "NVIDIA_VISIBLE_DEVICES");

        // Who asked for a GPU is told which by the device plugin or the binder, whatever it says itself.
        let mut whole = PodManifest::new("whole").gpus(1).build();
        whole["spec"]["containers"][0]["env"] = all.clone();
        let whole = tenant.create(whole).await.unwrap();
        assert_eq!(visible(&whole["spec"]["containers"][0]), None);
        let mut half = PodManifest::new("half").fraction("0.5").build();
        half["spec"]["containers"][0]["env"] = reference;
        half["spec"]["containers"][0]["envFrom"] = json!([{ "configMapRef": { "name": "gpus" } }]);
        let side = json!({ "name": "side", "image": "example", "env": all });
        half["spec"]["containers"].as_array_mut().unwrap().push(side);
        let half = tenant.create(half).await.unwrap();
        let source = visible(&half["spec"]["containers"][0]).unwrap()["valueFrom"]["configMapKeyRef"]["name"].clone();
        assert!(source.as_str().unwrap().contains("-shared-gpu-0"), "{source}");
        assert_eq!(visible(&half["spec"]["containers"][1]).unwrap()["value"], "void");

        cluster.until_running(4).await;
        let debug = json!({ "spec": { "ephemeralContainers": [{ "name": "debug", "image": "example", "env": all }] } });
        let debugged = tenant.patch_pod("plain/ephemeralcontainers", debug).await.unwrap();
        assert_eq!(
            visible(&debugged["spec"]["ephemeralContainers"][0]).unwrap()["value"],
            "void"
        );
    });
}

fn restricted(name: &str, namespaces: &str) -> Value {
    let mut queue = queue(name, Some("company"), -1.0, -1.0);
    queue["metadata"]["annotations"] = json!({ keys::QUEUE_ALLOWED_NAMESPACES: namespaces });
    queue
}

#[test]
fn another_teams_queue_serves_its_own_namespaces() {
    scenario(&[node("h100:4")], async |cluster| {
        let tenant = tenant(cluster).await;
        cluster.create(queue("company", None, -1.0, -1.0)).await;
        // A group that is there before the queue.
        tenant.create(pod_group("early", "blue", 1)).await.unwrap();
        tenant
            .create(PodManifest::new("early").member_of("early").gpus(1).build())
            .await
            .unwrap();
        cluster.create(restricted("blue", "blue, green")).await;
        cluster.until_waiting("early", "not for namespace default").await;

        let by = "queue blue is not for namespace default";
        let pod = |name: &str| PodManifest::new(name).queue("blue").gpus(1);
        // Webhooks see a queue a moment after it is there.
        cluster
            .until_async("the queue is known", async || {
                tenant.create(pod("probe").build()).await.is_err() || {
                    tenant.delete::<api::Pod>("default", "probe").await.unwrap();
                    false
                }
            })
            .await;
        refused("a pod", tenant.create(pod("pod").build()).await, by);
        refused("a pod group", tenant.create(pod_group("group", "blue", 1)).await, by);
        tenant.create(PodManifest::new("own").gpus(1).build()).await.unwrap();
        cluster.until("own runs", |cluster| cluster.runs("own")).await;
        let label = json!({ "metadata": { "labels": { keys::QUEUE: "blue" } } });
        refused("a pod's label", tenant.patch_pod("own", label).await, by);
        tenant.create(pod_group("later", keys::DEFAULT_QUEUE, 1)).await.unwrap();
        let target = Target::of::<api::PodGroup>("default", "later");
        let change = json!({ "spec": { "queue": "blue" } });
        refused("a pod group's queue", tenant.patch(target, change).await, by);

        tenant.delete::<api::Pod>("default", "early").await.unwrap();
        cluster
            .until("only own is left", |cluster| cluster.pods().len() == 1)
            .await;
    });
}

/// The workload names the queue, and its pods do not.
#[test]
fn a_workload_does_not_bring_its_pods_into_another_teams_queue() {
    scenario(&[node("h100:1")], async |cluster| {
        let tenant = tenant(cluster).await;
        cluster.create(queue("company", None, -1.0, -1.0)).await;
        cluster.create(restricted("blue", "blue")).await;
        let mut template = PodManifest::new("job").gpus(1).template();
        template["spec"]["restartPolicy"] = "Never".into();
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": { "name": "job", "namespace": "default", "labels": { keys::QUEUE: "blue" } },
            "spec": { "template": template },
        });
        tenant.create(job).await.unwrap();
        let why = |cluster: &Cluster| {
            let pod = cluster.pods().into_iter().next()?;
            cluster.reason(pod.metadata.plain_name())
        };
        cluster.until("its pod waits", |cluster| why(cluster).is_some()).await;
        cluster.settle().await;
        assert!(cluster.running().is_empty(), "{}", cluster.picture());
        let target = Target {
            resource: &api::Resource::new("batch", "v1", "Job", "jobs", api::Scope::Namespaced),
            namespace: "default",
            name: "job",
        };
        let deletion = cluster::Deletion::default();
        cluster.client.delete(target, &deletion).await.unwrap();
        cluster
            .until("its pod is gone", |cluster| cluster.pods().is_empty())
            .await;
    });
}

#[test]
fn another_teams_nodes_run_its_own_pods() {
    let mut blue = NodeTemplate::new("blue", "h100:1");
    blue.labels.insert(keys::NODE_POOL.to_owned(), "blue".to_owned());
    scenario(&[blue], async |cluster| {
        let tenant = tenant(cluster).await;
        let mut chosen = PodManifest::new("chosen").gpus(1).build();
        chosen["spec"]["nodeSelector"] = json!({ keys::NODE_POOL: "blue" });
        tenant.create(chosen).await.unwrap();
        tenant
            .create(
                PodManifest::new("labelled")
                    .gpus(1)
                    .label(keys::NODE_POOL, "blue")
                    .build(),
            )
            .await
            .unwrap();
        cluster
            .until("chosen waits", |cluster| cluster.reason("chosen").is_some())
            .await;
        cluster.settle().await;
        assert!(cluster.running().is_empty(), "{}", cluster.picture());
        for pod in ["chosen", "labelled"] {
            tenant.delete::<api::Pod>("default", pod).await.unwrap();
        }
    });
}

#[test]
fn odd_amounts_are_refused_and_huge_ones_wait() {
    scenario(&[node("h100:1")], async |cluster| {
        let tenant = tenant(cluster).await;
        let odd = [
            "NaN", "inf", "-inf", "1e30", "-1", "-0.5", "0", "", "0.5Gi", "0x1p-1", "1,5", "٠.٥",
        ];
        for amount in odd {
            for key in [keys::GPU_FRACTION, keys::GPU_MEMORY] {
                let pod = PodManifest::new("odd").annotation(key, amount);
                refused(&format!("{key}={amount}"), tenant.create(pod.build()).await, key);
            }
            let pod = PodManifest::new("odd").fraction("0.5");
            let pod = pod.annotation(keys::GPU_FRACTION_DEVICES, amount);
            refused(
                &format!("devices {amount}"),
                tenant.create(pod.build()).await,
                keys::GPU_FRACTION_DEVICES,
            );
        }
        let nobody = PodManifest::new("odd")
            .fraction("0.5")
            .annotation(keys::GPU_FRACTION_CONTAINER, "nobody");
        refused(
            "no such container",
            tenant.create(nobody.build()).await,
            keys::GPU_FRACTION_CONTAINER,
        );
        for (key, value) in [
            (keys::GPU_FRACTION, "1"),
            (keys::GPU_FRACTION, "2"),
            (keys::GPU_MEMORY, "0.5"),
        ] {
            let pod = PodManifest::new("odd").annotation(key, value);
            refused(&format!("{key}={value}"), tenant.create(pod.build()).await, key);
        }
        let both = PodManifest::new("odd").fraction("0.5").gpus(1);
        refused(
            "a part and a whole",
            tenant.create(both.build()).await,
            keys::GPU_FRACTION,
        );

        for (number, amount) in ["1000000", "9223372036854775807", "1e30"].into_iter().enumerate() {
            let mut pod = PodManifest::new(&format!("huge-{number}")).build();
            for kind in ["limits", "requests"] {
                pod["spec"]["containers"][0]["resources"][kind]["nvidia.com/gpu"] = amount.into();
            }
            // An API server may have bounds of its own.
            let _ = tenant.create(pod).await;
        }
        tenant.create(PodManifest::new("plain").gpus(1).build()).await.unwrap();
        cluster.until_only_running(&["plain"]).await;
        cluster
            .until("the huge ones say why they wait", |cluster| {
                let huge = cluster
                    .pods()
                    .into_iter()
                    .filter(|pod| pod.metadata.plain_name().starts_with("huge"));
                huge.into_iter()
                    .all(|pod| cluster.reason(pod.metadata.plain_name()).is_some())
            })
            .await;
        for pod in cluster.pods() {
            tenant
                .delete::<api::Pod>("default", pod.metadata.plain_name())
                .await
                .unwrap();
        }
    });
}

#[test]
fn nobody_passes_for_a_helper_of_ours() {
    scenario(&[node("h100:1")], async |cluster| {
        let tenant = tenant(cluster).await;
        let namesake = user(cluster, NAMESAKE).await;
        let reservation = |namespace: &str| {
            let mut pod = PodManifest::new("gpu-reservation-node-abcde")
                .label("app", "kai-resource-reservation")
                .label("runai-gpu-group", "g")
                .annotation("run.ai/reserve_for_gpu_index", "GPU-1")
                .gpus(1)
                .build();
            pod["metadata"]["namespace"] = namespace.into();
            pod["spec"]["serviceAccountName"] = "kai-resource-reservation".into();
            pod
        };
        refused(
            "a reservation pod",
            tenant.create(reservation("default")).await,
            "kai-pods",
        );
        refused(
            "the same by an account called binder",
            namesake.create(reservation("default")).await,
            "kai-pods",
        );
        if cluster.kube().is_some() {
            let theirs = tenant.create(reservation(keys::RESERVATION)).await;
            refused("one among the real ones", theirs, "cannot create");
        }

        // Its name alone means nothing: the pod is charged for its GPU, and its service account is the tenant's.
        let mut named = PodManifest::new("gpu-reservation-node-abcde").gpus(1).build();
        named["spec"]["serviceAccountName"] = "binder".into();
        if cluster.kube().is_some() {
            let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": { "name": "binder", "namespace": "default" } });
            // It may be there from another run.
            let _ = tenant.create(account).await;
        }
        tenant.create(named).await.unwrap();
        cluster.until_only_running(&["gpu-reservation-node-abcde"]).await;
        tenant.create(PodManifest::new("second").gpus(1).build()).await.unwrap();
        cluster.until_waiting("second", "GPU").await;
        tenant.delete::<api::Pod>("default", "second").await.unwrap();
    });
}

#[test]
fn bind_requests_queues_and_what_others_own_are_not_the_tenants() {
    scenario(&[node("h100:1")], async |cluster| {
        let tenant = tenant(cluster).await;
        tenant
            .create(PodManifest::new("half").fraction("0.5").build())
            .await
            .unwrap();
        cluster.until_only_running(&["half"]).await;
        let by = "kai-bind-requests";
        let request = json!({
            "apiVersion": "scheduling.run.ai/v1alpha2", "kind": "BindRequest",
            "metadata": { "name": "forged", "namespace": "default" },
            "spec": { "podName": "forged", "selectedNode": "node", "receivedResourceType": "Fraction",
                      "receivedGPU": { "count": 1, "portion": "0.5" }, "selectedGPUGroups": ["g"] },
        });
        refused("a bind request", tenant.create(request).await, by);
        let target = Target::of::<api::BindRequest>("default", "half");
        let change = json!({ "spec": { "selectedGPUGroups": ["other"] } });
        refused("a change of one", tenant.patch(target, change).await, by);
        let status = json!({ "status": { "phase": "Failed" } });
        refused("its status", tenant.patch_status(target, status).await, by);
        refused(
            "its end",
            tenant.delete::<api::BindRequest>("default", "half").await,
            by,
        );

        tenant.create(pod_group("own", keys::DEFAULT_QUEUE, 1)).await.unwrap();
        let target = Target::of::<api::PodGroup>("default", "own");
        for key in [keys::LAST_START, keys::LAST_EVICTION, keys::STALE_SINCE] {
            let note = json!({ "metadata": { "annotations": { key: "2020-01-01T00:00:00Z" } } });
            refused(key, tenant.patch(target, note).await, "kai-pod-groups");
        }
        let status = json!({ "status": { "resourcesStatus": { "allocated": { "cpu": "1" } } } });
        refused(
            "a pod group's status",
            tenant.patch_status(target, status).await,
            "kai-pod-groups",
        );
        tenant.delete::<api::PodGroup>("default", "own").await.unwrap();

        if cluster.kube().is_some() {
            let mut theirs = pod_group("theirs", keys::DEFAULT_QUEUE, 1);
            theirs["metadata"]["namespace"] = "kai-scheduler".into();
            refused("a pod group elsewhere", tenant.create(theirs).await, "cannot create");
            refused(
                "a queue",
                tenant.create(queue("mine", None, -1.0, -1.0)).await,
                "cannot create",
            );
            let target = Target::of::<api::Queue>("", keys::DEFAULT_QUEUE);
            let change = json!({ "spec": { "priority": 1000 } });
            refused(
                "a change of a queue",
                tenant.patch(target, change).await,
                "cannot patch",
            );
            refused(
                "the end of a queue",
                tenant.delete::<api::Queue>("", keys::DEFAULT_QUEUE).await,
                "cannot delete",
            );
            let target = Target::of::<api::Node>("", "node");
            let label = json!({ "metadata": { "labels": { keys::NODE_GPU_MEMORY: "1000000" } } });
            refused("a node's label", tenant.patch(target, label).await, "cannot patch");
        }
    });
}

/// A role of a namespace may contain `pods/binding` and `pods/status`. With them a tenant could put a pod on any GPU, or make the
/// scheduler believe that a GPU is free.
#[test]
fn a_tenant_neither_binds_pods_nor_says_that_they_ended() {
    scenario(&[node("h100:1")], async |cluster| {
        let tenant = tenant(cluster).await;
        tenant.create(PodManifest::new("whole").gpus(1).build()).await.unwrap();
        cluster.until_only_running(&["whole"]).await;
        tenant
            .create(PodManifest::new("half").fraction("0.5").build())
            .await
            .unwrap();
        cluster.until_waiting("half", "GPU").await;
        let binding = |labels: Value| {
            json!({ "metadata": { "name": "half", "labels": labels },
                    "target": { "apiVersion": "v1", "kind": "Node", "name": "node" } })
        };
        let forged = binding(json!({ "runai-gpu-group": "g" }));
        let forged = tenant.post_to_pod("half", "binding", "Binding", forged).await;
        refused("a binding with our labels", forged, "kai-pod-bindings");
        // Who may bind everywhere may bind; on the embedded server that is everybody.
        if cluster.kube().is_some() {
            let plain = tenant
                .post_to_pod("half", "binding", "Binding", binding(json!({})))
                .await;
            refused("a binding", plain, "only schedulers of the whole cluster");
            let target = Target::of::<api::Pod>("default", "whole");
            for phase in ["Succeeded", "Failed"] {
                let ended = tenant
                    .patch_status(target, json!({ "status": { "phase": phase } }))
                    .await;
                refused(phase, ended, "status.phase");
            }
            // A gate of readiness is the tenant's business.
            let condition = json!({ "type": "example.com/ready", "status": "True" });
            let conditions = cluster.client.get_value(target).await.unwrap().unwrap()["status"]["conditions"].clone();
            let mut conditions = conditions.as_array().cloned().unwrap_or_default();
            conditions.push(condition);
            tenant
                .patch_status(target, json!({ "status": { "conditions": conditions } }))
                .await
                .unwrap();
        }
        cluster.settle().await;
        assert_eq!(cluster.running(), ["whole"]);
        tenant.delete::<api::Pod>("default", "half").await.unwrap();
    });
}
