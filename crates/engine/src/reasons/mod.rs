//! Why a pod waits and why a pod was evicted. The other files have the data; `text/` makes the text, and no other code does.

mod gpu_share_error;
mod invalid_value;
mod reason;
mod refusal;
mod text;

pub use gpu_share_error::GpuShareError;
pub use invalid_value::{GpuConflict, InvalidValue, Problem};
pub use reason::{
    BackgroundCause, Check, EvictionReason, Fairness, HeldByQueue, PodsLacking, QueueBound, Reason, Rejections,
    Resource, SiblingQueues, SubGroupExcess,
};
pub use refusal::{AffinityTermBound, AvoidedNode, PriorityRefusal, Refusal};
pub use text::{ExplanationText, ReasonText, RemedyText, domain_text, not_ready_text};
