//! Laws about GPUs themselves: who has which, by what kubelets gave and containers were told. Labels and annotations may be wrong; two
//! pods on one GPU are two pods on one GPU.
//!
//! Nodes on which another scheduler placed pods with GPUs are left out: once it has taken a GPU that pods share, nothing here can help
//! but the end of one of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::kubelet::PodGpus;

use super::Violation;
use super::bound_pod::BoundPod;
use super::state::State;

/// The GPUs of pods, and the nodes that the laws are not about.
#[derive(Debug, Default)]
pub(super) struct GpuAssignments {
    pub(super) pod_gpus: Vec<PodGpus>,
    /// Nodes on which another scheduler's pods had GPUs at some time.
    foreign: BTreeSet<String>,
}

/// The pods on one GPU.
#[derive(Debug, Default)]
struct GpuUsers<'a> {
    /// Those that a kubelet gave it.
    owners: Vec<&'a BoundPod>,
    /// Those that were told that they have a part of it.
    sharers: Vec<&'a BoundPod>,
}

impl GpuAssignments {
    /// The GPUs as they are now.
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

    /// No GPU is both a pod's own and shared by others, and none is shared beyond its memory.
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

    /// In a cluster that has settled, each GPU that pods share is held for them by their group's reservation pod.
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
