//! Shapes: requests and constraints of pods, and the arithmetic of GPU fractions.

use crate::affinity::ShapeTerms;
use crate::ids::ResourceId;
use crate::model::{Constraints, GpuFraction, Gpus, QueueResources, ShareTerms};
use crate::tables::NodeResources;

/// The kind of GPU request, reduced to what arithmetic needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GpuKind {
    None,
    Whole { devices: i64 },
    Fraction { fraction: GpuFraction, devices: i64 },
    Memory { mib: i64, devices: i64 },
    Mig { legacy: bool },
}

impl GpuKind {
    /// MiB needed on each GPU of `memory_mib`.
    pub(crate) fn need_mib(self, memory_mib: i64) -> i64 {
        match self {
            GpuKind::None | GpuKind::Mig { .. } => 0,
            GpuKind::Whole { .. } => memory_mib,
            GpuKind::Fraction { fraction, .. } => fraction.of_mib(memory_mib),
            GpuKind::Memory { mib, .. } => mib,
        }
    }

    /// A lower bound of the request: fractions and MiB rounded down to three binary digits, so that few distinct values are left.
    pub(crate) fn rounded_down(self) -> GpuKind {
        let round = |amount: i64| {
            let digits = i64::BITS - amount.max(1).leading_zeros();
            amount >> digits.saturating_sub(3) << digits.saturating_sub(3)
        };
        match self {
            GpuKind::Fraction { fraction, devices } => GpuKind::Fraction {
                fraction: GpuFraction::from_billionths(round(fraction.billionths())),
                devices,
            },
            GpuKind::Memory { mib, devices } => GpuKind::Memory {
                mib: round(mib),
                devices,
            },
            GpuKind::None | GpuKind::Whole { .. } | GpuKind::Mig { .. } => self,
        }
    }
}

/// Everything about a pod that filters and scores read. Pods with equal requests and constraints share one row.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// CPU, memory, whole GPUs (0 for shared and MIG requests), one pod slot.
    pub(crate) base: NodeResources,
    /// Extended resources and MIG slices.
    pub(crate) extended: Vec<(ResourceId, i64)>,
    pub(crate) gpu: GpuKind,
    /// The GPUs that the requested MIG slices count as.
    pub(crate) mig: Gpus,
    pub(crate) constraints: Constraints,
    /// Number of pods of this shape whose affinity terms are in the index.
    pub(crate) indexed_pods: u32,
    /// The affinity terms of these pods; `None` if there are no such pods.
    pub(crate) terms: Option<Box<ShapeTerms>>,
}

impl Shape {
    /// A shape that requests these GPUs and a pod slot, without constraints but the terms of its share.
    pub(crate) fn of_gpus(gpu: GpuKind, share: ShareTerms) -> Shape {
        let devices = match gpu {
            GpuKind::Whole { devices } => devices,
            GpuKind::None | GpuKind::Fraction { .. } | GpuKind::Memory { .. } | GpuKind::Mig { .. } => 0,
        };
        Shape {
            base: NodeResources {
                gpus: devices,
                pods: 1,
                ..NodeResources::ZERO
            },
            extended: Vec::new(),
            gpu,
            mig: Gpus::ZERO,
            constraints: Constraints {
                share,
                ..Constraints::default()
            },
            indexed_pods: 0,
            terms: None,
        }
    }

    /// A lower bound of the GPU request alone, for bounds on the scores of many shapes.
    pub(crate) fn gpu_request(&self) -> Shape {
        Shape::of_gpus(self.gpu.rounded_down(), self.constraints.share)
    }

