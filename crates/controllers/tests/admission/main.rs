//! Admission on the embedded API server: which writes of a tenant are admitted while the webhooks are up, down and uninstalled.
#![allow(clippy::unwrap_used)] // It is all test; the lint knows only functions marked as such.

mod cluster;
mod deployed;
mod other_objects;
mod pods;
mod serving;
