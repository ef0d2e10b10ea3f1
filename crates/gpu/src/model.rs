//! The facts about GPUs that other crates use. Plain data: no driver handle and no I/O. A fact that some platform does not report is an
//! `Option`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Everything known about the GPUs of one machine at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Inventory {
    /// What kind of machine this is.
    pub platform: Platform,
    /// Kernel driver version, for example `550.54.15`.
    pub driver_version: Option<String>,
    /// Newest CUDA version the driver supports.
    pub cuda_version: Option<CudaVersion>,
    /// Version of the NVML library.
    pub nvml_version: Option<String>,
    /// Where the NVML library was found.
    pub nvml_library: Option<String>,
    /// The devices, ordered by index.
    pub devices: Vec<Device>,
    /// Notes for operators: refused queries, messages of the library, conclusions. Each once.
    pub notes: Vec<String>,
}

impl Inventory {
    /// The device with this UUID, alias, index or the UUID of one of its MIG devices.
    pub fn device(&self, id: &str) -> Option<&Device> {
        self.devices
            .iter()
            .find(|device| device.uuid == id)
            .or_else(|| {
                self.devices
                    .iter()
                    .find(|device| device.mig_devices.iter().any(|mig| mig.uuid == id))
            })
            .or_else(|| {
                self.devices
                    .iter()
                    .find(|device| device.aliases.iter().any(|alias| alias == id))
            })
    }
}

/// The machine's platform, as `platform::detect` found it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Platform {
    /// The kind of machine.
    pub kind: PlatformKind,
    /// Machine name: DMI product name, or the device tree's model.
    pub machine: Option<String>,
    /// Facts about a Tegra; `None` on other machines.
    pub tegra: Option<TegraFacts>,
    /// NVIDIA GPUs on the PCI bus, whether a driver is bound or not.
    pub pci_gpus: Vec<PciGpu>,
}

/// The kind of machine, by how its GPUs are reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlatformKind {
    /// A Tegra SoC with an integrated GPU (Jetson, IGX, Drive), possibly with discrete GPUs beside it.
    Tegra,
    /// Discrete (or coherent, like GB10) GPUs under NVIDIA's standard driver.
    Nvml,
    /// Windows Subsystem for Linux.
    Wsl,
    /// A machine of the fake driver.
    Fake,
    /// No NVIDIA GPU is visible.
    #[default]
    None,
}

impl fmt::Display for PlatformKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PlatformKind::Tegra => "tegra",
            PlatformKind::Nvml => "nvml",
            PlatformKind::Wsl => "wsl",
            PlatformKind::Fake => "fake",
            PlatformKind::None => "none",
        })
    }
}

/// Facts from Tegra's files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TegraFacts {
    /// `tegra234` and the like, from the device tree.
    pub soc: Option<String>,
    /// L4T release, for example `36.4.3`.
    pub l4t_version: Option<String>,
    /// JetPack version, for example `6` or `7.1`.
    pub jetpack: Option<String>,
    /// Which kernel driver runs the integrated GPU.
    pub stack: Option<TegraStack>,
    /// Directory of the driver libraries from the release file, for example `/usr/lib/aarch64-linux-gnu/nvidia`.
    pub library_dir: Option<String>,
}

/// The two kernel drivers for integrated GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TegraStack {
    /// `nvgpu`: Orin and older. NVML is missing or supports few queries.
    Nvgpu,
    /// `nvidia.ko` (open kernel modules): Thor. NVML works, except for memory.
    OpenRm,
}

/// An NVIDIA display or 3D controller found on the PCI bus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PciGpu {
    /// Address in sysfs' notation: `0000:3b:00.0`.
    pub address: String,
    /// PCI device id, for example `0x20b0`.
    pub device_id: u16,
    /// PCI class: `0x030000` (VGA) or `0x030200` (3D).
    pub class: u32,
    /// Kernel driver bound to it: `nvidia`, `vfio-pci`, `nouveau`.
    pub driver: Option<String>,
    /// NUMA node.
    pub numa_node: Option<u32>,
}

