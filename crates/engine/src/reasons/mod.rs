//! Why a pod waits and why a pod was evicted: as data, and in `text/` only, as text.

mod reason;
mod text;

pub use reason::{Check, EvictionReason, PodsLacking, QueueBound, Reason, Rejections, Resource, SubGroupExcess};
pub use text::{ReasonText, not_ready_text};
