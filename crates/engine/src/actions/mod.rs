//! The actions of a cycle. Each reads like a list: who, in which order, what is tried, what becomes final.

mod allocate;
mod consolidate;
mod place_with_victims;
mod preempt;
mod reclaim;
mod reconcile;
mod stale;
