//! What the binder knows of a node, from fresh reads.
//!
//! [`reads`] makes the calls. [`facts`] has the properties of a node that decide how its GPUs are reserved and named. [`allocations`] has
//! the pods that share the node's GPUs, their shares, and the reservation pods.

pub(crate) mod allocations;
pub(crate) mod facts;
mod reads;
