//! Incidents in which running pods lose their reservation pod. The tests check the physical GPUs: those that kubelets allocated to
//! pods, and those in the environment of containers.

use kai_embedded::kubelet::NodeTemplate;
use kai_embedded::server::Selector;

use crate::harness::manifest::PodManifest;
use crate::harness::{Cluster, scenario};
use crate::incidents::{half, name_of, pass, reservations, store};
use crate::other_scheduler::OtherScheduler;

const RESERVATIONS: &str = kai_api::keys::RESERVATION;

/// Runs a pod `half` with a fraction of a GPU. Returns that GPU and the name of its reservation pod.
async fn a_half(cluster: &Cluster) -> (String, String) {
    cluster.create(half("half")).await;
    cluster.until_only_running(&["half"]).await;
    let gpus = cluster.kubelets.shared_gpus_of("default", "half");
    assert_eq!(gpus.len(), 1, "{gpus:?}");
    let reservation = name_of(&reservations(cluster)[0]).to_owned();
    assert_eq!(cluster.kubelets.gpus_of(RESERVATIONS, &reservation), gpus);
    (gpus[0].clone(), reservation)
}

/// Whether the kubelet allocated this GPU to the reservation pod.
fn is_held(cluster: &Cluster, reservation: &str, gpu: &str) -> bool {
    cluster.kubelets.gpus_of(RESERVATIONS, reservation) == [gpu]
}

#[test]
fn a_node_short_of_memory_ends_its_reservations_last() {
    scenario(&[NodeTemplate::new("node", "h100:2")], async |cluster| {
        let (gpu, reservation) = a_half(cluster).await;
        let object = &reservations(cluster)[0];
        assert_eq!(object["status"]["qosClass"], "Guaranteed");
        assert_eq!(object["spec"]["priorityClassName"], "kai-resource-reservation");
        let small = |name: &str| {
            let mut pod = PodManifest::new(name).build();
            let amounts = serde_json::json!({ "cpu": "1", "memory": "1Gi" });
            pod["spec"]["containers"][0]["resources"] = serde_json::json!({ "requests": amounts, "limits": amounts });
            pod
        };
        cluster.create(small("guaranteed")).await;
        cluster.until_only_running(&["guaranteed", "half"]).await;
        // The kubelet evicts in its order: the pod that uses the GPU is last, and its reservation pod is never evicted.
        for expect in ["half", "guaranteed"] {
            let ended = cluster
                .kubelets
                .evict_for_memory_pressure("node")
                .await
                .unwrap()
                .unwrap();
            assert_eq!((&*ended.namespace, &*ended.name), ("default", expect));
            if expect == "guaranteed" {
                break;
            }
            assert!(
                is_held(cluster, &reservation, &gpu),
                "it is held until its user is known to be gone"
            );
        }
        for name in ["half", "guaranteed"] {
            cluster.delete::<kai_api::Pod>("default", name).await.unwrap();
        }
    });
}

#[test]
fn a_reservation_that_its_kubelet_evicts_gets_its_gpu_back_before_anybody_else_gets_it() {
    scenario(&[NodeTemplate::new("node", "h100:2")], async |cluster| {
        for round in 0..4 {
            let (gpu, reservation) = a_half(cluster).await;
            cluster.kubelets.evict(RESERVATIONS, &reservation).await.unwrap();
            let whole = format!("whole-{round}");
            cluster.create(PodManifest::new(&whole).gpus(1).build()).await;
            cluster.until_only_running(&["half", &whole]).await;
            assert_ne!(cluster.kubelets.gpus_of("default", &whole), [&*gpu]);
            cluster
                .until("the GPU is held again", |cluster| is_held(cluster, &reservation, &gpu))
                .await;
            for name in ["half", &whole] {
                cluster.delete::<kai_api::Pod>("default", name).await.unwrap();
            }
            cluster
                .until("all is free", |cluster| {
                    cluster.pods().is_empty() && reservations(cluster).is_empty()
                })
                .await;
        }
    });
}

#[test]
fn a_reservation_that_another_scheduler_preempts_comes_back_when_that_pod_ends() {
    scenario(&[NodeTemplate::new("node", "h100:2")], async |cluster| {
        let (gpu, reservation) = a_half(cluster).await;
        let mut others = OtherScheduler::default();
        let taker = others.preempt(cluster, &reservation).await.unwrap();
        cluster
            .until("the other scheduler's pod runs", |cluster| cluster.runs(&taker))
            .await;
        let taken = cluster.kubelets.gpus_of("default", &taker) == [&*gpu];
        assert!(
            cluster.runs("half"),
            "nobody ends a pod because its reservation is gone"
        );
        // Both GPUs are in use, one of them perhaps twice: kai gives neither to another pod.
        cluster.create(PodManifest::new("whole").gpus(1).build()).await;
        cluster.until_waiting("whole", "GPU").await;
        pass(120).await;
        assert!(!cluster.runs("whole") && cluster.runs("half"));
        if taken {
            let events = store(cluster).list("events", "", &Selector::everything()).unwrap();
            let told = events.objects.iter().map(|event| event.to_value());
            assert!(
                told.into_iter()
                    .any(|event| event["reason"] == "GPUReservationMismatch"),
                "the pod is told that its GPU is not held for it"
            );
        }
        others.leave(cluster).await;
        cluster
            .until("the GPU is held again", |cluster| is_held(cluster, &reservation, &gpu))
            .await;
        cluster.until_only_running(&["half", "whole"]).await;
        assert_ne!(cluster.kubelets.gpus_of("default", "whole"), [gpu]);
    });
}