    /// Whether the pod requests parts of GPUs.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.gpu, GpuKind::Fraction { .. } | GpuKind::Memory { .. })
    }

    /// Whether the pod requests no GPU of any kind.
    pub(crate) fn is_cpu_only(&self) -> bool {
        self.gpu == GpuKind::None
    }

    /// GPUs requested, whole or in part; 0 for MIG.
    pub(crate) fn devices(&self) -> i64 {
        match self.gpu {
            GpuKind::None | GpuKind::Mig { .. } => 0,
            GpuKind::Whole { devices } | GpuKind::Fraction { devices, .. } | GpuKind::Memory { devices, .. } => devices,
        }
    }

    /// MiB needed on each GPU of `memory_mib`.
    pub(crate) fn need_mib(&self, memory_mib: i64) -> i64 {
        self.gpu.need_mib(memory_mib)
    }

    /// What a queue is charged for the pod on a GPU of `memory_mib`, in hundredths per GPU.
    pub(crate) fn accepted_hundredths(&self, memory_mib: i64) -> i64 {
        match self.gpu {
            GpuKind::None | GpuKind::Mig { .. } => 0,
            GpuKind::Whole { .. } => 100,
            GpuKind::Fraction { fraction, .. } => fraction.nearest_hundredths(),
            GpuKind::Memory { mib, .. } => ceil_hundredths(mib, memory_mib),
        }
    }

    /// What queues are charged once the pod is placed on a node with GPUs of `memory_mib`.
    pub(crate) fn accepted(&self, memory_mib: i64) -> QueueResources {
        let gpus = self.mig + Gpus::hundredths(self.accepted_hundredths(memory_mib)) * self.devices();
        self.with_gpus(gpus)
    }

    /// What the pod requests from queues before its node is known: `gpu-memory` counts as a part of a GPU of `memory_mib`, or as nothing
    /// if no node of the cluster has a known GPU memory.
    pub(crate) fn requested(&self, memory_mib: Option<i64>) -> QueueResources {
        let gpus = match self.gpu {
            GpuKind::Memory { mib, devices } => match memory_mib {
                Some(base) => Gpus(match devices.checked_mul(Gpus::ONE.0) {
                    Some(parts) => multiply_divide(parts, mib, base.max(1)),
                    None => i64::MAX,
                }),
                None => Gpus::ZERO,
            },
            GpuKind::None | GpuKind::Whole { .. } | GpuKind::Fraction { .. } | GpuKind::Mig { .. } => {
                self.mig + Gpus::hundredths(self.accepted_hundredths(100)) * self.devices()
            }
        };
        self.with_gpus(gpus)
    }

    /// The requested CPU and memory, and these GPUs.
    fn with_gpus(&self, gpus: Gpus) -> QueueResources {
        QueueResources {
            cpu_milli: self.base.cpu_milli,
            memory_bytes: self.base.memory_bytes,
            gpus,
        }
    }

    /// GPUs requested by count; `gpu-memory` requests count as 0.
    pub(crate) fn gpus_by_count(&self) -> Gpus {
        self.requested(None).gpus
    }

    /// Whether other pods limit where the pod can be placed: by host ports, affinity, anti-affinity or volumes.
    pub(crate) fn depends_on_other_pods(&self) -> bool {
        let Constraints {
            host_ports,
            affinity,
            anti_affinity,
            claims,
            ..
        } = &self.constraints;
        !host_ports.is_empty() || !affinity.is_empty() || !anti_affinity.is_empty() || !claims.is_empty()
    }
}

/// `part / whole` in hundredths, rounded up.
pub(crate) fn ceil_hundredths(part: i64, whole: i64) -> i64 {
    let whole = whole.max(1);
    match part.checked_mul(100).and_then(|parts| parts.checked_add(whole - 1)) {
        Some(parts) => parts / whole,
        None => ((i128::from(part) * 100 + i128::from(whole) - 1) / i128::from(whole)) as i64,
    }
}

/// `a * b / divisor`, in 128 bits only if the product needs them: that division is slow.
fn multiply_divide(a: i64, b: i64, divisor: i64) -> i64 {
    match a.checked_mul(b) {
        Some(product) => product / divisor,
        None => (i128::from(a) * i128::from(b) / i128::from(divisor)) as i64,
    }
}
