//! Dense ids. Inside the engine every object is an index into a table; names exist only at the edge.

use std::num::NonZeroU32;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(NonZeroU32);

        impl $name {
            pub(crate) fn new(index: usize) -> $name {
                // One more than the index, so that an optional id is no larger than an id.
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
id!(/// A shape: everything about a pod that filters and scores read.
    ShapeId);
id!(/// The name of a resource beyond CPU, memory, GPUs and pod slots.
    ResourceId);
id!(/// An interned string.
    Symbol);
id!(/// A namespace with a set of labels that pods have in it.
    LabelSetId);
id!(/// What a pod affinity term says about other pods.
    SelectorId);
id!(/// A node label that pod affinity terms compare.
    TopologyKeyId);
id!(/// A pod affinity term: a selector within a topology key.
    TermId);

/// A shared GPU. Ids in the usual UUID form are their own number; others are hashed, and their text is kept aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupId {
    // Two halves, as a whole would have to be aligned to 16 bytes in every row.
    high: u64,
    low: u64,
}

impl GroupId {
    pub(crate) fn new(bits: u128) -> GroupId {
        GroupId {
            high: (bits >> 64) as u64,
            low: bits as u64,
        }
    }

    pub(crate) fn bits(self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }
}
