//! The scheduler role. It mirrors the cluster into the engine, runs scheduling cycles, writes their decisions to the API, and reports why
//! pods are pending.
//!
//! ```text
//! watches ─> ClusterMirror ─> engine events ─> kai_engine::Cluster ─> decisions ─> writers ─> API
//! ```
//!
//! One task owns the mirror and the engine. Writes run concurrently and report their results to it. `kai_mirror` counts a decision as
//! carried out at once, until a watch shows it or its write fails. The scheduler never decides anything itself: the engine alone chooses
//! nodes and victims.

mod args;
mod audit;
mod config;
mod cycle;
mod debug_endpoints;
mod decision_log;
mod error;
mod explain;
mod metrics;
mod settings;
mod snapshot;
mod snapshot_settings;
mod usage;
mod writers;

pub use args::Args;
pub use cycle::{Scheduler, Sources, run};
pub use debug_endpoints::ViewHandle;
pub use error::Error;
pub use kai_mirror::{Partition, WorkerLabels};
pub use settings::{BindRequests, Settings};
pub use snapshot::take as take_snapshot;
