//! Laws about GPUs themselves: who has which, by what kubelets gave and containers were told. Labels and annotations may be wrong; two
//! pods on one GPU are two pods on one GPU.
//!
//! Nodes on which another scheduler placed pods with GPUs are left out: once it has taken a GPU that pods share, nothing here can help
//! but the end of one of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::kubelet::Holding;

use super::state::State;
use super::{Bound, Violation};

/// The GPUs of pods, and the nodes that the laws are not about.
#[derive(Debug, Default)]
pub(super) struct Physical {
    pub(super) holdings: Vec<Holding>,
    /// Nodes on which another scheduler's pods had GPUs at some time.
    foreign: BTreeSet<String>,
}

/// The pods on one GPU.
#[derive(Debug, Default)]
struct Users<'a> {
    /// Those that a kubelet gave it.
    owners: Vec<&'a Bound>,
    /// Those that were told that they have a part of it.
    sharers: Vec<&'a Bound>,
}

impl Physical {
    /// The GPUs as they are now.
    pub(super) fn saw(&mut self, holdings: Vec<Holding>, state: &State) {
        let foreign = state.bound().filter(|pod| pod.is_foreign() && pod.whole_gpus() > 0);
        self.foreign.extend(foreign.map(|pod| pod.node.clone()));
        self.holdings = holdings;
    }

    fn judged(&self) -> impl Iterator<Item = &Holding> {
        self.holdings
            .iter()
            .filter(|holding| !self.foreign.contains(&holding.node))
    }

    /// No GPU is both a pod's own and shared by others, and none is shared beyond its memory.
    pub(super) fn judge(&self, state: &State, found: &mut Vec<Violation>) {
        let mut by_gpu: BTreeMap<(&str, &str), Users<'_>> = BTreeMap::new();
        for holding in self.judged() {
            let Some(pod) = state.pod(&holding.pod, &holding.uid) else {
                continue;
            };
            for gpu in holding.gpus.iter().filter(|_| !pod.is_reservation) {
                by_gpu.entry((&holding.node, gpu)).or_default().owners.push(pod);
            }
            for gpu in &holding.shared {
                by_gpu.entry((&holding.node, gpu)).or_default().sharers.push(pod);
            }
        }
        let names = |pods: &[&Bound]| pods.iter().map(|pod| pod.name()).collect::<Vec<_>>().join(", ");
        for ((node, gpu), Users { owners, sharers }) in &by_gpu {
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
    pub(super) fn judge_settled(&self, state: &State, found: &mut Vec<Violation>) {
        let mut held: BTreeSet<(&str, &str, &str)> = BTreeSet::new();
        for holding in self.judged() {
            let pod = state.pod(&holding.pod, &holding.uid);
            let group = pod
                .filter(|pod| pod.is_reservation)
                .and_then(|pod| pod.group.as_deref());
            let Some(group) = group else { continue };
            held.extend(holding.gpus.iter().map(|gpu| (&*holding.node, &**gpu, group)));
        }
        for holding in self.judged() {
            let Some(pod) = state.pod(&holding.pod, &holding.uid) else {
                continue;
            };
            for gpu in &holding.shared {
                let mut groups = pod.spec.gpu_groups.iter();
                if !pod.leaves && !groups.any(|group| held.contains(&(&*holding.node, &**gpu, &**group))) {
                    found.push(Violation(format!(
                        "pod {} shares GPU {gpu} of node {}, which no reservation pod of its group has",
                        pod.name(),
                        holding.node
                    )));
                }
            }
        }
    }
}
