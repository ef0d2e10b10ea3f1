//! Shapes: what pods ask for, and the arithmetic of parts of GPUs.

use crate::affinity::ShapeTerms;
use crate::ids::ResourceId;
use crate::model::{Constraints, Gpus};
use crate::tables::{CPU, MEMORY, SHARE_GPU, Share, Vector};

/// The kind of GPU request, reduced to what arithmetic needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GpuKind {
    None,
    Whole { devices: i64 },
    Fraction { billionths: i64, devices: i64 },
    Memory { mib: i64, devices: i64 },
    Mig { legacy: bool },
}

impl GpuKind {
    /// The same kind of request, for at most as much: parts of devices are rounded down to three binary digits, so that
    /// there are few of them.
    pub(crate) fn rounded_down(self) -> GpuKind {
        let round = |amount: i64| {
            let digits = i64::BITS - amount.max(1).leading_zeros();
            amount >> digits.saturating_sub(3) << digits.saturating_sub(3)
        };
        match self {
            GpuKind::Fraction { billionths, devices } => GpuKind::Fraction {
                billionths: round(billionths),
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

/// Everything about a pod that filters and scores read. Pods of the same shape share one row.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// CPU, memory, whole GPUs (0 for shared and MIG requests), one pod slot.
    pub(crate) base: Vector,
    /// Extended resources and MIG slices.
    pub(crate) extended: Vec<(ResourceId, i64)>,
    pub(crate) gpu: GpuKind,
    /// What MIG slices count as, in GPUs.
    pub(crate) mig: Gpus,
    pub(crate) constraints: Constraints,
    /// Pods of the shape that there are.
    pub(crate) pods: u32,
    /// The affinity terms of these pods; `None` = the shape has none, or no pod has the shape.
    pub(crate) terms: Option<Box<ShapeTerms>>,
}

impl Shape {
    /// A shape without constraints that asks for these GPUs, a pod slot and nothing else.
    pub(crate) fn of_gpus(gpu: GpuKind) -> Shape {
        let devices = match gpu {
            GpuKind::Whole { devices } => devices,
            GpuKind::None | GpuKind::Fraction { .. } | GpuKind::Memory { .. } | GpuKind::Mig { .. } => 0,
        };
        Shape {
            base: [0, 0, devices, 1],
            extended: Vec::new(),
            gpu,
            mig: Gpus::ZERO,
            constraints: Constraints::default(),
            pods: 0,
            terms: None,
        }
    }

    /// Whether the pod gets a part of one or more devices.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.gpu, GpuKind::Fraction { .. } | GpuKind::Memory { .. })
    }

    /// Whether the pod asks for no GPU of any kind.
    pub(crate) fn is_cpu_only(&self) -> bool {
        self.gpu == GpuKind::None
    }

    /// Devices asked for.
    pub(crate) fn devices(&self) -> i64 {
        match self.gpu {
            GpuKind::None | GpuKind::Mig { .. } => 0,
            GpuKind::Whole { devices } | GpuKind::Fraction { devices, .. } | GpuKind::Memory { devices, .. } => devices,
        }
    }

    /// MiB needed on each device of `memory_mib`.
    pub(crate) fn need_mib(&self, memory_mib: i64) -> i64 {
        match self.gpu {
            GpuKind::None | GpuKind::Mig { .. } => 0,
            GpuKind::Whole { .. } => memory_mib,
            GpuKind::Fraction { billionths, .. } => multiply_divide(billionths, memory_mib, 1_000_000_000),
            GpuKind::Memory { mib, .. } => mib,
        }
    }

    /// What a queue is charged for the pod on a device of `memory_mib`, in hundredths per device.
    pub(crate) fn accepted_hundredths(&self, memory_mib: i64) -> i64 {
        match self.gpu {
            GpuKind::None | GpuKind::Mig { .. } => 0,
            GpuKind::Whole { .. } => 100,
            GpuKind::Fraction { billionths, .. } => (billionths + 5_000_000) / 10_000_000,
            GpuKind::Memory { mib, .. } => ceil_hundredths(mib, memory_mib),
        }
    }

    /// What queues are charged once the pod has a place on a node with such devices.
    pub(crate) fn accepted(&self, memory_mib: i64) -> Share {
        let gpus = self.mig + Gpus::hundredths(self.accepted_hundredths(memory_mib)) * self.devices();
        [self.base[CPU], self.base[MEMORY], gpus.0]
    }

    /// What queues are asked for while no node is known: `gpu-memory` becomes a part of a device of `memory_mib`, or
    /// nothing if no node tells its GPU memory.
    pub(crate) fn requested(&self, memory_mib: Option<i64>) -> Share {
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
        [self.base[CPU], self.base[MEMORY], gpus.0]
    }

    /// GPUs asked for by count, where memory requests count nothing.
    pub(crate) fn gpus_by_count(&self) -> Gpus {
        Gpus(self.requested(None)[SHARE_GPU])
    }

    /// Whether placing the pod depends on other pods beyond resources.
    pub(crate) fn has_neighbour_rules(&self) -> bool {
        let Constraints {
            host_ports,
            affinity,
            anti_affinity,
            ..
        } = &self.constraints;
        !host_ports.is_empty() || !affinity.is_empty() || !anti_affinity.is_empty()
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

/// `a * b / divisor`. Only products beyond 64 bits pay for a division of 128.
fn multiply_divide(a: i64, b: i64, divisor: i64) -> i64 {
    match a.checked_mul(b) {
        Some(product) => product / divisor,
        None => (i128::from(a) * i128::from(b) / i128::from(divisor)) as i64,
    }
}
