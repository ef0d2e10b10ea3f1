//! NVML behind the [`Driver`](crate::Driver) trait: the library is found and loaded at run time, every call is optional, and a lost library
//! or device recovers when it returns. Never opens a CUDA context.

mod device;
mod driver;
mod errors;
mod library;
mod limits;
mod mig;
mod peers;
mod raw;
mod search;
mod watch;

pub use driver::NvmlDriver;
pub use search::{Candidate, SONAME, search_path};
