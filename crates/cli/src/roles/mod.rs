//! The roles of the cluster's side. Each is a subcommand of its own, and `kai all` runs them in one process.
//!
//! `table.rs` lists the roles; a file for each has its flags, its lease and how it runs. `run.rs` is what their processes have in common:
//! connect, elect a leader, serve metrics and health, stop at a signal.

mod accept;
pub(crate) mod admission;
pub(crate) mod all;
mod announce;
pub(crate) mod binder;
pub(crate) mod controllers;
pub(crate) mod operator;
mod process;
mod readiness;
mod run;
pub(crate) mod scheduler;
mod serve;
mod shard_check;
mod shard_policy;
mod supervise;
mod table;

pub use crate::page::PageSlot;
pub(crate) use process::Connection;
pub(crate) use run::{host_of, stopped};
pub(crate) use scheduler::DEBUG_PORT;
pub(crate) use serve::{Served, page as serve_page};
pub(crate) use shard_policy::{ShardPolicy, shard_policy};
pub use table::{ROLES, RoleSettings, run};
