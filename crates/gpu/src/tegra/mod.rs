//! Integrated GPUs of Tegra systems, from the SoC's files and from NVML. NVML may be absent (JetPack 5), limited (Orin) or complete (Thor);
//! without it the integrated GPU is still reported. Never opens a device node, never starts CUDA.

mod driver;
mod igpu;
mod sysfs;

pub use driver::TegraDriver;
pub use igpu::board_uuid;
pub(crate) use igpu::is_integrated_name;
