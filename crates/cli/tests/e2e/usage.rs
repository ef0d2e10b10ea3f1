//! Usage over time: a queue that used much yesterday yields to one that did not, and nobody waits for a Prometheus that is away.

use kai_api::{ConfigMap, Object};
use kai_cli::roles::RoleSettings;
use kai_cluster::Target;
use kai_embedded::kubelet::NodeTemplate;
use serde_json::{Value, json};

use crate::harness::manifest::{PodManifest, queue};
use crate::harness::{Cluster, scenario_with};

const DAY_MILLIS: i64 = 24 * 3_600_000;

/// The roles with a scheduler of this configuration. The file is read at once.
fn roles(config: Value) -> RoleSettings {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config.to_string()).unwrap();
    let flag = format!("--scheduler-conf={}", file.path().display());
    let settings = RoleSettings::of_flags(|role| match role {
        "scheduler" => vec![flag.clone()],
        _ => Vec::new(),
    });
    settings.unwrap()
}

fn embedded() -> RoleSettings {
    roles(json!({ "usageDBConfig": { "clientType": "embedded", "usageParams": { "fetchInterval": "1s" } } }))
}

/// Two queues without a quota.
async fn two_teams(cluster: &Cluster) {
    cluster.create(queue("company", None, -1.0, -1.0)).await;
    for team in ["red", "blue"] {
        cluster.create(queue(team, Some("company"), 0.0, -1.0)).await;
    }
}

async fn submit(cluster: &Cluster, team: &str) {
    for number in 0..4 {
        let pod = PodManifest::new(&format!("{team}-{number}")).queue(team).gpus(1);
        cluster.create(pod.build()).await;
    }
}

fn running(cluster: &Cluster, team: &str) -> usize {
    cluster.running().iter().filter(|name| name.starts_with(team)).count()
}

/// The history of a day, which ended a minute ago, in which red had nearly all GPUs.
fn yesterday(cluster: &Cluster) -> String {
    let end = cluster.clock().now().as_millisecond() - 60_000;
    let span = json!({ "start": end - DAY_MILLIS, "end": end, "weight": DAY_MILLIS, "capacity": [8000, 1_u64 << 36, 4_000_000],
        "queues": { "red": [0, 0, 900_000], "company": [0, 0, 900_000] } });
    json!({ "version": 1, "spans": [span] }).to_string()
}

async fn saved(cluster: &Cluster) -> Option<Value> {
    let target = Target::of::<ConfigMap>("kai-scheduler", "kai-usage");
    cluster.client.get_value(target).await.unwrap()
}

#[test]
fn a_queue_that_used_much_yesterday_yields_to_one_that_did_not() {
    scenario_with(embedded(), &[NodeTemplate::new("node", "h100:4")], async |cluster| {
        cluster.kill_roles().await;
        let _ = cluster.delete::<ConfigMap>("kai-scheduler", "kai-usage").await;
        let map = json!({ "apiVersion": "v1", "kind": ConfigMap::RESOURCE.kind, "metadata": { "name": "kai-usage", "namespace": "kai-scheduler" },
            "data": { "default": yesterday(cluster) } });
        cluster.create(map).await;
        cluster.start_roles();
        cluster.until_queues().await;
        cluster.until_guarded().await;
        two_teams(cluster).await;
        submit(cluster, "red").await;
        cluster
            .until("red runs alone", |cluster| running(cluster, "red") == 4)
            .await;
        submit(cluster, "blue").await;
        cluster
            .until("blue has more than half", |cluster| running(cluster, "blue") >= 3)
            .await;
        let written = async || {
            saved(cluster)
                .await
                .is_some_and(|map| map["data"]["default"] != yesterday(cluster))
        };
        cluster.until_async("the history goes on", written).await;
    });
}

#[test]
fn the_history_is_kept_in_an_object_that_the_scheduler_makes() {
    scenario_with(embedded(), &[NodeTemplate::new("node", "h100:4")], async |cluster| {
        two_teams(cluster).await;
        submit(cluster, "red").await;
        let of_red = async || {
            let map = saved(cluster).await;
            map.is_some_and(|map| {
                map["data"]["default"]
                    .as_str()
                    .is_some_and(|text| text.contains("\"red\""))
            })
        };
        cluster.until_async("the history has the queue", of_red).await;
        // The embedded cluster has no Roles, and with them no owner.
        if cluster.kube().is_some() {
            let map = saved(cluster).await.unwrap();
            let owner = &map["metadata"]["ownerReferences"][0];
            let expect = (&json!("Role"), &json!("kai-leader-election"));
            assert_eq!((&owner["kind"], &owner["name"]), expect, "{map}");
        }
    });
}

#[test]
fn nobody_waits_for_a_prometheus_that_is_away() {
    // A port below 1024 that no machine of a test serves.
    let away = json!({ "usageDBConfig": { "clientType": "prometheus", "connectionString": "http://127.0.0.1:1" } });
    scenario_with(roles(away), &[NodeTemplate::new("node", "h100:4")], async |cluster| {
        two_teams(cluster).await;
        submit(cluster, "red").await;
        cluster
            .until("red runs alone", |cluster| running(cluster, "red") == 4)
            .await;
        submit(cluster, "blue").await;
        cluster
            .until("each has its half", |cluster| running(cluster, "blue") == 2)
            .await;
    });
}
