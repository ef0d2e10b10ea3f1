//! The GPUs of a pod, for its view.

use crate::cluster::Cluster;
use crate::ids::PodId;
use crate::model::Gpus;
use crate::report::PodGpus;
use crate::tables::GpuKind;

impl Cluster {
    /// The GPUs that a pod holds or requests. A fraction has its MiB once the pod has a node with known GPU memory.
    pub(super) fn gpus_of(&self, pod: PodId) -> PodGpus<'_> {
        let row = self.ledger.pod(pod);
        let shape = self.ledger.shape(row.shape);
        let memory_mib = row.placement.node.and_then(|node| {
            let node = self.ledger.node(node);
            node.memory_known.then_some(node.memory_mib)
        });
        match shape.gpu {
            GpuKind::None => PodGpus::None,
            GpuKind::Whole { devices } => PodGpus::Whole { devices },
            GpuKind::Fraction { fraction, devices } => PodGpus::Share {
                devices,
                fraction: Some(fraction),
                mib: memory_mib.map(|memory| fraction.of_mib(memory)),
            },
            GpuKind::Memory { mib, devices } => PodGpus::Share {
                devices,
                fraction: None,
                mib: Some(mib),
            },
            GpuKind::Mig { .. } => {
                let slices = shape.extended.iter();
                let slices = slices.filter(|(resource, _)| self.resources.mig_gpus(*resource) > Gpus::ZERO);
                let mut slices: Vec<(&str, i64)> = slices
                    .map(|(resource, count)| (self.resources.name(*resource), *count))
                    .collect();
                slices.sort_unstable();
                PodGpus::Mig(slices)
            }
        }
    }
}
