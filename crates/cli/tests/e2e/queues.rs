//! Quota, fair share, reclaim, preemption, consolidation, and deleted queues.

use kai_api::Object;
use kai_cli::roles::RoleSettings;
use kai_embedded::kubelet::NodeTemplate;
use serde_json::json;

use crate::harness::manifest::{PodManifest, pod_group, queue};
use crate::harness::{Cluster, scenario, scenario_with};

async fn two_teams(cluster: &Cluster) {
    cluster.create(queue("company", None, -1.0, -1.0)).await;
    cluster.create(queue("red", Some("company"), 2.0, -1.0)).await;
    cluster.create(queue("blue", Some("company"), 2.0, -1.0)).await;
}

#[test]
fn a_queue_takes_back_its_quota() {
    scenario(&[NodeTemplate::new("node", "h100:4")], async |cluster| {
        two_teams(cluster).await;
        for number in 0..4 {
            cluster
                .create(PodManifest::new(&format!("red-{number}")).queue("red").gpus(1).build())
                .await;
        }
        cluster.until_running(4).await;
        for number in 0..2 {
            cluster
                .create(
                    PodManifest::new(&format!("blue-{number}"))
                        .queue("blue")
                        .gpus(1)
                        .build(),
                )
                .await;
        }
        cluster
            .until("blue has its quota", |cluster| {
                cluster.runs("blue-0") && cluster.runs("blue-1")
            })
            .await;
        assert_eq!(cluster.running().len(), 4, "{}", cluster.picture());
    });
}

#[test]
fn a_queue_stays_within_its_limit() {
    scenario(&[NodeTemplate::new("node", "h100:4")], async |cluster| {
        cluster.create(queue("company", None, -1.0, -1.0)).await;
        cluster.create(queue("small", Some("company"), 0.0, 1.0)).await;
        cluster
            .create(PodManifest::new("one").queue("small").gpus(1).build())
            .await;
        cluster.until_only_running(&["one"]).await;
        cluster
            .create(PodManifest::new("two").queue("small").gpus(1).build())
            .await;
        cluster.until_waiting("two", "limit").await;
        let large = json!({ "spec": { "resources": { "gpu": { "limit": 2 } } } });
        cluster
            .patch(&kai_api::Queue::RESOURCE, "", "small", large)
            .await
            .unwrap();
        cluster.until_only_running(&["one", "two"]).await;
    });
}

#[test]
fn a_pod_of_higher_priority_takes_the_place_of_a_lower_one() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        cluster
            .create(PodManifest::new("train").gpus(1).priority("train").build())
            .await;
        cluster.until_only_running(&["train"]).await;
        cluster
            .create(PodManifest::new("build").gpus(1).priority("build-preemptible").build())
            .await;
        cluster.until_only_running(&["build"]).await;
    });
}

#[test]
fn pods_move_together_to_make_room_for_a_large_one() {
    let nodes = [NodeTemplate::new("a", "h100:2"), NodeTemplate::new("b", "h100:2")];
    scenario(&nodes, async |cluster| {
        // One pod on each node: fill both nodes, then delete one pod of each.
        let job = |name: &str| PodManifest::new(name).gpus(1).build();
        for name in ["w", "x", "y", "z"] {
            cluster.create(job(name)).await;
        }
        cluster.until_running(4).await;
        let on = |node: &str| {
            let names = ["w", "x", "y", "z"].into_iter();
            let here = names.filter(|name| cluster.node_of(name).as_deref() == Some(node));
            here.collect::<Vec<_>>()
        };
        for node in ["a", "b"] {
            cluster.delete::<kai_api::Pod>("default", on(node)[0]).await.unwrap();
        }
        cluster.until_running(2).await;
        cluster.create(PodManifest::new("large").gpus(2).build()).await;
        cluster
            .until("the large pod runs", |cluster| cluster.runs("large"))
            .await;
    });
}

