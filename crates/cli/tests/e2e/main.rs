//! The end-to-end suite: a user's view from the creation of a pod until it runs on the right GPU, on a whole cluster with all of kai's
//! roles. It runs on the embedded API server in virtual time, or on a real one (`harness/backend.rs`).
#![allow(clippy::unwrap_used)] // The harness is test code too.

mod autoscaling;
mod config_maps;
mod examples;
mod gangs;
mod grouping_rules;
#[allow(dead_code)] // The fault runs use the rest of it.
mod harness;
mod installation;
mod leaders;
mod lifecycle;
mod migration;
mod nodes;
mod queues;
mod resize;
mod rights;
mod security;
mod sharing;
mod snapshots;
mod usage;
mod volumes;
#[path = "../../../page/tests/browser/webdriver.rs"]
#[allow(dead_code)] // The tests of the page use the rest.
mod webdriver;
mod without_agent;
mod workloads;
