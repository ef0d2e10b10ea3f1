//! The library of `kai simulate`: runs the engine on clusters that are described in files, without a Kubernetes cluster.
//!
//! | step | module |
//! |---|---|
//! | find the files and read cases or manifests | [`scenario`]: [`scenario::discover`], [`scenario::load`] |
//! | apply the objects to the mirror of the scheduler; carry decisions out between two cycles | [`SimulatedCluster`] |
//! | run scheduling cycles | [`run`] |
//! | write the files without the names of the cluster | [`scenario::redact`] |
//! | compare the outcomes of an unchanged and a changed cluster | [`diff`] |
//! | compare the result with the expectation of a case | `check` |
//! | explain one pod after the run | [`explain`] |
//! | return the result as a value | [`outcome`] |
//! | replay a stream of pods by several policies | [`trace`] |
//! | let queues compete over days, with usage over time | [`usage`] |
//!
//! The crate prints nothing: `kai-cli` formats the [`outcome::Outcome`].

mod check;
pub mod diff;
mod error;
pub mod explain;
pub mod memory;
pub mod outcome;
pub mod run;
pub mod scenario;
mod simulated_cluster;
pub mod trace;
pub mod usage;

pub use error::Error;
pub use simulated_cluster::SimulatedCluster;