#[test]
fn pods_of_a_deleted_queue_go_on_and_new_ones_wait() {
    scenario(&[NodeTemplate::new("node", "h100:4")], async |cluster| {
        two_teams(cluster).await;
        cluster
            .create(PodManifest::new("before").queue("red").gpus(1).build())
            .await;
        cluster.until_only_running(&["before"]).await;
        cluster.delete::<kai_api::Queue>("", "red").await.unwrap();
        cluster
            .create(PodManifest::new("after").queue("red").gpus(1).build())
            .await;
        cluster.until_waiting("after", "queue").await;
        cluster.settle().await;
        assert_eq!(cluster.running(), ["before"]);
        cluster.create(queue("red", Some("company"), 2.0, -1.0)).await;
        cluster.until_only_running(&["before", "after"]).await;
    });
}

#[test]
fn a_protected_queue_with_children_is_not_deleted() {
    let settings = RoleSettings::of_flags(|role| match role {
        "admission" => vec!["--protect-parent-queues".to_owned()],
        _ => Vec::new(),
    });
    scenario_with(settings.unwrap(), &[NodeTemplate::new("node", "")], async |cluster| {
        two_teams(cluster).await;
        let refused = cluster.delete::<kai_api::Queue>("", "company").await.unwrap_err();
        assert!(refused.to_string().contains("red"), "{refused}");
    });
}

#[test]
fn the_status_of_queues_adds_up() {
    scenario(&[NodeTemplate::new("node", "h100:4")], async |cluster| {
        two_teams(cluster).await;
        cluster.create(pod_group("gang", "red", 2)).await;
        for number in 0..2 {
            let pod = PodManifest::new(&format!("gang-{number}")).member_of("gang").gpus(1);
            cluster.create(pod.build()).await;
        }
        cluster.until_running(2).await;
        let allocated = |cluster: &Cluster, name: &str| {
            let queue = cluster.informers().queues().get(&kai_api::ObjectKey::new("", name));
            let allocated = queue.and_then(|queue| queue.status().allocated.get("nvidia.com/gpu").cloned());
            allocated.map(|quantity| quantity.to_string())
        };
        for name in ["red", "company"] {
            cluster
                .until(&format!("{name} has 2 GPUs"), |cluster| {
                    allocated(cluster, name).as_deref() == Some("2")
                })
                .await;
        }
    });
}

/// Helm and scripts delete parents first.
#[test]
fn a_parent_queue_goes_before_its_children_whose_work_waits_for_it() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        cluster.create(queue("company", None, -1.0, -1.0)).await;
        cluster.create(queue("team", Some("company"), -1.0, -1.0)).await;
        cluster
            .until("both are known", |cluster| cluster.informers().queues().len() >= 4)
            .await;
        cluster.delete::<kai_api::Queue>("", "company").await.unwrap();
        cluster
            .create(PodManifest::new("orphan").queue("team").gpus(1).build())
            .await;
        cluster
            .until_waiting(
                "orphan",
                "queue team waits for queue company above it, which does not exist",
            )
            .await;
        cluster.create(queue("company", None, -1.0, -1.0)).await;
        cluster.until_only_running(&["orphan"]).await;
    });
}

#[test]
fn a_queue_shows_its_fair_share() {
    scenario(&[NodeTemplate::new("node", "h100:4")], async |cluster| {
        two_teams(cluster).await;
        cluster
            .create(PodManifest::new("red").queue("red").gpus(2).build())
            .await;
        cluster.until_only_running(&["red"]).await;
        let share = |cluster: &Cluster| {
            let queue = cluster.informers().queues().get(&kai_api::ObjectKey::new("", "red"))?;
            queue.status().fair_share.get("nvidia.com/gpu").map(ToString::to_string)
        };
        cluster
            .until("red may have what it asks for", |cluster| {
                share(cluster).as_deref() == Some("2")
            })
            .await;
    });
}
