//! The scheduler role. It mirrors the cluster into the engine, asks it for decisions, carries them out and tells people why a pod
//! waits.
//!
//! ```text
//! watches ─> ClusterMirror ─> engine events ─> kai_engine::Cluster ─> decisions ─> writers ─> API
//! ```
//!
//! One task owns the index and the engine; writes run beside it and report back. What the engine decided counts as carried out
//! from that moment on (`kai_mirror`), until the cluster shows it or a write fails. It never decides anything itself: which pod
//! gets what is the engine's matter alone.

mod args;
mod audit;
mod config;
mod cycle;
mod error;
mod explain;
mod http;
mod metrics;
mod settings;
mod writers;

pub use args::Args;
pub use cycle::{Scheduler, run};
pub use error::Error;
pub use kai_mirror::{Partition, WorkerLabels};
pub use settings::{BindRequests, Settings};
