//! Limits of GPU memory when agents, drivers and runtimes fail. The law of limits (`kai_embedded::invariants`) is checked after every change;
//! these tests also check that containers start, or do not, and that their owners are told.

use kai_embedded::kubelet::{AUDIT_PERIOD, Enforce, LimitFault, MemoryLimitFaults, NodeTemplate};
use kai_embedded::server::Selector;
use serde_json::Value;

use crate::harness::manifest::PodManifest;
use crate::harness::{Cluster, scenario};
use crate::incidents::{half, pass, store};

const MIB: u64 = 1 << 20;

/// A node with GPUs whose driver limits GPU memory.
fn able(name: &str, gpus: &str) -> NodeTemplate {
    NodeTemplate {
        driver: Some("615.71.09".to_owned()),
        ..NodeTemplate::new(name, gpus)
    }
}

/// The limits in the driver's record for a pod's container; empty if it does not run.
fn limits_of(cluster: &Cluster, pod: &str) -> Vec<Option<u64>> {
    let containers = cluster.kubelets.gpu_facts().containers;
    let own = containers.into_iter().filter(|container| *container.pod.name == *pod);
    own.flat_map(|container| container.limits)
        .map(|(_, limit)| limit)
        .collect()
}

/// Half of an H100.
fn half_of_an_h100(cluster: &Cluster) -> Option<u64> {
    let (_, mib) = cluster.kubelets.gpus_on("node")[0];
    u64::try_from(mib / 2).ok().map(|mib| mib * MIB)
}

/// Whether an event with this reason is about the pod.
fn is_told(cluster: &Cluster, pod: &str, reason: &str) -> bool {
    let events = store(cluster)
        .list("events", "default", &Selector::everything())
        .unwrap();
    let told = |event: &Value| event["reason"] == reason && event["involvedObject"]["name"] == pod;
    events.objects.iter().any(|event| told(&event.to_value()))
}

/// The message of the container that does not start.
fn message(cluster: &Cluster, pod: &str) -> String {
    let pod = store(cluster).get("pods", "default", pod).unwrap().to_value();
    let message = &pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"];
    message.as_str().unwrap_or_default().to_owned()
}

async fn inject(cluster: &Cluster, fault: LimitFault) {
    cluster.kubelets.inject("node", &fault).await.unwrap();
}

