//! The end-to-end suite: what a user sees from creating a pod to its running on the right GPU, on a whole cluster with all of kai's
//! roles. It runs on the embedded API server (in virtual time); the back end can be another one, see `harness/backend.rs`.
#![allow(clippy::unwrap_used)] // The harness is a test too.

mod config_maps;
mod examples;
mod gangs;
#[allow(dead_code)] // The fault runs use the rest of it.
mod harness;
mod leaders;
mod lifecycle;
mod nodes;
mod queues;
mod rights;
mod security;
mod sharing;
mod workloads;
