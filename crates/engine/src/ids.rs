//! Dense ids: inside the engine an object is an index into a table. Names occur in events and reports only.

use std::num::NonZeroU32;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(NonZeroU32);

        impl $name {
            pub(crate) fn new(index: usize) -> $name {
                // The index plus one, so that `Option` of an id takes no extra space.
                let number = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
                $name(number.expect("tables hold fewer than 2^32 rows"))
            }

            pub(crate) fn index(self) -> usize {
                self.0.get() as usize - 1
            }
        }
    };
}

id!(/// A row of the node table.
    NodeId);
id!(/// A row of the pod table.
    PodId);
id!(/// A row of the gang table.
    GangId);
id!(/// A row of the queue table.
    QueueId);
id!(/// A domain within one topology.
    DomainId);
id!(/// A row of the shape table: requests and constraints of pods.
    ShapeId);
id!(/// The name of a resource beyond CPU, memory, GPUs and pod slots.
    ResourceId);
id!(/// An interned string.
    Symbol);
id!(/// A namespace with a set of labels that pods have in it.
    LabelSetId);
id!(/// The label selector and namespaces of a pod affinity term.
    SelectorId);
id!(/// A topology key of pod affinity terms: a node label.
    TopologyKeyId);
id!(/// A pod affinity term: a selector within a topology key.
    TermId);

/// A GPU group. See [`GpuGroupNames`](crate::intern::GpuGroupNames) for how names become ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GpuGroupId {
    // Two halves, because a u128 would align every row to 16 bytes.
    high: u64,
    low: u64,
}

impl GpuGroupId {
    pub(crate) fn new(bits: u128) -> GpuGroupId {
        GpuGroupId {
            high: (bits >> 64) as u64,
            low: bits as u64,
        }
    }

    pub(crate) fn bits(self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }
}