/// One physical GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Position in the driver's enumeration.
    pub index: u32,
    /// Stable identity: NVML's UUID (`GPU-…`, without prefix on Orin), or one derived from the machine if NVML has none.
    pub uuid: String,
    /// Other names of this device for people and runtimes: the index, the UUID without prefix, `tegra`.
    pub aliases: Vec<String>,
    /// Discrete board or part of the SoC.
    pub kind: DeviceKind,
    /// N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// Marketing name.
    pub name: String,
    /// Total memory that workloads may use. With unified memory: the node's RAM without the system's reserve.
    pub memory_mib: Option<u64>,
    /// Dedicated memory, or memory shared with the CPU.
    pub memory_kind: MemoryKind,
    /// CUDA compute capability.
    pub compute_capability: Option<ComputeCapability>,
    /// PCI address as NVML prints it: `00000000:3B:00.0`.
    pub pci_bus_id: Option<String>,
    /// NUMA node.
    pub numa_node: Option<u32>,
    /// Devices with the same board id share a board.
    pub board_id: Option<u32>,
    /// Connections to the other devices.
    pub peers: Vec<Peer>,
    /// `None` if the hardware has no MIG or does not report it.
    pub mig_mode: Option<MigMode>,
    /// MIG devices, if MIG is enabled and partitions exist.
    pub mig_devices: Vec<MigDevice>,
}

impl Device {
    /// The PCI address in sysfs' notation: lower case, with a domain of four digits unless it needs more.
    pub fn sysfs_bus_id(&self) -> Option<String> {
        self.pci_bus_id.as_deref().map(sysfs_bus_id)
    }
}

/// Converts a PCI address from NVML's notation (`0000000F:01:00.0`) to sysfs' (`000f:01:00.0`).
pub fn sysfs_bus_id(nvml_bus_id: &str) -> String {
    let lower = nvml_bus_id.to_ascii_lowercase();
    match lower.strip_prefix("0000") {
        Some(short) if short.find(':') == Some(4) => short.to_owned(),
        Some(_) | None => lower,
    }
}

/// Whether a GPU is a card or part of the SoC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// On PCI (or a coherent link such as NVLink-C2C), under NVIDIA's standard driver.
    Discrete,
    /// Part of a Tegra SoC.
    Integrated,
}

/// Kind of GPU memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryKind {
    /// The GPU's own memory.
    Dedicated,
    /// The node's RAM: memory that a GPU workload uses is missing from the node's `memory`.
    Unified,
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemoryKind::Dedicated => "dedicated",
            MemoryKind::Unified => "unified",
        })
    }
}

/// CUDA compute capability, ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ComputeCapability {
    /// 9 of 9.0.
    pub major: u32,
    /// 0 of 9.0.
    pub minor: u32,
}

impl ComputeCapability {
    /// Architecture name for node labels. Thor's 11.x is Blackwell, which is missing in NVIDIA's own table.
    pub fn family(self) -> &'static str {
        match (self.major, self.minor) {
            (1, _) => "tesla",
            (2, _) => "fermi",
            (3, _) => "kepler",
            (5, _) => "maxwell",
            (6, _) => "pascal",
            (7, 0..5) => "volta",
            (7, _) => "turing",
            (8, 0..9) => "ampere",
            (8, _) => "ada-lovelace",
            (9, _) => "hopper",
            (10..=12, _) => "blackwell",
            (13, _) => "rubin",
            _ => "undefined",
        }
    }
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A CUDA version, ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CudaVersion {
    /// 12 of 12.6.
    pub major: u32,
    /// 6 of 12.6.
    pub minor: u32,
}

impl CudaVersion {
    /// From the driver's integer: 12060 is 12.6.
    pub fn from_driver(version: u32) -> Self {
        Self {
            major: version / 1000,
            minor: version % 1000 / 10,
        }
    }

    /// To the driver's integer.
    pub fn to_driver(self) -> u32 {
        self.major * 1000 + self.minor * 10
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The connection of one device to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// Index of the other device.
    pub index: u32,
    /// Active NVLinks to the other device, directly or through NVSwitch (then all links count for every peer).
    pub nvlinks: u32,
    /// Closest common ancestor on PCI.
    pub path: Option<PciPath>,
}

/// Closest common ancestor of two devices on PCI, nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PciPath {
    /// Same board.
    SameBoard,
    /// One PCI switch between.
    SingleSwitch,
    /// Several PCI switches between.
    MultipleSwitches,
    /// Same host bridge.
    HostBridge,
    /// Same NUMA node.
    SameNode,
    /// Across the CPU interconnect.
    System,
}

/// Whether a MIG-capable GPU is partitioned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MigMode {
    /// MIG is off.
    Disabled,
    /// MIG is on.
    Enabled,
}

