//! The embedded cluster: a Kubernetes cluster in one process, for `kai playground` and for tests.
//!
//! | module | real counterpart | content |
//! |---|---|---|
//! | [`server`] | kube-apiserver and etcd | objects in memory, HTTP and in-process clients, watches, admission, fault injection |
//! | [`kubelet`] | kubelets and the node agent | simulated nodes: admission of pods, GPUs, pod statuses, evictions |
//! | [`workloads`] | kube-controller-manager | pods of Deployments, Jobs and other workloads, volumes, service accounts |
//! | [`invariants`] | none | checks of the whole cluster, for tests |
//! | [`large_objects`] | none | objects of the largest size that the API server stores, for tests of growth |
//!
//! The kubelets and the workload controllers use the Kubernetes API alone, so they also run on a real API server. No module here
//! decides which pod gets which GPU: the production roles decide that against this API server.

mod error;
pub mod invariants;
pub mod kubelet;
pub mod large_objects;
pub mod server;
pub mod workloads;

pub use error::Error;
