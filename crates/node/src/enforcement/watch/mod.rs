//! The tier `watch`: nothing is limited, but a pod that uses more GPU memory than its share is seen. [`source`] reads what the processes on the
//! GPUs use, [`place`] finds their pods, [`decide`] judges, and [`mod@run`] records events, publishes the metrics, and evicts if that is wanted.
//!
//! The agent needs the host's pid namespace: the driver names processes by their pid in the namespace of the caller, and leaves the others out.
//! [`source::ability`] says whether a node can be watched, for the choice of its tier.

pub mod decide;
pub mod metrics;
pub mod nvmap;
pub mod place;
pub mod run;
pub mod source;

pub use decide::{Repair, SharePod, UsedMemory, Watched};
pub use run::{WatchConfig, WatchReport, run};
pub use source::{ProcessFiles, ability};
