//! The status of pod groups and of queues: what their pods ask for and have. Both are computed from the present state of the watches
//! each time, never by adding and subtracting events, so they can't drift. Nothing here decides anything.

pub mod pod_groups;
mod queue_metrics;
pub mod queues;
mod resource_amounts;
