//! The tier `mps`: a multi-process server per node gives each container its part of a GPU's multiprocessors. Opt-in (`--enforce mps`).
//!
//! [`mod@ability`] decides whether the node can have it, [`plan`] the daemon's arguments and files, [`container`] what a container needs to
//! reach its namespace. [`supervise`] is the state machine of the daemon; [`run`] is the thread that carries it out, with
//! the daemon's [`commands`]. [`service`] is what the rest of the agent uses.
//!
//! The fence is the GPUs' compute mode `EXCLUSIVE_PROCESS`: a process that does not find the daemon would run without it, and without limits;
//! with that mode ([`modes`]) it fails. The daemon is a child of the agent: when the agent ends, so do its clients.

pub mod ability;
pub mod commands;
pub mod container;
pub mod launch;
pub mod modes;
pub mod plan;
pub mod run;
pub mod service;
pub mod supervise;

pub use ability::{Ability, ability};
pub use container::ShareRequest;
pub use plan::{MpsPlan, Namespace};
pub use run::{MpsHandle, MpsStatus, start};
pub use service::MpsService;
