//! ConfigMaps, bind requests, pod groups and queues.

use kai_cluster::Part;
use serde_json::{Value, json};

use crate::cluster::{
    BIND_REQUESTS, BINDER, COLLECTOR, CONFIG_MAPS, Cluster, POD_GROUPS, PODS, QUEUES, TENANT, TOPOLOGIES, pod, queue,
    refused,
};

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
