//! Resources of nodes that every node has.

use std::ops::{Add, AddAssign, Mul, Sub, SubAssign};

/// Amounts of the resources that every node has. Extended resources are counted apart from them, because nodes differ there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct NodeResources {
    pub(crate) cpu_milli: i64,
    pub(crate) memory_bytes: i64,
    /// GPUs as the device plugin counts them: whole ones, or replicas on a time-sliced node.
    pub(crate) gpus: i64,
    /// Pod slots.
    pub(crate) pods: i64,
}

impl NodeResources {
    pub(crate) const ZERO: NodeResources = NodeResources {
        cpu_milli: 0,
        memory_bytes: 0,
        gpus: 0,
        pods: 0,
    };

    /// Whether no amount is above that of `bound`.
    pub(crate) fn fits_in(&self, bound: &NodeResources) -> bool {
        self.cpu_milli <= bound.cpu_milli
            && self.memory_bytes <= bound.memory_bytes
            && self.gpus <= bound.gpus
            && self.pods <= bound.pods
    }

    /// The amounts of those resources of which `allocatable` has any.
    pub(crate) fn offered_by(self, allocatable: &NodeResources) -> NodeResources {
        let offered = |amount: i64, allocatable: i64| if allocatable == 0 { 0 } else { amount };
        self.combined(allocatable, offered)
    }

    /// The larger amount of each resource.
    pub(crate) fn max_of_each(self, other: &NodeResources) -> NodeResources {
        self.combined(other, i64::max)
    }

    #[inline]
    fn combined(self, other: &NodeResources, combine: impl Fn(i64, i64) -> i64) -> NodeResources {
        NodeResources {
            cpu_milli: combine(self.cpu_milli, other.cpu_milli),
            memory_bytes: combine(self.memory_bytes, other.memory_bytes),
            gpus: combine(self.gpus, other.gpus),
            pods: combine(self.pods, other.pods),
        }
    }
}

impl Add for NodeResources {
    type Output = NodeResources;
    #[inline]
    fn add(self, other: NodeResources) -> NodeResources {
        self.combined(&other, |own, other| own + other)
    }
}

impl Sub for NodeResources {
    type Output = NodeResources;
    #[inline]
    fn sub(self, other: NodeResources) -> NodeResources {
        self.combined(&other, |own, other| own - other)
    }
}

impl Mul<i64> for NodeResources {
    type Output = NodeResources;
    #[inline]
    fn mul(self, factor: i64) -> NodeResources {
        self.combined(&NodeResources::ZERO, |own, _| own * factor)
    }
}

impl AddAssign for NodeResources {
    #[inline]
    fn add_assign(&mut self, other: NodeResources) {
        *self = *self + other;
    }
}

impl SubAssign for NodeResources {
    #[inline]
    fn sub_assign(&mut self, other: NodeResources) {
        *self = *self - other;
    }
}
