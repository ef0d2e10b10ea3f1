//! A fake `libnvidia-ml.so.1`.
//!
//! Exports NVML's C API over the fake machine of the `gpu` crate, so that any NVML client (ours, `nvidia-ml-py`, `gpustat`, `nvitop`) runs
//! without a GPU. Its settings come from the environment (see [`environment`]); a control file changes the state while clients run. Every
//! NVML symbol that known clients look up is exported; functions that are not implemented return `NVML_ERROR_NOT_SUPPORTED`.
//!
//! Architecture invariant: it never opens a device, never talks to a driver, and never panics into its caller.

// The exported names are NVML's.
#![allow(non_snake_case)]

mod abi;
mod code;
mod device;
pub mod environment;
mod event;
mod limits;
mod locate;
mod measure;
mod mig;
mod process;
mod state;
mod system;
mod topology;
mod unsupported;

pub use locate::{LocateError, install, install_without};
