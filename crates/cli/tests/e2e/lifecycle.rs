//! Roles that are killed, webhooks that are down, and the uninstallation of kai.

use kai_embedded::kubelet::NodeTemplate;

use crate::harness::manifest::PodManifest;
use crate::harness::scenario;

#[test]
fn roles_that_die_find_everything_as_it_was() {
    scenario(&[NodeTemplate::new("node", "h100:2")], async |cluster| {
        for number in 0..3 {
            cluster
                .create(PodManifest::new(&format!("half-{number}")).fraction("0.5").build())
                .await;
        }
        cluster.kill_roles().await;
        cluster.start_roles();
        cluster.until_running(3).await;
        cluster.kill_roles().await;
        cluster.delete::<kai_api::Pod>("default", "half-0").await.unwrap();
        cluster.start_roles();
        cluster.until_running(2).await;
    });
}

#[test]
fn other_schedulers_pods_do_not_need_our_webhook() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        cluster.kill_roles().await;
        let other = PodManifest::new("other").scheduler("default-scheduler").build();
        cluster.create(other).await;
        let ours = cluster
            .try_create(PodManifest::new("ours").fraction("0.5").build())
            .await;
        assert!(
            ours.is_err(),
            "a part of a GPU without the webhook would run without its GPU"
        );
        cluster.start_roles();
        cluster
            .until("default queues", |cluster| cluster.informers().queues().len() >= 2)
            .await;
    });
}

#[test]
fn nothing_is_left_in_the_way_after_uninstalling() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        cluster.create(PodManifest::new("half").fraction("0.5").build()).await;
        cluster.until_only_running(&["half"]).await;
        cluster.kill_roles().await;
        kai_controllers::admission::uninstall(&cluster.client).await.unwrap();
        cluster.create_soon(PodManifest::new("later").build()).await;
        cluster.settle().await;
        assert_eq!(cluster.running(), ["half"], "what runs goes on");
        cluster.start_roles();
        cluster.until_running(2).await;
    });
}

#[test]
fn a_standby_takes_over_from_a_leader_that_died() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        // On the embedded cluster roles run without leader election.
        if !cluster.start_standby() {
            return;
        }
        cluster.create(PodManifest::new("first").gpus(1).build()).await;
        cluster.until_only_running(&["first"]).await;
        cluster.create(PodManifest::new("second").gpus(1).build()).await;
        cluster.until_waiting("second", "GPU").await;
        cluster.kill_roles().await;
        cluster.delete::<kai_api::Pod>("default", "first").await.unwrap();
        cluster.until_only_running(&["second"]).await;
        cluster.start_roles();
    });
}
