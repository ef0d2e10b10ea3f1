//! Holds containers to their GPU share.
//!
//! * [`tier`] decides by what a node holds containers, from the facts that [`facts`] collects;
//! * [`promise`] decides what a container is held to, [`hook_edit`] puts it into the container's CDI spec;
//! * [`hook`] is the program that the container runtime runs from that spec; [`hold`] is its work: it finds the container's [`cgroup`] from
//!   the [`state_document`], sets the [`limits`] and leaves a [`receipt`]; [`program`] copies it to the host;
//! * [`audit`] compares the receipts with the driver;
//! * [`watch`] reports pods above their share, where nothing limits them.
//!
//! Architecture invariants: a limit comes from the binder's annotation by way of a file that only root writes. The agent never sets a limit,
//! because that needs a capability that it does not have; only the hook does, which is the container runtime's child. What a container may
//! use is decided by pure functions; simulated kubelets run them, and [`hold::hold`], with the fake driver.

pub mod audit;
pub mod cgroup;
pub mod facts;
pub mod hold;
pub mod hook;
pub mod hook_edit;
pub mod limits;
pub mod mps;
pub mod program;
pub mod promise;
pub mod receipt;
pub mod receipt_dir;
pub mod state_document;
pub mod tier;
pub mod watch;
