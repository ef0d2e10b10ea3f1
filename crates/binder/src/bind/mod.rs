//! One BindRequest, from plan to Binding.
//!
//! An attempt ([`attempt`]) reads the BindRequest and its pod and continues from there. An attempt that has to wait ends and is requeued,
//! so no bind delays another. For a pod with a GPU share it goes through these steps:
//!
//! 1. [`plan`]: decide whether and how to bind the pod. [`volumes`]: ask for the volumes of claims that have none, and wait for them.
//! 2. [`limits`]: compute the limits that the pod gets; refuse a node that can't keep them. [`reserve`]: get a reservation pod with a known
//!    GPU for each GPU group; wait for it if necessary.
//! 3. `announce`: write the group labels, the assigned GPUs and the limits on the pod. Other binds see the announced pod from here on.
//! 4. `mark_reservation_used`: annotate the reservation pods, so that a deletion that was decided earlier fails on their version.
//! 5. [`final_check`]: read the node again and check that the share fits and that the GPU belongs to this group alone. The check comes
//!    after the announcement: of two binds that compete for the same memory at least one sees the other.
//! 6. [`config_maps`]: write the ConfigMaps that the container reads its devices from ([`gpu_share`] has their content).
//! 7. `post_binding`: create the Binding, for exactly the version of the pod that was checked.
//! 8. [`report`]: write the status of the BindRequest, the pod condition and the event.
//!
//! [`failure`] has the reasons why a bind fails. A failed attempt takes back steps 3 and 6 ([`rollback`]) and what it asked for claims that are not bound, before it reports the failure. The
//! reservation pods are left to `reservation::reconcile`, which knows their other users. A pod without a GPU share needs steps 1, 3, 7 and 8 only.

pub(crate) mod attempt;
mod config_maps;
pub(crate) mod failure;
mod final_check;
mod gpu_share;
mod limits;
mod plan;
pub(crate) mod progress;
pub(crate) mod report;
mod reserve;
mod rollback;
mod volumes;
