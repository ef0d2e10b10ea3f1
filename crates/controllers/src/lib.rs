//! The controllers of the cluster's side: pods get their pod groups, pod groups and queues get their status, and admission looks
//! at what people submit. Architecture invariant: nothing here decides where a pod runs.

pub mod admission;
mod args;
mod defaults;
mod error;
pub mod grouper;
mod merge_patch;
mod reconciles;
mod run;
pub mod status;

pub use args::{Args, Settings};
pub use defaults::{default_queues, priority_classes};
pub use error::Error;
pub use run::run;
