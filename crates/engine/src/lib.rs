//! The scheduling decision of kai-rs: which pod gets which node and GPU, who has to make room, and why.
//!
//! [`Cluster`] is long-lived. Tell it what changed ([`Cluster::apply`]), then ask for decisions ([`Cluster::cycle`]).
//! Same events and same time give the same decisions, on every machine and in any order of objects.
//!
//! It never does I/O, never reads a clock, never spawns a thread, and never fails: what is wrong with an object becomes
//! a reason that is shown to people.

// Shapes of clusters are written for benchmarks, which see the crate from outside.
#[cfg(test)]
extern crate self as kai_engine;

mod actions;
mod affinity;
mod apply;
mod cluster;
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
#[cfg(test)]
#[path = "../benches/shapes/mod.rs"]
mod shapes;
mod share;
pub mod steps;
mod tables;
mod victims;
mod views;
mod work;

pub use cluster::Cluster;
