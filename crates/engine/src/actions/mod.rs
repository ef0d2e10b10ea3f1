//! The actions of a cycle. Each takes pending gangs in fair order, tries to place each one, and commits what succeeds.
//! [`reconcile`] runs after the last action and removes decisions that later actions have undone.

mod allocate;
mod background;
mod consolidate;
mod place_with_victims;
mod preempt;
mod reclaim;
mod reconcile;
mod stale;

pub(crate) use background::TentativeEvictions;
