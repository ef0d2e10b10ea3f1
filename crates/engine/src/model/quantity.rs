//! Fixed-point numbers. Accounting never uses floats: GPUs are millionths, CPU is milli-cores, memory is bytes.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Neg, Sub, SubAssign};

/// An amount of GPUs, in millionths of a GPU.
///
/// Queues are charged in hundredths of a GPU. The finer unit is needed for `gpu-memory` requests of pods without a node.
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

/// A point in time or a duration, in milliseconds. The engine has no clock: the caller passes the time.
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

/// Quota, limit and weight of a queue for one resource, in its unit (millionths of a GPU, milli-cores, bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceQuota {
    /// The deserved quota; `None` = as much as the queue requests.
    pub deserved: Option<i64>,
    /// The limit; `None` = no limit.
    pub limit: Option<i64>,
    /// Weight in the division of resources above the quotas, in millionths.
    pub weight_millionths: i64,
}

impl ResourceQuota {
    /// No limit; the deserved quota is everything that the queue requests.
    pub const UNBOUNDED: ResourceQuota = ResourceQuota {
        deserved: None,
        limit: None,
        weight_millionths: 1_000_000,
    };
    /// Quota and limit 0: those of a queue without resources in its spec.
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
    /// [`ResourceQuota::UNBOUNDED`] for every resource.
    pub const UNBOUNDED: Quota = Quota {
        cpu: ResourceQuota::UNBOUNDED,
        memory: ResourceQuota::UNBOUNDED,
        gpu: ResourceQuota::UNBOUNDED,
    };
}
