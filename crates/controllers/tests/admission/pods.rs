//! What a tenant may write on pods, with the webhooks and by the policies alone.

use kai_api::GpuSharingMode;
use kai_cluster::{Client, Part, Target};
use kai_controllers::admission::{Feature, Settings};
use kai_embedded::server::{Options, Server};
use serde_json::{Value, json};

use crate::cluster::{BINDER, Cluster, PODS, TENANT, foreign, pod, refused};

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
        (json!({request("main"): "4Gi", limit: "1Gi"}), "is below the request"),
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

/// Trust is by namespace, so accounts that no role has are there too: the operator's, and those of strangers.
#[tokio::test]
async fn a_policy_lets_only_the_binder_write_gpus_and_limits() {
    let cluster = Cluster::start(|_| {}).await;
    let words = "only the binder's account writes this";
    let half = |name: &str| pod(name, json!({}), json!({"gpu-fraction": "0.5"}));
    cluster.create(TENANT, &PODS, half("half")).await.unwrap();
    let keys = [
        "kai.scheduler/gpu-limits",
        "kai.scheduler/gpu-enforcement-tier",
        "kai.scheduler/received-gpus",
        "received-resource-type",
        "nvidia.com/container.main.gpus.devices",
    ];
    let all = |value: Value| -> Value {
        let annotations: serde_json::Map<String, Value> =
            keys.iter().map(|key| ((*key).to_owned(), value.clone())).collect();
        json!({"metadata": {"annotations": annotations}})
    };
    let accounts = [
        "kai-scheduler:scheduler",
        "kai-scheduler:controllers",
        "kai-scheduler:admission",
        "kai-scheduler:kai-operator",
        "kai-scheduler:kai-node-agent",
        "kai-scheduler:default",
        "kai-resource-reservation:kai-resource-reservation",
        "kai-resource-reservation:default",
    ]
    .map(|account| format!("system:serviceaccount:{account}"));
    for round in ["unbound", "bound"] {
        for account in &accounts {
            for key in keys {
                let change = json!({"metadata": {"annotations": {key: "forged"}}});
                for part in [Part::Object, Part::Status] {
                    let changed = cluster.change_part(account, &PODS, "half", part, change.clone()).await;
                    refused(changed, words);
                }
                // The API server copies the annotations of a Binding to the pod.
                let binding = json!({
                    "apiVersion": "v1", "kind": "Binding",
                    "metadata": {"name": "half", "namespace": "team-a", "annotations": {key: "forged"}},
                    "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
                });
                let pod = Target::of::<kai_api::Pod>("team-a", "half");
                let bound = cluster.client(account).post_to(pod, "binding", &binding).await;
                refused(bound.map_err(|error| error.to_string()), words);
                let mut forged = half("forged");
                forged["metadata"]["annotations"][key] = "forged".into();
                refused(cluster.create(account, &PODS, forged).await, words);
            }
            if round == "bound" {
                refused(cluster.change(account, &PODS, "half", all(Value::Null)).await, words);
            }
        }
        cluster
            .change(BINDER, &PODS, "half", all("GPU-1".into()))
            .await
            .unwrap();
    }
    let all_roles = "system:serviceaccount:kai-scheduler:kai-all";
    cluster
        .change(all_roles, &PODS, "half", all("GPU-2".into()))
        .await
        .unwrap();
    let label = json!({"metadata": {"labels": {"team": "a"}}});
    cluster.change(&accounts[0], &PODS, "half", label).await.unwrap();
    cluster.create(&accounts[5], &PODS, half("plain")).await.unwrap();
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

/// Pods whose GPU share is for the init container `load`, and that require a limit.
fn loads(name: &str) -> [Value; 2] {
    let named = json!({"gpu-fraction": "0.5", "gpu-fraction-container-name": "load"});
    let by_key = json!({"nvidia.com/container.load.gpu-memory.request": "4Gi"});
    [named, by_key].map(|mut annotations| {
        annotations["kai.scheduler/gpu-enforcement"] = "required".into();
        let mut pod = pod(name, json!({}), annotations);
        pod["spec"]["initContainers"] = json!([{"name": "load", "image": "i"}]);
        pod
    })
}

#[tokio::test]
async fn a_limit_that_nothing_can_hold_is_not_required() {
    const ENDS: &str = "the GPU memory of an init container that ends can't be limited";
    let cluster = Cluster::start(|_| {}).await;
    for pod in loads("a") {
        refused(cluster.create(TENANT, &PODS, pod).await, ENDS);
    }
    // An installation may have the policies alone.
    let server = Server::new(Options::default());
    for object in kai_controllers::admission::admission_policies(&Settings::default()) {
        server.store().create(object).unwrap();
    }
    let client = Client::in_process(server.service_as(TENANT));
    for (at, pod) in loads("b").into_iter().enumerate() {
        let error = client.create(&PODS, "default", pod.clone()).await.unwrap_err();
        refused(Err::<(), _>(error.to_string()), ENDS);
        let changed = |change: fn(&mut Value)| {
            let mut pod = pod.clone();
            change(&mut pod);
            pod
        };
        let fine = [
            changed(|pod| pod["spec"]["initContainers"][0]["restartPolicy"] = "Always".into()),
            changed(|pod| pod["metadata"]["annotations"]["kai.scheduler/gpu-enforcement"] = "preferred".into()),
            changed(|pod| pod["spec"]["initContainers"][0]["name"] = "other".into()),
            changed(|pod| pod["spec"]["initContainers"] = Value::Null),
            foreign(pod.clone()),
        ];
        for (case, mut pod) in fine.into_iter().enumerate() {
            pod["metadata"]["name"] = format!("fine-{at}-{case}").into();
            client.create(&PODS, "default", pod).await.unwrap();
        }
    }
}
