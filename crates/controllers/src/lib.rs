//! The controllers of the cluster's side: pods get their pod groups, pod groups and queues get their status, and admission looks
//! at what people submit. Architecture invariant: nothing here decides where a pod runs.

pub mod admission;
pub mod grouper;
pub mod status;
