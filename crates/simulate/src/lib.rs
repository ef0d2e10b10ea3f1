//! Scenarios: clusters in files, run through the engine without a cluster.
//!
//! [`scenario::discover`] finds the files, [`scenario::load`] turns each into a [`scenario::Scenario`], [`run::run`]
//! runs it through the engine and compares the outcome with what the file expects. Nothing here prints: words for people
//! are made by the caller.

mod check;
mod error;
pub mod memory;
pub mod outcome;
pub mod run;
pub mod scenario;
mod simulated_cluster;

pub use error::Error;
