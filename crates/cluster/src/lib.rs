//! Kubernetes I/O shared by the roles. Architecture invariant: this is the only crate of the product that knows the Kubernetes
//! client; others pass and get plain values. It decides nothing.
//!
//! Writes are server-side apply, merge patches or creations of what we own: an object read here is never written back whole, since
//! fields newer than our types would be lost.

mod client;
mod error;
mod node;
mod pods;

pub use client::{Access, Client};
pub use error::Error;
pub use node::{Condition, ConditionStatus, LabelsApplied, NodeEvent, Severity};
pub use pods::{PodChange, PodMeta};
