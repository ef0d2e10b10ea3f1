//! Whether a pod fits on a node, and how many pods fit at most. This module is the only one with this arithmetic; filters,
//! scores, the ledger, topology domains and the victim search ask it.
//!
//! | question | function | answer |
//! |---|---|---|
//! | Does a pod fit now, or after all releases? | [`fits`] | exact |
//! | Does a pod fit with the GPU groups that it has? | [`fits_on_gpus`] | exact |
//! | Would a pod fit if the node were empty? | [`fits_empty_node`] | exact for GPU memory, else an upper bound |
//! | How many pods of a shape fit, if these victims were gone? | [`max_pods`] | an upper bound |
//! | How many pods of a request fit? | [`max_pods_by_volume`] | an upper bound, coarser |
//!
//! A search skips a node, a domain or a set of victims whose bound is too low. So a bound must never be below the number of
//! pods that fit one after the other: otherwise a gang waits although it fits. `laws` checks this on random nodes.

mod bound;
mod check;
mod free;
#[cfg(test)]
mod laws;

pub(crate) use bound::{FreedResources, PodRequest, free_gpu_parts, max_pods, max_pods_by_volume};
pub(crate) use check::{fits, fits_empty_node, fits_on_gpus};
