//! Dense ids. Inside the engine every object is an index into a table; names exist only at the edge.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(pub(crate) u32);

        impl $name {
            pub(crate) fn new(index: usize) -> $name {
                $name(u32::try_from(index).expect("tables hold fewer than 2^32 rows"))
            }

            pub(crate) fn index(self) -> usize {
                self.0 as usize
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

/// A shared GPU. Ids in the usual UUID form are their own number; others are hashed, and their text is kept aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupId(pub(crate) u128);