fn tier(cluster: &Cluster) -> String {
    let node = store(cluster).get("nodes", "", "node").unwrap().to_value();
    node["metadata"]["labels"][kai_api::keys::GPU_ENFORCEMENT]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn containers_have_the_limit_of_their_share_and_have_it_again_after_a_restart() {
    scenario(&[able("node", "h100:2")], async |cluster| {
        assert_eq!(tier(cluster), "driver");
        cluster.create(half("a")).await;
        cluster.create(half("b")).await;
        cluster
            .create(PodManifest::new("small").gpu_memory_mib("10000").build())
            .await;
        cluster.until_only_running(&["a", "b", "small"]).await;
        let half = half_of_an_h100(cluster);
        assert_eq!(limits_of(cluster, "a"), [half]);
        assert_eq!(limits_of(cluster, "b"), [half]);
        assert_eq!(limits_of(cluster, "small"), [Some(10_000 * MIB)]);
        cluster.kubelets.restart_containers("default", "a");
        assert_eq!(limits_of(cluster, "a"), [], "it is being started");
        cluster
            .until("it runs again", |cluster| limits_of(cluster, "a") == [half])
            .await;
    });
}

#[test]
fn an_agent_that_dies_between_preparation_and_hook_costs_no_limit() {
    scenario(&[able("node", "h100:1")], async |cluster| {
        inject(cluster, LimitFault::SlowRuntime(10)).await;
        cluster.create(half("a")).await;
        cluster
            .until("it is bound", |cluster| cluster.node_of("a").is_some())
            .await;
        pass(3).await;
        inject(cluster, LimitFault::AgentDies).await;
        cluster.until_only_running(&["a"]).await;
        assert_eq!(limits_of(cluster, "a"), [half_of_an_h100(cluster)]);
        // Without the agent no further container starts.
        cluster.create(half("b")).await;
        cluster
            .until("it is refused", |cluster| {
                message(cluster, "b").contains("does not answer")
            })
            .await;
        assert!(!cluster.runs("b"));
        inject(cluster, LimitFault::AgentStarts).await;
        cluster.until_only_running(&["a", "b"]).await;
    });
}

#[test]
fn a_pod_that_is_evicted_while_its_container_starts_does_not_run_afterwards() {
    scenario(&[able("node", "h100:1")], async |cluster| {
        inject(cluster, LimitFault::SlowRuntime(10)).await;
        cluster.create(half("a")).await;
        cluster
            .until("it is bound", |cluster| cluster.node_of("a").is_some())
            .await;
        pass(3).await;
        cluster.kubelets.evict("default", "a").await.unwrap();
        pass(20).await;
        assert!(!cluster.runs("a"), "a terminal phase stays");
        assert_eq!(limits_of(cluster, "a"), []);
        // Its half is free.
        inject(cluster, LimitFault::SlowRuntime(0)).await;
        cluster.create(half("b")).await;
        cluster.create(half("c")).await;
        cluster.until_only_running(&["b", "c"]).await;
    });
}

#[test]
fn a_driver_that_is_away_for_a_while_costs_no_limit() {
    scenario(&[able("node", "h100:2")], async |cluster| {
        cluster.create(half("a")).await;
        cluster.until_only_running(&["a"]).await;
        for fault in [LimitFault::DriverGoes, LimitFault::AgentStarts] {
            inject(cluster, fault).await;
            assert_eq!(tier(cluster), "driver", "the last decision stays");
        }
        cluster.create(half("b")).await;
        cluster
            .until("it is refused", |cluster| {
                message(cluster, "b").contains("DRIVER_NOT_LOADED")
            })
            .await;
        pass(AUDIT_PERIOD.as_secs() * 4).await;
        assert!(!cluster.runs("b"));
        assert!(!is_told(cluster, "a", "GPULimitMissing"), "the driver did not say so");
        assert_eq!(tier(cluster), "driver", "an absent driver refuses nothing");
        inject(cluster, LimitFault::DriverReturns).await;
        cluster.until_only_running(&["a", "b"]).await;
        let half = half_of_an_h100(cluster);
        assert_eq!(
            (limits_of(cluster, "a"), limits_of(cluster, "b")),
            (vec![half], vec![half])
        );
    });
}

#[test]
fn a_driver_that_refuses_or_lies_starts_no_container() {
    scenario(&[able("node", "h100:1")], async |cluster| {
        let lie = MemoryLimitFaults {
            read_back_hard_mib: Some(1),
            ..MemoryLimitFaults::default()
        };
        inject(cluster, LimitFault::Driver(lie)).await;
        cluster.create(half("a")).await;
        cluster
            .until("it is refused", |cluster| {
                message(cluster, "a").contains("took the limits, but then reported")
            })
            .await;
        assert!(!cluster.runs("a"));
        inject(cluster, LimitFault::Driver(MemoryLimitFaults::default())).await;
        cluster.until_only_running(&["a"]).await;
        assert_eq!(limits_of(cluster, "a"), [half_of_an_h100(cluster)]);
    });
}

#[test]
fn a_node_whose_driver_keeps_refusing_gives_up_its_tier() {
    scenario(&[able("node", "h100:2")], async |cluster| {
        let refusal = MemoryLimitFaults {
            set_code: Some(4),
            ..MemoryLimitFaults::default()
        };
        inject(cluster, LimitFault::Driver(refusal)).await;
        for pod in ["a", "c"] {
            cluster.create(half(pod)).await;
        }
        pass(120).await;
        assert_eq!(tier(cluster), "driver", "two pods, however often they are tried");
        cluster.create(half("d")).await;
        cluster
            .until("the node gives up", |cluster| tier(cluster) == "none")
            .await;
        assert!(
            is_told(cluster, "a", "GPULimitFailed"),
            "its owner knows why it did not start"
        );
        // Nobody promised a limit to a pod that is bound now.
        cluster.create(half("b")).await;
        cluster.until_only_running(&["b"]).await;
        assert_eq!(limits_of(cluster, "b"), [None]);
        pass(120).await;
        cluster.until_only_running(&["b"]).await;
        cluster.kubelets.heal_limits("node").await.unwrap();
        assert_eq!(tier(cluster), "driver");
        cluster.until_only_running(&["a", "b", "c", "d"]).await;
        let half = half_of_an_h100(cluster);
        assert_eq!(limits_of(cluster, "a"), [half], "what it was promised");
    });
}

#[test]
fn limits_that_the_driver_forgets_are_reported_in_time() {
    scenario(&[able("node", "h100:2")], async |cluster| {
        cluster.create(half("a")).await;
        cluster.until_only_running(&["a"]).await;
        pass(40).await;
        assert!(!is_told(cluster, "a", "GPULimitMissing"));
        for gpu in 0..2 {
            inject(cluster, LimitFault::Teardown(gpu)).await;
        }
        assert_eq!(limits_of(cluster, "a"), [None]);
        pass(AUDIT_PERIOD.as_secs() + 5).await;
        assert!(is_told(cluster, "a", "GPULimitMissing"));
        cluster.kubelets.restart_containers("default", "a");
        let half = half_of_an_h100(cluster);
        cluster
            .until("it is limited again", |cluster| limits_of(cluster, "a") == [half])
            .await;
    });
}

#[test]
fn a_node_that_limits_no_more_says_so_and_keeps_what_it_limits() {
    scenario(&[able("node", "h100:1")], async |cluster| {
        cluster.create(half("a")).await;
        cluster.until_only_running(&["a"]).await;
        inject(cluster, LimitFault::Enforce(Enforce::None)).await;
        assert_eq!(tier(cluster), "none");
        cluster.create(half("b")).await;
        cluster.until_only_running(&["a", "b"]).await;
        assert_eq!(limits_of(cluster, "a"), [half_of_an_h100(cluster)]);
        assert_eq!(limits_of(cluster, "b"), [None]);
    });
}
