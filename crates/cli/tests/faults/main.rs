//! Random runs of whole clusters in virtual time with injected faults. A seed determines a run: its nodes, the actions of users,
//! and which calls and watches fail. No invariant is broken at any moment. After the faults the cluster becomes stable, no pod is lost, no
//! object is left behind, and every pod that fits runs.
//!
//! `KAI_FAULT_SEEDS=1000` runs more seeds, `KAI_FAULT_FIRST` sets the first one, `KAI_FAULT_SEED=42` replays one and prints its log.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

mod fault_run;
#[path = "../e2e/harness/mod.rs"]
#[allow(dead_code, unreachable_pub)] // The scenarios of the end-to-end suite use the rest of it.
mod harness;
mod incidents;
mod injector;
mod limit_incidents;
mod limits;
mod lost_reservations;
mod other_scheduler;
mod plan;
mod pods;
mod processes;
mod random;
mod seeds;
mod shrink;
mod volumes;
