//! What GPUs this machine has, and how they are doing.
//!
//! [`Driver`] is the one door to hardware. Behind it: NVML loaded at run time, Tegra read from files, or a fake built from a
//! table of profiles. Callers see one model ([`Inventory`], [`Sample`], [`HealthEvent`]) and one error ([`GpuError`]).
//!
//! Architecture invariant: this crate knows no Kubernetes, no kubelet, no network and no async runtime. It never changes the
//! machine: no device node is created, no mode is set, no CUDA context is opened. A missing library is a state, not a crash.
//!
//! [`code_pages`] has nothing to do with GPUs; it is here because this is the crate that may call the system unsafely.

pub mod code_pages;
mod driver;
mod error;
pub mod fake;
mod identity;
pub mod linker;
mod model;
mod noise;
pub mod nvml;
mod open;
pub mod platform;
mod roots;
pub mod tegra;

pub use driver::{Driver, DriverKind, NoGpu};
pub use error::GpuError;
pub use identity::{aliases_of, stable_uuid};
pub use model::*;
pub use open::{DriverChoice, NVML_LIBRARY_ENV, OpenOptions, Opened, open};
pub use roots::Roots;
