//! Invariants of every instant: the pods of a node are promised no more than the node has.

use std::collections::BTreeMap;

use kai_api::keys;
use kai_engine::model::{GpuRequest, PodSpec};

use super::Violation;
use super::bound_pod::BoundPod;
use super::state::NodeState;

/// The requests on a node are within its CPU, memory, GPUs and MIG slices.
pub(super) fn check_node_capacity(node_state: &NodeState, pods: &[&BoundPod], found: &mut Vec<Violation>) {
    let Some((cpu_milli, memory_bytes)) = node_state.allocatable else {
        return;
    };
    let (node, name) = (&node_state.node, node_state.node.metadata.plain_name());
    let sum = |of: &dyn Fn(&PodSpec) -> i64| pods.iter().map(|pod| of(&pod.spec)).sum::<i64>();
    let mut check = |what: &str, used: i64, there: i64| {
        if used > there {
            found.push(Violation(format!(
                "node {name} has {there} {what}, its pods were promised {used}"
            )));
        }
    };
    check("milli-cores", sum(&|pod| pod.requests.cpu_milli), cpu_milli);
    check("bytes of memory", sum(&|pod| pod.requests.memory_bytes), memory_bytes);
    // Capacity instead of allocatable: after a GPU fails, its pods are still there.
    let devices = node.capacity(keys::RESOURCE_GPU).unwrap_or(0);
    // A reservation pod without a GPU has no users yet. A pod of another scheduler counts once the kubelet has admitted it.
    let promised = pods.iter().filter(|pod| match (pod.is_reservation, pod.is_foreign()) {
        (true, _) => pod.reserved.is_some(),
        (false, true) => pod.runs,
        (false, false) => true,
    });
    let whole: i64 = promised.map(|pod| pod.whole_gpus()).sum();
    // Two schedulers may place pods on the same GPU at the same time; the kubelet then rejects one of them.
    let with_gpus = || pods.iter().filter(|pod| pod.whole_gpus() > 0);
    let is_race = with_gpus().any(|pod| pod.is_foreign()) && with_gpus().any(|pod| !pod.runs);
    check("GPUs", if is_race { 0 } else { whole }, devices);
    let mut slices: BTreeMap<&str, i64> = BTreeMap::new();
    for pod in pods {
        if let GpuRequest::Mig { slices: asked, .. } = &pod.spec.requests.gpu {
            asked
                .iter()
                .for_each(|(name, count)| *slices.entry(name).or_default() += count);
        }
    }
    for (slice, used) in slices {
        check(slice, used, node.capacity(slice).unwrap_or(0));
    }
}

/// The GPU shares of one GPU group are within the GPU's memory, and no two reservation pods hold the same GPU.
pub(super) fn check_shared_gpus(node_state: &NodeState, pods: &[&BoundPod], found: &mut Vec<Violation>) {
    let (node, name) = (&node_state.node, node_state.node.metadata.plain_name());
    let Some(memory) = node_state.gpu_memory_mib else {
        return;
    };
    let replicated = node
        .metadata
        .labels
        .text(keys::NODE_GPU_COUNT)
        .and_then(|text| text.parse::<i64>().ok())
        < node.capacity(keys::RESOURCE_GPU);
    let mut by_group: BTreeMap<&str, i64> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !pod.is_reservation) {
        let Some(share) = pod.share_mib(memory) else { continue };
        for group in &pod.spec.gpu_groups {
            *by_group.entry(group).or_default() += share;
        }
    }
    for (group, used) in &by_group {
        if *used > memory {
            found.push(Violation(format!(
                "GPU group {group} on node {name} has {memory} MiB, its pods were promised {used}"
            )));
        }
    }
    let mut by_uuid: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| pod.is_reservation && !pod.terminating) {
        if let Some(uuid) = &pod.reserved {
            by_uuid.entry(uuid).or_default().push(pod.name());
        }
    }
    for (uuid, holders) in by_uuid.iter().filter(|(_, holders)| holders.len() > 1 && !replicated) {
        found.push(Violation(format!(
            "GPU {uuid} on node {name} is held by {}",
            holders.join(" and ")
        )));
    }
    if replicated {
        check_replicated_gpus(name, memory, pods, &by_group, &by_uuid, found);
    }
}

/// GPU groups on replicas of the same GPU share its memory.
fn check_replicated_gpus(
    node: &str,
    memory: i64,
    pods: &[&BoundPod],
    by_group: &BTreeMap<&str, i64>,
    by_uuid: &BTreeMap<&str, Vec<String>>,
    found: &mut Vec<Violation>,
) {
    for (uuid, holders) in by_uuid {
        let groups = pods
            .iter()
            .filter(|pod| pod.is_reservation && holders.contains(&pod.name()));
        let used: i64 = groups
            .filter_map(|pod| pod.group.as_deref())
            .filter_map(|group| by_group.get(group))
            .sum();
        if used > memory {
            found.push(Violation(format!(
                "GPU {uuid} on node {node} has {memory} MiB, pods on its replicas were promised {used}"
            )));
        }
    }
}
