//! The scheduling decision of kai-rs: which pod gets which node and GPUs, which pods are evicted for it, and why.
//!
//! [`Cluster`] is long-lived: [`Cluster::apply`] takes events, [`Cluster::cycle`] makes decisions. Equal events and equal times give
//! equal decisions, on every machine and in any order of objects.
//!
//! The engine never does I/O, never reads a clock, never spawns a thread, and never fails: an invalid object becomes a reason that is
//! shown to people.

// The clusters of the benchmarks refer to this crate by its name; tests include them as a module.
#[cfg(test)]
extern crate self as kai_engine;

mod actions;
mod affinity;
mod apply;
mod cluster;
#[cfg(test)]
#[path = "../benches/clusters/mod.rs"]
mod clusters;
mod cycle;
mod explain;
mod gangs;
mod ids;
mod intern;
#[cfg(test)]
mod laws;
mod ledger;
pub mod model;
mod order;
mod place;
pub mod reasons;
pub mod report;
mod share;
pub mod steps;
mod tables;
mod victims;
mod views;
mod work;

pub use cluster::Cluster;
