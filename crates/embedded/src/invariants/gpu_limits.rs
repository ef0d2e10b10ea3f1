//! The law of limits: on a node whose driver limits GPU memory no container with a GPU share ever runs without exactly the limit that its pod
//! was promised, and nothing else is limited; and no pod that requires a limit runs on another node. It compares the driver's record of the container's own cgroup with the pod's object.
//!
//! Limits that the driver has forgotten after the container's start are excused here: the node agent has to report those.

use std::collections::BTreeSet;

use kai_api::{EnforcementTier, keys};

use crate::kubelet::{GpuFacts, LimitedContainer};

use super::Violation;
use super::bound_pod::BoundPod;
use super::state::State;

const MIB: u64 = 1 << 20;

pub(super) fn check(facts: &GpuFacts, state: &State, found: &mut Vec<Violation>) {
    for container in &facts.containers {
        // A pod that the API has no more is about to be stopped.
        if let Some(pod) = state.pod(&container.pod, &container.uid) {
            check_container(container, pod, state, found);
        }
    }
    let known: BTreeSet<&str> = facts.containers.iter().map(|container| &*container.uid).collect();
    for pod_gpus in facts.pod_gpus.iter().filter(|pod_gpus| pod_gpus.runs) {
        let limits = state.node_label(&pod_gpus.node, keys::GPU_ENFORCEMENT) == Some(EnforcementTier::Driver.name());
        if limits && !pod_gpus.shared.is_empty() && !known.contains(&*pod_gpus.uid) {
            found.push(Violation(format!(
                "pod {} shares a GPU of node {}, whose driver knows nothing of its container",
                pod_gpus.pod, pod_gpus.node
            )));
        }
    }
    found.extend(facts.stray_limits.iter().cloned().map(Violation));
}

fn check_container(container: &LimitedContainer, pod: &BoundPod, state: &State, found: &mut Vec<Violation>) {
    match container.tier {
        EnforcementTier::Driver => {}
        EnforcementTier::Mps | EnforcementTier::Watch | EnforcementTier::None => {
            if pod.requires_limit {
                found.push(Violation(format!(
                    "pod {} requires a limit of its GPU memory, and runs on node {}, which limits none",
                    container.pod, container.node
                )));
            }
            return;
        }
    }
    let memory = state.gpu_memory_mib(&container.node);
    let promised = pod.promised_mib.or_else(|| pod.share_mib(memory?));
    let Some(promised) = promised.and_then(|mib| u64::try_from(mib.min(memory?)).ok()) else {
        return;
    };
    for (gpu, limit) in &container.limits {
        if limit.is_none() && container.lost.contains(gpu) {
            continue;
        }
        if *limit != Some(promised * MIB) {
            let has = limit.map_or_else(|| "no limit".to_owned(), |bytes| format!("a limit of {bytes} bytes"));
            found.push(Violation(format!(
                "pod {} runs on node {}, which limits GPU memory, with {has} on GPU {gpu}; it was promised {promised} MiB",
                container.pod, container.node
            )));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::invariants::PodsToLeave;
    use kai_api::{ObjectKey, ReservationPods};
    use serde_json::{Value, json};

    use super::*;
    use crate::kubelet::PodGpus;

    /// A pod with half of a GPU of 80,000 MiB, on a node that limits GPU memory.
    fn state(annotations: Value) -> State {
        let mut state = State::new(&ReservationPods::default(), PodsToLeave::default());
        let node: kai_api::Node = serde_json::from_value(json!({ "metadata": { "name": "n", "labels": {
            "nvidia.com/gpu.memory": "80000", "kai.scheduler/gpu-enforcement": "driver",
        } } }))
        .unwrap();
        state.apply_node(ObjectKey::new("", "n"), Some(&Arc::new(node)));
        let mut pod = json!({
            "metadata": { "name": "p", "namespace": "default", "uid": "u", "annotations": annotations },
            "spec": { "schedulerName": "kai-scheduler", "nodeName": "n", "containers": [{ "name": "main" }] },
            "status": { "phase": "Running" },
        });
        pod["metadata"]["annotations"]["gpu-fraction"] = "0.5".into();
        let pod: kai_api::Pod = serde_json::from_value(pod).unwrap();
        state.apply_pod(ObjectKey::new("default", "p"), Some(&Arc::new(pod)));
        state
    }

    fn container(limit_mib: Option<u64>) -> LimitedContainer {
        LimitedContainer {
            pod: ObjectKey::new("default", "p"),
            uid: "u".to_owned(),
            node: "n".to_owned(),
            tier: EnforcementTier::Driver,
            limits: vec![("GPU-1".to_owned(), limit_mib.map(|mib| mib * MIB))],
            lost: BTreeSet::new(),
            noticeable_for: None,
        }
    }

    fn found(containers: Vec<LimitedContainer>, annotations: Value) -> Vec<String> {
        let facts = GpuFacts {
            pod_gpus: vec![PodGpus {
                pod: ObjectKey::new("default", "p"),
                uid: "u".to_owned(),
                node: "n".to_owned(),
                allocated: Vec::new(),
                shared: vec!["GPU-1".to_owned()],
                runs: true,
            }],
            containers,
            stray_limits: Vec::new(),
        };
        let mut found = Vec::new();
        check(&facts, &state(annotations), &mut found);
        found.into_iter().map(|violation| violation.0).collect()
    }

    #[test]
    fn a_container_has_the_limit_of_its_pod_and_no_other() {
        let with = |limit_mib: Option<u64>, annotations: Value| found(vec![container(limit_mib)], annotations);
        assert_eq!(with(Some(40_000), json!({})), Vec::<String>::new(), "its request");
        let promised = || json!({ "kai.scheduler/gpu-limits": r#"{"container":"main","memoryMiB":60000}"# });
        assert_eq!(
            with(Some(60_000), promised()),
            Vec::<String>::new(),
            "what the binder promised"
        );
        for (limit_mib, annotations, word) in [
            (None, json!({}), "with no limit"),
            (Some(40_001), json!({}), "was promised 40000 MiB"),
            (Some(40_000), promised(), "was promised 60000 MiB"),
        ] {
            let found = with(limit_mib, annotations);
            assert!(found.len() == 1 && found[0].contains(word), "{limit_mib:?}: {found:?}");
        }
    }

    #[test]
    fn only_a_limit_that_was_lost_may_be_missing() {
        let lost = |limit_mib: Option<u64>| LimitedContainer {
            lost: BTreeSet::from(["GPU-1".to_owned()]),
            ..container(limit_mib)
        };
        assert!(found(vec![lost(None)], json!({})).is_empty());
        assert_eq!(
            found(vec![lost(Some(1))], json!({})).len(),
            1,
            "another limit is no lost one"
        );
    }

    #[test]
    fn a_container_that_the_driver_does_not_know_is_found() {
        assert!(found(Vec::new(), json!({}))[0].contains("knows nothing of its container"));
    }

    #[test]
    fn a_pod_that_requires_a_limit_does_not_run_without_a_tier() {
        let unlimited = LimitedContainer {
            tier: EnforcementTier::None,
            ..container(None)
        };
        assert!(found(vec![unlimited.clone()], json!({})).is_empty());
        let required = json!({ "kai.scheduler/gpu-enforcement": "required" });
        assert!(found(vec![unlimited], required)[0].contains("requires a limit"));
    }
}
