//! The machine's RAM, which on machines with unified memory is the GPU's memory too.

use std::path::Path;

use crate::{GpuError, Roots};

/// Memory of the machine, from `/proc/meminfo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineMemory {
    /// `MemTotal`.
    pub total_mib: u64,
    /// `MemAvailable`: memory that can be allocated without swapping. `MemFree` counts the page cache as used, which is most of the memory
    /// once a model file was read.
    pub available_mib: u64,
}

impl MachineMemory {
    /// Reads `/proc/meminfo` under the given roots.
    pub fn read(roots: &Roots) -> Result<Self, GpuError> {
        Self::read_file(&roots.proc.join("meminfo"))
    }

    fn read_file(path: &Path) -> Result<Self, GpuError> {
        let text = std::fs::read_to_string(path).map_err(|source| GpuError::File {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).ok_or_else(|| GpuError::File {
            path: path.to_owned(),
            source: std::io::Error::new(std::io::ErrorKind::InvalidData, "no MemTotal line"),
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let kib = |key: &str| -> Option<u64> {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let total = kib("MemTotal")?;
        let available = kib("MemAvailable").or_else(|| kib("MemFree")).unwrap_or(0);
        Some(Self {
            total_mib: total / 1024,
            available_mib: available.min(total) / 1024,
        })
    }
}

/// RAM that is not offered as GPU memory, because the system, the kubelet and pods without a GPU need it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MemoryReserve {
    /// A tenth, at least 512 MiB and at most 2 GiB: what an operating system, a kubelet and their services take does not grow with the RAM. Four
    /// workloads of 30 GiB fit on a Jetson with 128 GB, which has 122.8 GiB.
    #[default]
    Auto,
    /// Exactly this.
    Mib(u64),
}

impl MemoryReserve {
    /// The part of `total_mib` that GPU workloads may use; never zero, because zero means "unknown".
    pub fn usable_mib(self, total_mib: u64) -> u64 {
        let reserve = match self {
            MemoryReserve::Auto => (total_mib / 10).clamp(512, 2048),
            MemoryReserve::Mib(mib) => mib,
        };
        total_mib.saturating_sub(reserve).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_whole_mib() {
        let text = "MemTotal:        7802000 kB\nMemFree:          100000 kB\nMemAvailable:    5120000 kB\n";
        let memory = MachineMemory::parse(text).unwrap();
        assert_eq!(
            memory,
            MachineMemory {
                total_mib: 7619,
                available_mib: 5000
            }
        );
        assert_eq!(MachineMemory::parse("nothing"), None);
    }

    #[test]
    fn the_reserve_scales_but_stays_sensible() {
        assert_eq!(MemoryReserve::Auto.usable_mib(7619), 6858);
        assert_eq!(MemoryReserve::Auto.usable_mib(2048), 1536);
        assert_eq!(MemoryReserve::Auto.usable_mib(125_747), 123_699);
        assert_eq!(MemoryReserve::Mib(0).usable_mib(7619), 7619);
        assert_eq!(MemoryReserve::Mib(9999).usable_mib(7619), 1);
    }
}
