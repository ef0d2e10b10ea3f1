//! Holds containers to their GPU share.
//!
//! * [`watch`] reports pods above their share, where nothing limits them.

pub mod watch;
