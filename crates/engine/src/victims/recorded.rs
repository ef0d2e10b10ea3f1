//! The victims that a search has found so far.

use crate::ids::PodId;

/// Victims of the solution for a smaller number of the gang's pods. The search for more pods starts from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordedVictims {
    pub(crate) pods: Vec<PodId>,
    /// A bit for each pod up to the last victim. A probe asks for every unit that it passes, and a hash would cost more than the bit.
    bits: Vec<u64>,
}

impl RecordedVictims {
    pub(crate) fn new(pods: Vec<PodId>) -> RecordedVictims {
        let words = pods.iter().map(|pod| word(*pod) + 1).max().unwrap_or(0);
        let mut bits = vec![0; words];
        for pod in &pods {
            bits[word(*pod)] |= bit(*pod);
        }
        RecordedVictims { pods, bits }
    }

    pub(crate) fn contains(&self, pod: PodId) -> bool {
        self.bits.get(word(pod)).is_some_and(|word| word & bit(pod) != 0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}

fn word(pod: PodId) -> usize {
    pod.index() / u64::BITS as usize
}

fn bit(pod: PodId) -> u64 {
    1 << (pod.index() % u64::BITS as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contains_the_recorded_pods_and_no_others() {
        let pods = [0, 63, 64, 200].map(PodId::new);
        let recorded = RecordedVictims::new(pods.to_vec());
        let contained: Vec<usize> = (0..1000).filter(|at| recorded.contains(PodId::new(*at))).collect();
        assert_eq!(contained, [0, 63, 64, 200]);
        assert!(!RecordedVictims::default().contains(PodId::new(0)));
    }
}
