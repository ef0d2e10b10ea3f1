//! The GPUs that NVIDIA's kernel module lists in `/proc/driver/nvidia`. They are visible even if the NVML library is missing, the most
//! common fault in containers, and are shown to people. Devices to offer never come from here.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Roots;

/// A GPU in the kernel module's list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelGpu {
    /// PCI address in sysfs' notation.
    pub address: String,
    /// Product name.
    pub model: Option<String>,
    /// UUID; hidden from some containers.
    pub uuid: Option<String>,
    /// N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
}

/// The GPUs of the kernel module, ordered by address.
pub(super) fn kernel_gpus(roots: &Roots) -> Vec<KernelGpu> {
    let Ok(entries) = std::fs::read_dir(roots.proc.join("driver/nvidia/gpus")) else {
        return Vec::new();
    };
    let mut gpus: Vec<KernelGpu> = entries.flatten().filter_map(|entry| read(&entry.path())).collect();
    gpus.sort_by(|a, b| a.address.cmp(&b.address));
    gpus
}

fn read(dir: &Path) -> Option<KernelGpu> {
    let text = std::fs::read_to_string(dir.join("information")).ok()?;
    let field = |name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))?;
        // The module prints an unreadable value as question marks.
        Some(line.trim().to_owned()).filter(|value| !value.is_empty() && !value.starts_with("GPU-?") && value != "?")
    };
    Some(KernelGpu {
        address: dir.file_name()?.to_str()?.to_owned(),
        model: field("Model"),
        uuid: field("GPU UUID"),
        minor: field("Device Minor").and_then(|minor| minor.parse().ok()),
    })
}
