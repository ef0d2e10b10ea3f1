//! Reservation pods. Each holds one whole GPU of a node for a GPU group, so that the kubelet gives this GPU to no other pod.
//!
//! 1. A bind finds the group's reservation pod by its name, which is a digest of node and group, and asks [`state`] for its state.
//! 2. If the pod is missing, the bind creates it ([`manifest`], [`pods`]) with `spec.nodeName` set. The kubelet gives it a GPU; the node
//!    agent, or the pod itself by NVML, annotates it with the UUID of that GPU. [`pending`] remembers which binds wait for that.
//! 3. Once the last user of a group is gone, [`reconcile`] deletes the reservation pod. [`gc`] decides that.
//! 4. If a reservation pod is lost under running pods, [`reconcile`] recreates it. The new pod must get the same GPU again:
//!    [`placeholders`] occupy the other GPUs of the node for a moment if the kubelet chooses a wrong one.
//!
//! Binds and garbage collection exclude each other per group by [`locks`].

pub(crate) mod gc;
pub(crate) mod locks;
pub(crate) mod manifest;
pub(crate) mod pending;
pub(crate) mod placeholders;
pub(crate) mod pods;
mod reconcile;
pub(crate) mod state;
