//! The actions of a cycle. Each reads like a list: who, in which order, what is tried, what becomes final.

mod allocate;
mod consolidate;
mod make_room;
mod preempt;
mod reclaim;
mod retract;
mod stale;
