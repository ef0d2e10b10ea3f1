//! The binder carries out BindRequests. For a pod with a GPU share it reserves one GPU per GPU group with a reservation pod, tells the pod
//! which GPUs it got, and binds it. Afterwards it keeps the reservation pods consistent with the pods that use them. It never chooses a
//! node or a GPU group, and never ends a workload.
//!
//! | module | content |
//! |---|---|
//! | `bind` | one BindRequest, from plan to Binding |
//! | `reservation` | the reservation pods: state, manifest, creation, garbage collection |
//! | `node` | fresh reads of a node: its facts, and the allocations of its GPUs |
//! | `shell` | flags, work queues, watch loop, metrics |
//!
//! Pure functions decide (`bind::plan`, `bind::final_check`, `reservation::state`, `reservation::gc`); `bind::attempt` and
//! `reservation::reconcile` read, ask them, and write.
//!
//! Architecture invariant: a missing object in a watch proves nothing. Every deletion and every Binding depends on fresh reads.
//!
//! In this crate "group" always means GPU group.

mod bind;
mod error;
mod gpu_group;
mod node;
mod reservation;
mod shell;

pub use error::Error;
pub use gpu_group::{GpuGroupKey, reservation_name};
pub use shell::args::Args;
pub use shell::run::run;
pub use shell::settings::{Choice, ReservationMode, Settings, TegraMode};
