//! What NVIDIA's kernel module says about its GPUs in `/proc/driver/nvidia`. It answers where the NVML library is missing, which is the
//! commonest fault in containers: then people can be told what is there. It is no source of devices to hand out.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Roots;

/// A GPU as the kernel module knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelGpu {
    /// Address as sysfs spells it.
    pub address: String,
    /// Product name.
    pub model: Option<String>,
    /// UUID; hidden from some containers.
    pub uuid: Option<String>,
    /// N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
}

/// Ordered by address.
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
        // An unreadable value is printed as question marks.
        Some(line.trim().to_owned()).filter(|value| !value.is_empty() && !value.starts_with("GPU-?") && value != "?")
    };
    Some(KernelGpu {
        address: dir.file_name()?.to_str()?.to_owned(),
        model: field("Model"),
        uuid: field("GPU UUID"),
        minor: field("Device Minor").and_then(|minor| minor.parse().ok()),
    })
}
