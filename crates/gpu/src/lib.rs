//! The GPUs of this machine: facts, measurements and health.
//!
//! [`Driver`] is the only interface to hardware. Its implementations use NVML loaded at run time, Tegra's files, or fake GPUs from a table
//! of profiles. Callers see one model ([`Inventory`], [`Sample`], [`HealthEvent`]) and one error ([`GpuError`]).
//!
//! Architecture invariant: this crate uses no Kubernetes, no kubelet, no network and no async runtime. It creates no device node and opens
//! no CUDA context. It changes two settings of the driver, and only when it is asked to: the memory limits of a cgroup and the compute mode
//! of a GPU. A missing library is an error of a call, never a crash.
//!
//! [`code_pages`] is not about GPUs; it is here because this crate may use `unsafe`.

pub mod code_pages;
mod driver;
mod error;
pub mod fake;
mod identity;
pub mod linker;
mod memory_limits;
mod model;
pub mod nvml;
mod open;
pub mod platform;
mod processes;
mod roots;
mod stderr_capture;
pub mod tegra;

pub use driver::{Driver, DriverKind, NoGpu};
pub use error::GpuError;
pub use identity::{aliases_of, stable_uuid};
pub use memory_limits::{CgroupMemory, MemoryLimitError, MemoryLimitSupport, MemoryLimits, NvmlCode, set_and_verify};
pub use model::*;
pub use open::{DriverChoice, NVML_LIBRARY_ENV, OpenOptions, Opened, open};
pub use processes::{GpuComputeMode, GpuProcess, GpuProcessKind, GpuProcesses, ProcessList};
pub use roots::Roots;
