//! The metric of fragmentation of the published experiments, and what it needs of a node.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::{GPU_MILLI, NodeMarks, TracePod};
use crate::tables::{Node, When};

/// The free CPU and GPUs of a node.
#[derive(Clone, Debug)]
pub(super) struct NodeState {
    pub(super) cpu_milli: i64,
    /// The bit of the model of its GPUs.
    pub(super) model: u64,
    /// Free thousandths by GPU. In the order of GPU numbers if the policy knows these.
    pub(super) gpus: SmallVec<[i64; 8]>,
}

impl NodeState {
    /// The state of a node; the GPUs are in no order, and those of whole-GPU pods are left out.
    pub(super) fn of(node: &Node, marks: &NodeMarks) -> NodeState {
        let mut gpus: SmallVec<[i64; 8]> = SmallVec::new();
        gpus.resize(node.free.idle.gpus.max(0) as usize, GPU_MILLI);
        gpus.extend(
            node.gpu_groups
                .iter()
                .map(|group| group.available_mib(node.memory_mib, When::Now)),
        );
        NodeState {
            cpu_milli: node.free.idle.cpu_milli,
            model: marks.model,
            gpus,
        }
    }

    /// The state of a node whose GPU groups have the numbers of their GPUs as ids.
    pub(super) fn numbered(node: &Node, marks: &NodeMarks) -> NodeState {
        let mut state = NodeState::of(node, marks);
        state.gpus.clear();
        state.gpus.resize(node.gpu_units as usize, GPU_MILLI);
        for (number, free) in state.gpus.iter_mut().enumerate() {
            if marks.whole >> number & 1 == 1 {
                *free = 0;
            }
        }
        for group in &node.gpu_groups {
            state.gpus[group.id.bits() as usize] = group.available_mib(node.memory_mib, When::Now);
        }
        state
    }

    /// Free thousandths of all GPUs.
    pub(super) fn free_milli(&self) -> i64 {
        self.gpus.iter().sum()
    }

    /// The numbers of the GPUs that are wholly free.
    pub(super) fn free_gpus(&self) -> impl Iterator<Item = usize> + '_ {
        let gpus = self.gpus.iter().enumerate();
        gpus.filter(|(_, free)| **free == GPU_MILLI).map(|(number, _)| number)
    }

    /// The state after the pod is placed; `gpu` = the GPU of a pod that shares one.
    pub(super) fn with(&self, pod: &TracePod, gpu: Option<usize>) -> NodeState {
        let mut after = self.clone();
        after.cpu_milli -= pod.cpu_milli;
        match gpu {
            Some(gpu) => after.gpus[gpu] -= i64::from(pod.gpu_milli),
            None => {
                for gpu in self.free_gpus().take(pod.gpus as usize) {
                    after.gpus[gpu] = 0;
                }
            }
        }
        after
    }
}

/// A type of pods with its part of the typical ones.
#[derive(Clone, Debug)]
struct TypicalPod {
    cpu_milli: i64,
    gpus: u32,
    gpu_milli: i64,
    /// The bits of the models on which it may run.
    models: u64,
    part: f64,
}

/// The typical pods: the most frequent types until they are 95 % of all pods.
#[derive(Clone, Debug)]
pub(super) struct TypicalPods(Vec<TypicalPod>);

impl TypicalPods {
    /// The typical ones of these pods; `bits` returns the bits of model names.
    pub(super) fn of(pods: &[TracePod], bits: impl Fn(&[String]) -> u64) -> TypicalPods {
        // The text of the models is part of the type, as in the experiment: equal models in another order are another type.
        let mut counts: BTreeMap<(i64, u32, u32, String), (usize, u64)> = BTreeMap::new();
        for pod in pods {
            let key = (pod.cpu_milli, pod.gpu_milli, pod.gpus, pod.models.join("|"));
            counts.entry(key).or_insert((0, bits(&pod.models))).0 += 1;
        }
        let mut types: Vec<_> = counts
            .into_iter()
            .map(|(key, (count, models))| (count, key, models))
            .collect();
        types.sort_by_key(|of| Reverse(of.clone()));
        let mut chosen = Vec::new();
        let mut counted = 0;
        for (count, (cpu_milli, gpu_milli, gpus, _), models) in types {
            if counted as f64 >= 0.95 * pods.len() as f64 {
                break;
            }
            counted += count;
            chosen.push(TypicalPod {
                cpu_milli,
                gpus,
                gpu_milli: i64::from(gpu_milli),
                models,
                part: count as f64,
            });
        }
        // Two divisions, as in the published simulator: the last bit decides ties.
        let all = pods.len() as f64;
        for of in &mut chosen {
            of.part = of.part / all / (counted as f64 / all);
        }
        TypicalPods(chosen)
    }

    /// Thousandths of the node's free GPUs that the next typical pod can't use, in expectation.
    ///
    /// The sums are kept by reason and added up in the order of the published simulator. A score of FGD is 50 only if nothing changes at all, so that
    /// a difference in the last bit would be another decision.
    pub(super) fn fragments(&self, node: &NodeState) -> f64 {
        let free = node.free_milli();
        let mut sums = [0.0; 6];
        for pod in &self.0 {
            let has_cpu = node.cpu_milli >= pod.cpu_milli;
            let (reason, lost) = if pod.gpus == 0 {
                (if has_cpu { 3 } else { 4 }, free)
            } else if pod.models & node.model == 0 {
                (5, free)
            } else {
                let with_room = node.gpus.iter().filter(|gpu| **gpu >= pod.gpu_milli);
                let (mut gpus, mut room) = (0, 0);
                for gpu in with_room {
                    (gpus, room) = (gpus + 1, room + gpu);
                }
                match (gpus >= pod.gpus, has_cpu) {
                    (false, false) => (0, free),
                    (false, true) => (1, free),
                    (true, false) => (2, free),
                    // It fits: only GPUs without room for it are of no use.
                    (true, true) => (1, free - room),
                }
            };
            sums[reason] += pod.part * lost as f64;
        }
        sums.into_iter().sum()
    }
}
