//! Fixed-point numbers. Accounting never uses floats: GPUs are millionths, CPU is milli-cores, memory is bytes.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Neg, Sub, SubAssign};

/// An amount of GPUs in millionths of a device, as queues count it.
///
/// Fractions are charged in hundredths; the finer unit only serves `gpu-memory` requests before a node is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gpus(pub i64);

impl Gpus {
    /// No GPU.
    pub const ZERO: Gpus = Gpus(0);
    /// One whole device.
    pub const ONE: Gpus = Gpus(1_000_000);

    /// `count` whole devices.
    pub const fn whole(count: i64) -> Gpus {
        Gpus(count.saturating_mul(Gpus::ONE.0))
    }

    /// `hundredths` / 100 of a device.
    pub const fn hundredths(hundredths: i64) -> Gpus {
        Gpus(hundredths.saturating_mul(10_000))
    }

    /// The amount as a decimal number, for display only.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / Gpus::ONE.0 as f64
    }
}

impl Add for Gpus {
    type Output = Gpus;
    fn add(self, other: Gpus) -> Gpus {
        Gpus(self.0.saturating_add(other.0))
    }
}
impl Sub for Gpus {
    type Output = Gpus;
    fn sub(self, other: Gpus) -> Gpus {
        Gpus(self.0.saturating_sub(other.0))
    }
}
impl Neg for Gpus {
    type Output = Gpus;
    fn neg(self) -> Gpus {
        Gpus(-self.0)
    }
}
impl Mul<i64> for Gpus {
    type Output = Gpus;
    fn mul(self, factor: i64) -> Gpus {
        Gpus(self.0.saturating_mul(factor))
    }
}
impl AddAssign for Gpus {
    fn add_assign(&mut self, other: Gpus) {
        *self = *self + other;
    }
}
impl SubAssign for Gpus {
    fn sub_assign(&mut self, other: Gpus) {
        *self = *self - other;
    }
}
impl Sum for Gpus {
    fn sum<I: Iterator<Item = Gpus>>(iter: I) -> Gpus {
        iter.fold(Gpus::ZERO, Add::add)
    }
}

/// A point in time or a span, in milliseconds. The engine has no clock of its own; time always comes in from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub i64);

impl Millis {
    /// This many seconds.
    pub const fn seconds(seconds: i64) -> Millis {
        Millis(seconds.saturating_mul(1000))
    }
}
impl Add for Millis {
    type Output = Millis;
    fn add(self, other: Millis) -> Millis {
        Millis(self.0.saturating_add(other.0))
    }
}
impl Sub for Millis {
    type Output = Millis;
    fn sub(self, other: Millis) -> Millis {
        Millis(self.0.saturating_sub(other.0))
    }
}

/// What one queue may have of one resource, in the resource's own unit (millionths of a GPU, milli-cores, bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceQuota {
    /// Guaranteed amount; `None` = as much as it asks for.
    pub deserved: Option<i64>,
    /// Upper bound; `None` = none.
    pub limit: Option<i64>,
    /// Weight in millionths when resources above the quotas are shared out.
    pub weight_millionths: i64,
}

impl ResourceQuota {
    /// No bound; everything it asks for counts as its due.
    pub const UNBOUNDED: ResourceQuota = ResourceQuota {
        deserved: None,
        limit: None,
        weight_millionths: 1_000_000,
    };
    /// Nothing at all: what a queue without resources in its spec gets.
    pub const NOTHING: ResourceQuota = ResourceQuota {
        deserved: Some(0),
        limit: Some(0),
        weight_millionths: 0,
    };
}

/// The quotas of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Milli-cores.
    pub cpu: ResourceQuota,
    /// Bytes.
    pub memory: ResourceQuota,
    /// Millionths of a GPU.
    pub gpu: ResourceQuota,
}

impl Quota {
    /// No guarantee and no bound on anything.
    pub const UNBOUNDED: Quota = Quota {
        cpu: ResourceQuota::UNBOUNDED,
        memory: ResourceQuota::UNBOUNDED,
        gpu: ResourceQuota::UNBOUNDED,
    };
}
