//! Integrated GPUs of Tegra systems: what the SoC's files say, with NVML's help where NVML is any help. NVML may be absent (JetPack 5),
//! poor (Orin) or real (Thor); its failure never takes the integrated GPU away. Never opens a device node, never starts CUDA.

mod driver;
mod igpu;
mod sysfs;

pub use driver::TegraDriver;
pub use igpu::board_uuid;
pub(crate) use igpu::is_integrated_name;
