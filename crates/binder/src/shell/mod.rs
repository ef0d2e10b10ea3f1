//! The role around the protocol. [`args`] and [`settings`] are the flags and their meaning; [`run`] has the work queues and the state that
//! binds and garbage collection share; [`watch`] turns changes in the cluster into keys for the queues; [`metrics`] counts.

pub(crate) mod args;
pub(crate) mod metrics;
pub(crate) mod run;
pub(crate) mod settings;
mod watch;
