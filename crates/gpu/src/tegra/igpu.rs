//! Facts about the integrated GPU from files: identity, compute capability, device nodes. Measurements are in `sysfs`, NVML in `driver`.

use crate::platform::{MachineMemory, MemoryReserve, read_trimmed};
use crate::{
    ComputeCapability, Device, DeviceKind, GpuError, MemoryKind, Platform, Roots, TegraFacts, TegraStack, aliases_of,
    stable_uuid,
};

/// Device nodes of which at least one exists if the integrated GPU works, for `nvgpu` and for `nvidia.ko`.
const NODES_NVGPU: [&str; 3] = ["nvgpu/igpu0", "nvhost-ctrl-gpu", "nvhost-gpu"];
const NODES_OPEN_RM: [&str; 2] = ["nvidia0", "nvidiactl"];

/// Name and compute capability of a SoC's GPU. The names are NVML's, so that a node's labels do not depend on NVML.
fn soc_facts(soc: Option<&str>) -> (&'static str, Option<ComputeCapability>) {
    let cc = |major, minor| Some(ComputeCapability { major, minor });
    match soc {
        Some("tegra264") => ("NVIDIA Thor", cc(11, 0)),
        Some("tegra234") => ("Orin (nvgpu)", cc(8, 7)),
        Some("tegra194") => ("Xavier (nvgpu)", cc(7, 2)),
        Some("tegra186") => ("TX2 (nvgpu)", cc(6, 2)),
        Some("tegra210") => ("Nano (nvgpu)", cc(5, 3)),
        Some(_) | None => ("Tegra (nvgpu)", None),
    }
}

/// Compute capability of the SoC, for NVML versions that do not report it.
pub(super) fn capability(facts: &TegraFacts) -> Option<ComputeCapability> {
    soc_facts(facts.soc.as_deref()).1
}

/// Whether a device of NVML is the integrated GPU, by its name. Thor's integrated GPU appears as a PCI device.
pub(crate) fn is_integrated_name(name: &str) -> bool {
    name.contains("(nvgpu)") || name.contains("NVIDIA Thor")
}

/// The device, described from files alone.
pub(super) fn from_files(
    roots: &Roots,
    platform: &Platform,
    reserve: MemoryReserve,
    index: u32,
) -> Result<Device, GpuError> {
    let facts = platform.tegra.clone().unwrap_or_default();
    let (name, compute_capability) = soc_facts(facts.soc.as_deref());
    let uuid = board_uuid(roots, platform);
    let memory = MachineMemory::read(roots)?;
    Ok(Device {
        index,
        aliases: aliases(index, &uuid),
        uuid,
        kind: DeviceKind::Integrated,
        minor: None,
        name: name.to_owned(),
        memory_mib: Some(reserve.usable_mib(memory.total_mib)),
        memory_kind: MemoryKind::Unified,
        compute_capability,
        pci_bus_id: None,
        numa_node: None,
        board_id: None,
        peers: Vec::new(),
        mig_mode: None,
        mig_devices: Vec::new(),
    })
}

/// Names of an integrated GPU: also `tegra`, which NVIDIA's device plugin uses.
pub(super) fn aliases(index: u32, uuid: &str) -> Vec<String> {
    let mut aliases = aliases_of(index, uuid);
    aliases.push("tegra".to_owned());
    aliases
}

/// Derives a UUID for a board's integrated GPU that has none. It is stable for a machine: derived from its machine id, else its serial
/// number, else its model.
pub fn board_uuid(roots: &Roots, platform: &Platform) -> String {
    let machine = read_trimmed(&roots.in_host("/etc/machine-id"))
        .or_else(|| read_trimmed(&roots.device_tree.join("serial-number")))
        .or_else(|| platform.machine.clone())
        .unwrap_or_default();
    stable_uuid(&["tegra", &machine, "igpu0"])
}

/// The GPU's device nodes that exist.
pub(super) fn visible_nodes(roots: &Roots, facts: &TegraFacts) -> Vec<String> {
    let nodes: &[&str] = match facts.stack {
        Some(TegraStack::OpenRm) => &NODES_OPEN_RM,
        Some(TegraStack::Nvgpu) | None => &NODES_NVGPU,
    };
    nodes
        .iter()
        .filter(|node| roots.dev.join(node).exists())
        .map(|node| format!("/dev/{node}"))
        .collect()
}

/// Whether the kernel drives the integrated GPU. On IGX with a discrete GPU it may be off.
pub(super) fn is_driven(roots: &Roots, facts: &TegraFacts) -> bool {
    let devfreq = roots.sys.join("class/devfreq");
    let known = ["17000000.gpu", "17000000.ga10b", "gpu-gpc-0"];
    !visible_nodes(roots, facts).is_empty() || known.iter().any(|name| devfreq.join(name).exists())
}
