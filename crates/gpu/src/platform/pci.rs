//! Lists NVIDIA GPUs on the PCI bus from sysfs, including cards without a driver, which NVML does not list. Reads only.

use std::path::Path;

use super::read_trimmed;
use crate::{PciGpu, Roots};

const VENDOR_NVIDIA: u32 = 0x10de;
const CLASS_VGA: u32 = 0x0300;
const CLASS_3D: u32 = 0x0302;

/// The GPUs, ordered by address, so that the result does not depend on the directory's order.
pub(super) fn nvidia_gpus(roots: &Roots) -> Vec<PciGpu> {
    let Ok(entries) = std::fs::read_dir(roots.sys.join("bus/pci/devices")) else {
        return Vec::new();
    };
    let mut gpus: Vec<PciGpu> = entries.flatten().filter_map(|entry| read_gpu(&entry.path())).collect();
    gpus.sort_by(|a, b| a.address.cmp(&b.address));
    gpus
}

fn read_gpu(dir: &Path) -> Option<PciGpu> {
    let class = hex(&dir.join("class"))?;
    if hex(&dir.join("vendor"))? != VENDOR_NVIDIA || ![CLASS_VGA, CLASS_3D].contains(&(class >> 8)) {
        return None;
    }
    let driver = std::fs::read_link(dir.join("driver")).ok();
    let driver = driver.and_then(|target| Some(target.file_name()?.to_str()?.to_owned()));
    // The kernel reports -1 for an unknown node.
    let numa_node = read_trimmed(&dir.join("numa_node")).and_then(|text| text.parse::<u32>().ok());
    Some(PciGpu {
        address: dir.file_name()?.to_str()?.to_owned(),
        device_id: u16::try_from(hex(&dir.join("device"))?).ok()?,
        class,
        driver,
        numa_node,
    })
}

fn hex(path: &Path) -> Option<u32> {
    u32::from_str_radix(read_trimmed(path)?.strip_prefix("0x")?, 16).ok()
}
