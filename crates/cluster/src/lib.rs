//! Kubernetes I/O that the roles share. Architecture invariant: this is the only crate of the product that knows the Kubernetes
//! client; other crates pass and get plain values. It decides nothing.
//!
//! Every write is a server-side apply, a merge patch or a creation of an object that we own. The crate never writes an object back
//! whole, since that would drop fields that are newer than our types.

mod call_metrics;
mod calls;
mod client;
mod clock;
mod discovery;
mod election;
mod error;
mod events;
mod generation;
mod informer;
mod informers;
mod metrics_authorizer;
mod node;
mod owner;
mod path;
mod pods;
mod port_forward;
mod reviews;
mod role;
mod version;
mod view_authorizer;
mod watch;
mod work_queue;

pub use calls::{Deletion, Dependents, Part, Patch, Selection, Target};
pub use client::{Client, ClientConfig};
pub use clock::{Clock, whole_seconds};
pub use election::{Candidate, Election, Leadership, LeaseAction, LeaseSpec, LeaseTimes};
pub use error::Error;
pub use events::{EventRecorder, ObjectEvent};
pub use generation::Generation;
pub use informer::{Informer, Subscription};
pub use informers::{Informers, Kind};
pub use metrics_authorizer::{Access, MetricsAuthorizer};
pub use node::{Claim, Condition, ConditionStatus, LabelsApplied, NodeEvent, Severity};
pub use owner::{ANCHOR, CLUSTER_ROLE, InstallationOwner};
pub use path::printable;
pub use pods::{PodChange, PodMeta};
pub use port_forward::{PodAnswer, PodPort};
pub use role::{Context, Health, LeaderGauge, Metrics, NAMESPACE, ReadinessHold, RoleFuture};
pub use version::VERSION;
pub use view_authorizer::{ViewAccess, ViewAuthorizer};
pub use work_queue::{WorkQueue, WorkResult};
