//! The node agent, which runs on every machine with GPUs.
//!
//! * [`allocator`] offers the GPUs to the kubelet and answers its calls (device plugin API);
//! * [`driver_files`] finds the driver's files and injects them into containers, by CDI or by mounts;
//! * [`share_devices`] injects GPU shares into containers;
//! * [`enforcement`] holds containers to their GPU share, and checks that they are held;
//! * [`plugin_config`] reads the node's configuration from a ConfigMap of NVIDIA's device plugin;
//! * [`labels`] decides the node's labels, [`health`] which GPUs may be allocated, [`metrics`] serves measurements;
//! * [`reservation_annotator`] annotates reservation pods with the GPU that they hold;
//! * [`in_process`] offers these decisions as plain calls, for simulated kubelets;
//! * [`agent`] wires these together; [`reservation`] and [`doctor`] are programs of their own.
//!
//! Architecture invariants: the crate reaches hardware only through `kai_gpu::Driver` and Kubernetes only through `kai_cluster`. Every
//! decision (offers, labels, injection) is a pure function; one task owns the state, and other tasks receive snapshots. A part that fails
//! is reported and tried again, and never unregisters healthy devices.

pub mod agent;
pub mod allocator;
pub mod doctor;
mod driver_call;
pub mod driver_files;
pub mod enforcement;
mod error;
pub mod health;
pub mod in_process;
pub mod kubelet;
pub mod labels;
pub mod metrics;
pub mod plugin_config;
pub mod podresources;
pub mod reservation;
pub mod reservation_annotator;
pub mod share_devices;
mod signals;
mod unused_code;

pub use error::Error;
pub use unused_code::release_unused_code;
