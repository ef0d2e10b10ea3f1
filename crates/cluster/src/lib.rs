//! Kubernetes I/O shared by the roles. Architecture invariant: this is the only crate of the product that knows the Kubernetes
//! client; others pass and get plain values. It decides nothing.
//!
//! Writes are server-side apply, merge patches or creations of what we own: an object read here is never written back whole, since
//! fields newer than our types would be lost.

mod calls;
mod client;
mod clock;
mod discovery;
mod election;
mod error;
mod events;
mod feed;
mod feeds;
mod gate;
mod mark;
mod node;
mod path;
mod pods;
mod role;
mod watched;
mod work_queue;

pub use calls::{Deletion, Part, Patch, Selection, Target};
pub use client::{Access, Client};
pub use clock::{Clock, whole_seconds};
pub use election::{Candidate, Claim, Election, LeaseSpec, Step, Times};
pub use error::Error;
pub use events::{Events, Note};
pub use feed::{Feed, Subscription};
pub use feeds::Feeds;
pub use gate::{Entry, Gate};
pub use mark::Mark;

pub use node::{Condition, ConditionStatus, LabelsApplied, NodeEvent, Severity};
pub use path::shown;
pub use pods::{PodChange, PodMeta};
pub use role::{Context, Health, Metrics};
pub use work_queue::{Outcome, WorkQueue};
