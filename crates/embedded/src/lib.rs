//! The embedded cluster: a Kubernetes cluster in one process, for the playground and for tests.
//!
//! [`server`] is the API server, [`kubelet`] runs pods on simulated nodes, [`workloads`] are the controllers of Deployments, Jobs and
//! the like. [`invariants`] judges the cluster from the objects in the API alone. Nothing here decides which pod gets which GPU: the
//! production roles do, against this API server.

mod error;
pub mod invariants;
pub mod kubelet;
pub mod large_objects;
pub mod server;
pub mod workloads;

pub use error::Error;
