//! The status of pod groups and queues: the resources that their pods request and have. A pod group's status is computed from all its
//! pods each time. A queue's sums are updated by subtracting a pod group's previous status and adding its current one, in exact
//! integers, so they do not drift. Nothing here decides anything.

pub mod pod_groups;
mod queue_metrics;
pub mod queues;
mod resource_amounts;

pub(crate) use resource_amounts::amount_text;
