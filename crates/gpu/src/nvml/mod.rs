//! NVML behind the [`Driver`](crate::Driver) trait: the library is found and loaded at run time, every call is optional, and the loss of
//! the library or of a device is a state that ends when it returns. Never sets anything; never opens a CUDA context.

mod device;
mod driver;
mod errors;
mod library;
mod mig;
mod peers;
mod raw;
mod search;
mod watch;

pub use driver::NvmlDriver;
pub use search::{Candidate, SONAME, search_path};
