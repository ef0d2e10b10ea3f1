//! Random lives of whole clusters while everything around kai fails, in virtual time. One number decides a life: its nodes, what users
//! do, and which calls and watches fail. No law is broken at any instant; after the faults stop the cluster settles, nothing is lost,
//! nothing is left behind, and everybody who fits runs.
//!
//! `KAI_FAULT_SEEDS=1000` runs more of them (`KAI_FAULT_FIRST` says from which on), `KAI_FAULT_SEED=42` replays one and tells its story.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests too.

mod dice;
#[path = "../e2e/harness/mod.rs"]
#[allow(dead_code, unreachable_pub)] // The scenarios of the end-to-end suite use the rest of it.
mod harness;
mod incidents;
mod life;
mod lost_reservations;
mod others;
mod plan;
mod pods;
mod processes;
mod seeds;
mod shrink;
mod trouble;
