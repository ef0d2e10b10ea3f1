//! Invariants of the GPUs that pods really use: those that kubelets allocated and those in the containers' environment. Unlike labels
//! and annotations, these can't be wrong.
//!
//! Nodes on which another scheduler placed GPU pods are not checked: if that scheduler takes a shared GPU, kai can't prevent it.

use std::collections::{BTreeMap, BTreeSet};

use crate::kubelet::PodGpus;

use super::Violation;
use super::bound_pod::BoundPod;
use super::state::State;

/// The GPUs of pods, and the nodes that are not checked.
#[derive(Debug, Default)]
pub(super) struct GpuAssignments {
    pub(super) pod_gpus: Vec<PodGpus>,
    /// Nodes on which a pod of another scheduler ever had GPUs.
    foreign: BTreeSet<String>,
}

/// The pods on one GPU.
#[derive(Debug, Default)]
struct GpuUsers<'a> {
    /// Pods to which the kubelet allocated the GPU.
    owners: Vec<&'a BoundPod>,
    /// Pods that share the GPU.
    sharers: Vec<&'a BoundPod>,
}

impl GpuAssignments {
    /// Replaces the GPUs of pods by the present ones.
    pub(super) fn update(&mut self, pod_gpus: Vec<PodGpus>, state: &State) {
        let foreign = state.bound().filter(|pod| pod.is_foreign() && pod.whole_gpus() > 0);
        self.foreign.extend(foreign.map(|pod| pod.node.clone()));
        self.pod_gpus = pod_gpus;
    }

    fn checked(&self) -> impl Iterator<Item = &PodGpus> {
        self.pod_gpus
            .iter()
            .filter(|pod_gpus| !self.foreign.contains(&pod_gpus.node))
    }

    /// No GPU is both allocated to a pod and shared by others, and no GPU is shared beyond its memory.
    pub(super) fn check(&self, state: &State, found: &mut Vec<Violation>) {
        let mut by_gpu: BTreeMap<(&str, &str), GpuUsers<'_>> = BTreeMap::new();
        for pod_gpus in self.checked() {
            let Some(pod) = state.pod(&pod_gpus.pod, &pod_gpus.uid) else {
                continue;
            };
            for gpu in pod_gpus.allocated.iter().filter(|_| !pod.is_reservation) {
                by_gpu.entry((&pod_gpus.node, gpu)).or_default().owners.push(pod);
            }
            for gpu in &pod_gpus.shared {
                by_gpu.entry((&pod_gpus.node, gpu)).or_default().sharers.push(pod);
            }
        }
        let names = |pods: &[&BoundPod]| pods.iter().map(|pod| pod.name()).collect::<Vec<_>>().join(", ");
        for ((node, gpu), GpuUsers { owners, sharers }) in &by_gpu {
            if !owners.is_empty() && !sharers.is_empty() {
                found.push(Violation(format!(
                    "GPU {gpu} of node {node} was given to {} and is shared by {}",
                    names(owners),
                    names(sharers)
                )));
            }
            let memory = state.gpu_memory_mib(node);
            let used: i64 = memory.map_or(0, |memory| sharers.iter().filter_map(|pod| pod.share_mib(memory)).sum());
            if memory.is_some_and(|memory| used > memory) {
                found.push(Violation(format!(
                    "GPU {gpu} of node {node} has {} MiB, and {} use {used} of it",
                    memory.unwrap_or_default(),
                    names(sharers)
                )));
            }
        }
    }

    /// In a settled cluster, the reservation pod of a GPU group holds the GPU that the group's pods share.
    pub(super) fn check_settled(&self, state: &State, found: &mut Vec<Violation>) {
        let mut held: BTreeSet<(&str, &str, &str)> = BTreeSet::new();
        for pod_gpus in self.checked() {
            let pod = state.pod(&pod_gpus.pod, &pod_gpus.uid);
            let group = pod
                .filter(|pod| pod.is_reservation)
                .and_then(|pod| pod.group.as_deref());
            let Some(group) = group else { continue };
            held.extend(pod_gpus.allocated.iter().map(|gpu| (&*pod_gpus.node, &**gpu, group)));
        }
        for pod_gpus in self.checked() {
            let Some(pod) = state.pod(&pod_gpus.pod, &pod_gpus.uid) else {
                continue;
            };
            for gpu in &pod_gpus.shared {
                let mut groups = pod.spec.gpu_groups.iter();
                if !pod.terminating && !groups.any(|group| held.contains(&(&*pod_gpus.node, &**gpu, &**group))) {
                    found.push(Violation(format!(
                        "pod {} shares GPU {gpu} of node {}, which no reservation pod of its group has",
                        pod.name(),
                        pod_gpus.node
                    )));
                }
            }
        }
    }
}
