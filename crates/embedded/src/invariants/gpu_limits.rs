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
