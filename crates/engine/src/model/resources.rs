//! Values per resource that queues divide: CPU, memory and GPUs.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Index, IndexMut, Mul, Sub, SubAssign};

use super::{Gpus, Quota, ResourceQuota};
use crate::reasons::Resource;

/// Amounts of the resources that queues divide. An index by [`Resource`] gives the number in the unit of that resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueResources {
    /// Milli-cores.
    pub cpu_milli: i64,
    /// Bytes.
    pub memory_bytes: i64,
    /// GPUs, whole or in part.
    pub gpus: Gpus,
}

impl QueueResources {
    /// Nothing.
    pub const ZERO: QueueResources = QueueResources {
        cpu_milli: 0,
        memory_bytes: 0,
        gpus: Gpus::ZERO,
    };

    /// Whether no amount is above that of `bound`.
    pub fn fits_in(&self, bound: &QueueResources) -> bool {
        Resource::all(|resource| self[resource] <= bound[resource])
    }
}

impl Resource {
    /// Whether the check holds for every resource. Orders of queues are made of such checks, and this code is faster than an
    /// iterator.
    #[inline]
    pub(crate) fn all(check: impl Fn(Resource) -> bool) -> bool {
        check(Resource::Cpu) && check(Resource::Memory) && check(Resource::Gpu)
    }

    /// Whether the check holds for some resource.
    #[inline]
    pub(crate) fn any(check: impl Fn(Resource) -> bool) -> bool {
        check(Resource::Cpu) || check(Resource::Memory) || check(Resource::Gpu)
    }
}

impl Index<Resource> for QueueResources {
    type Output = i64;
    #[inline]
    fn index(&self, resource: Resource) -> &i64 {
        match resource {
            Resource::Cpu => &self.cpu_milli,
            Resource::Memory => &self.memory_bytes,
            Resource::Gpu => &self.gpus.0,
        }
    }
}

impl IndexMut<Resource> for QueueResources {
    #[inline]
    fn index_mut(&mut self, resource: Resource) -> &mut i64 {
        match resource {
            Resource::Cpu => &mut self.cpu_milli,
            Resource::Memory => &mut self.memory_bytes,
            Resource::Gpu => &mut self.gpus.0,
        }
    }
}

impl Add for QueueResources {
    type Output = QueueResources;
    #[inline]
    fn add(self, other: QueueResources) -> QueueResources {
        QueueResources {
            cpu_milli: self.cpu_milli + other.cpu_milli,
            memory_bytes: self.memory_bytes + other.memory_bytes,
            gpus: Gpus(self.gpus.0 + other.gpus.0),
        }
    }
}

impl Sub for QueueResources {
    type Output = QueueResources;
    #[inline]
    fn sub(self, other: QueueResources) -> QueueResources {
        QueueResources {
            cpu_milli: self.cpu_milli - other.cpu_milli,
            memory_bytes: self.memory_bytes - other.memory_bytes,
            gpus: Gpus(self.gpus.0 - other.gpus.0),
        }
    }
}

impl Mul<i64> for QueueResources {
    type Output = QueueResources;
    #[inline]
    fn mul(self, factor: i64) -> QueueResources {
        QueueResources {
            cpu_milli: self.cpu_milli * factor,
            memory_bytes: self.memory_bytes * factor,
            gpus: Gpus(self.gpus.0 * factor),
        }
    }
}

impl AddAssign for QueueResources {
    #[inline]
    fn add_assign(&mut self, other: QueueResources) {
        *self = *self + other;
    }
}

impl SubAssign for QueueResources {
    #[inline]
    fn sub_assign(&mut self, other: QueueResources) {
        *self = *self - other;
    }
}

impl Sum for QueueResources {
    fn sum<I: Iterator<Item = QueueResources>>(amounts: I) -> QueueResources {
        amounts.fold(QueueResources::ZERO, Add::add)
    }
}

/// A value for each resource that queues divide, if it is not an amount of that resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerResource<T> {
    /// For CPU.
    pub cpu: T,
    /// For memory.
    pub memory: T,
    /// For GPUs.
    pub gpu: T,
}

impl<T> PerResource<T> {
    /// The value of `of` for each resource.
    pub fn from_fn(of: impl Fn(Resource) -> T) -> PerResource<T> {
        PerResource {
            cpu: of(Resource::Cpu),
            memory: of(Resource::Memory),
            gpu: of(Resource::Gpu),
        }
    }
}

impl<T> Index<Resource> for PerResource<T> {
    type Output = T;
    #[inline]
    fn index(&self, resource: Resource) -> &T {
        match resource {
            Resource::Cpu => &self.cpu,
            Resource::Memory => &self.memory,
            Resource::Gpu => &self.gpu,
        }
    }
}

impl Index<Resource> for Quota {
    type Output = ResourceQuota;
    #[inline]
    fn index(&self, resource: Resource) -> &ResourceQuota {
        match resource {
            Resource::Cpu => &self.cpu,
            Resource::Memory => &self.memory,
            Resource::Gpu => &self.gpu,
        }
    }
}
