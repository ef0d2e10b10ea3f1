//! The node agent: what runs on every machine with GPUs.
//!
//! * [`allocator`] offers the GPUs to the kubelet and answers its questions (device plugin API);
//! * [`driver_files`] finds the driver's files and injects them into containers, by CDI or by plain mounts;
//! * [`share_devices`] brings parts of GPUs into containers, which the kubelet knows nothing of;
//! * [`labels`] says what the node has, [`health`] which of it may be used, [`metrics`] how it is doing;
//! * [`reservation_annotator`] writes on reservation pods which GPU they hold;
//! * [`in_process`] is all of that as plain calls, for simulated kubelets;
//! * [`agent`] ties these together; [`reservation`] and [`doctor`] are programs of their own.
//!
//! Architecture invariants: hardware is reached only through `kai_gpu::Driver`, Kubernetes only through the `cluster` crate. Every
//! decision (what to offer, to label, to inject) is a pure function; one task owns the state and the rest gets values. One
//! failing part is reported and retried, and never unregisters healthy devices.

pub mod agent;
pub mod allocator;
pub mod doctor;
pub mod driver_files;
mod error;
pub mod health;
pub mod in_process;
pub mod kubelet;
pub mod labels;
pub mod metrics;
pub mod podresources;
pub mod reservation;
pub mod reservation_annotator;
pub mod share_devices;
mod signals;

pub use error::Error;
