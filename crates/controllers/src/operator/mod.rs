//! The operator: a Config and its SchedulingShards become running roles.
//!
//! ```text
//! (Config, shards, installation, facts of the cluster) ─> Plan ─> objects ─> API          (kai operator)
//!                                                          └───> flags of roles           (kai all)
//! ```
//!
//! [`plan`] is pure. It never drops a setting silently: a setting without an effect is in the list of the Config's or the shard's
//! condition. Architecture invariant: the operator creates no service accounts and no permissions; the installation does.

mod arguments;
mod component;
mod conditions;
mod flags;
mod ignored;
mod inputs;
mod objects;
mod owned;
mod plan;
mod reconcile;
mod scheduler_config;
mod shard;
mod state;
mod status;

pub use component::{Component, Role};
pub use conditions::{Conditions, keep_conditions};
pub use flags::Flags;
pub use inputs::{ClusterFacts, ImageReference, Installation, Runner, SchedulerFlags};
pub use objects::{DesiredObject, Owner, objects};
pub use owned::Watches;
pub(crate) use owned::is_marked;
pub use plan::{Plan, plan};
pub use reconcile::{Settings, run};
pub use shard::{ShardPlan, ShardScheduler};
pub use state::{Policy, State, read_policy, read_state};
pub use status::Readiness;

#[cfg(test)]
mod tests;