/// One MIG device: a compute instance in a GPU instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigDevice {
    /// Position among the MIG devices of its GPU.
    pub index: u32,
    /// `MIG-…`.
    pub uuid: String,
    /// Profile name: `1g.10gb`, `1c.3g.40gb`, `1g.10gb+me`.
    pub profile: String,
    /// GPU instance id, as in `/proc/driver/nvidia-caps/mig-minors`.
    pub gpu_instance_id: u32,
    /// Compute instance id.
    pub compute_instance_id: u32,
    /// Which memory slices it occupies.
    pub placement: Option<Placement>,
    /// Memory of the partition.
    pub memory_mib: Option<u64>,
    /// Sizes, for labels.
    pub attributes: Option<MigAttributes>,
}

impl MigDevice {
    /// The last part of the resource name: `mig-1g.10gb`, with `.` for `+`, which Kubernetes does not allow.
    pub fn resource_suffix(&self) -> String {
        format!("mig-{}", self.profile.replace('+', "."))
    }
}

/// Memory slices from `start`, `size` of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// First slice.
    pub start: u32,
    /// Number of slices.
    pub size: u32,
}

/// Sizes of a MIG device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigAttributes {
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Slices of the GPU instance.
    pub gpu_instance_slices: u32,
    /// Slices of the compute instance.
    pub compute_instance_slices: u32,
    /// Copy engines.
    pub copy_engines: u32,
    /// Decoders.
    pub decoders: u32,
    /// Encoders.
    pub encoders: u32,
    /// JPEG engines.
    pub jpeg_engines: u32,
    /// Optical flow engines.
    pub ofa_engines: u32,
}

/// Measurements of one device at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Sample {
    /// Index of the device.
    pub index: u32,
    /// UUID of the device.
    pub uuid: String,
    /// Share of time in which a kernel ran.
    pub utilization_percent: Option<u32>,
    /// Share of time in which device memory was read or written.
    pub memory_utilization_percent: Option<u32>,
    /// Memory in use.
    pub memory_used_mib: Option<u64>,
    /// Free memory.
    pub memory_free_mib: Option<u64>,
    /// Temperature.
    pub temperature_celsius: Option<i32>,
    /// Power draw.
    pub power_milliwatts: Option<u64>,
    /// Why the device does not answer, in words for operators.
    pub unreachable: Option<String>,
}

/// A health event of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthEvent {
    /// UUID of the physical device; `None` for every device of the machine.
    pub uuid: Option<String>,
    /// The MIG device, if only one is affected.
    pub mig: Option<MigInstance>,
    /// What happened.
    pub kind: HealthEventKind,
}

/// A MIG device in an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigInstance {
    /// GPU instance id.
    pub gpu_instance_id: u32,
    /// Compute instance id.
    pub compute_instance_id: u32,
}

/// What happened to a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HealthEventKind {
    /// The driver reported a critical error with this number.
    Xid(u64),
    /// An uncorrectable memory error.
    DoubleBitEcc,
    /// The device (or, without a UUID, the whole driver) stopped answering.
    Lost {
        /// Why, in words for operators.
        reason: String,
    },
    /// The device or driver answers again.
    Recovered,
    /// Devices were added, removed or repartitioned: the inventory must be listed again.
    InventoryChanged,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_are_spelled_as_sysfs_does() {
        assert_eq!(sysfs_bus_id("00000000:3B:00.0"), "0000:3b:00.0");
        assert_eq!(sysfs_bus_id("0000000F:01:00.0"), "000f:01:00.0");
        assert_eq!(sysfs_bus_id("00010000:01:00.0"), "00010000:01:00.0");
        assert_eq!(sysfs_bus_id("0000:01:00.0"), "0000:01:00.0");
    }

    #[test]
    fn every_capability_has_a_family() {
        let family = |major, minor| ComputeCapability { major, minor }.family();
        assert_eq!(family(7, 0), "volta");
        assert_eq!(family(7, 5), "turing");
        assert_eq!(family(8, 7), "ampere");
        assert_eq!(family(8, 9), "ada-lovelace");
        assert_eq!(family(11, 0), "blackwell");
        assert_eq!(family(12, 1), "blackwell");
        assert_eq!(family(4, 0), "undefined");
    }

    #[test]
    fn cuda_versions_survive_a_two_digit_minor() {
        let version = CudaVersion::from_driver(13100);
        assert_eq!(version.to_string(), "13.10");
        assert_eq!(version.to_driver(), 13100);
    }
}
