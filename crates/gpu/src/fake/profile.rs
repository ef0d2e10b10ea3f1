//! The table of fake hardware. The numbers are those that the real products report. A driver behavior says which queries the real driver
//! refuses there, because refused queries are what breaks software on Jetsons and on GB10.

use super::mig::{self, MigProfile};
use crate::{ComputeCapability, CudaVersion, MemoryKind};

/// One product.
#[derive(Debug)]
pub struct Profile {
    /// Name in settings.
    pub id: &'static str,
    /// Product name that the driver reports.
    pub name: &'static str,
    /// Machine that usually contains it.
    pub machine: &'static str,
    /// Which queries the driver supports.
    pub behavior: DriverBehavior,
    /// Total memory. For unified memory: RAM of the usual machine.
    pub memory_mib: u64,
    /// Compute capability.
    pub compute_capability: ComputeCapability,
    /// PCI device id (without the vendor's).
    pub pci_device_id: u16,
    /// PCI domain: 15 on GB10, which breaks careless parsers.
    pub pci_domain: u32,
    /// NVML's architecture number.
    pub architecture: u32,
    /// NVML's brand number.
    pub brand: u32,
    /// CUDA cores.
    pub cores: u32,
    /// Power draw when idle.
    pub idle_watts: u32,
    /// Power limit.
    pub limit_watts: u32,
    /// Temperature when idle.
    pub idle_celsius: u32,
    /// NVLinks per GPU, all to NVSwitch.
    pub nvlinks: u32,
    /// A kernel driver version that supports it.
    pub driver_version: &'static str,
    /// The CUDA version of that driver.
    pub cuda_version: CudaVersion,
    /// MIG profiles; empty if it has no MIG.
    pub mig: &'static [MigProfile],
}

impl Profile {
    /// Dedicated memory, or memory shared with the CPU.
    pub fn memory_kind(&self) -> MemoryKind {
        match self.behavior {
            DriverBehavior::Datacenter => MemoryKind::Dedicated,
            DriverBehavior::Gb10 | DriverBehavior::Nvgpu | DriverBehavior::Thor => MemoryKind::Unified,
        }
    }

    /// Whether the real driver supports this query on this hardware.
    pub fn supports(&self, query: QueryGroup) -> bool {
        match (self.behavior, query) {
            // Thor reports MIG as disabled, although no profile is known to be useful there.
            (DriverBehavior::Thor, QueryGroup::Mig) => true,
            (_, QueryGroup::Mig) => !self.mig.is_empty(),
            (DriverBehavior::Datacenter, _) => true,
            (DriverBehavior::Gb10, QueryGroup::Memory | QueryGroup::Fan) => false,
            (DriverBehavior::Gb10, _) => true,
            // nvgpu's NVML reports names, UUIDs, versions and capabilities, but no measurements.
            (DriverBehavior::Nvgpu, _) => false,
            (DriverBehavior::Thor, query) => matches!(
                query,
                QueryGroup::Minor
                    | QueryGroup::Pci
                    | QueryGroup::Utilization
                    | QueryGroup::Processes
                    | QueryGroup::Codec
            ),
        }
    }
}

/// Which queries a kind of driver supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DriverBehavior {
    /// A PCI card under NVIDIA's standard driver: all queries work.
    Datacenter,
    /// DGX Spark: standard driver, memory not reported.
    Gb10,
    /// Orin under `nvgpu`: a UUID without prefix, and few other facts.
    Nvgpu,
    /// Thor under the open kernel modules: all but memory, temperature, power and some others.
    Thor,
}

/// Groups of NVML calls that succeed or fail together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueryGroup {
    /// N of `/dev/nvidiaN`.
    Minor,
    /// PCI address.
    Pci,
    /// Memory total, used, free.
    Memory,
    /// Busy percentages.
    Utilization,
    /// Encoder and decoder percentages.
    Codec,
    /// Temperature.
    Temperature,
    /// Power draw and limits.
    Power,
    /// Fan speed.
    Fan,
    /// Clock rates.
    Clocks,
    /// Processes on the GPU.
    Processes,
    /// MIG mode and devices.
    Mig,
    /// Event sets.
    Events,
    /// ECC counters.
    Ecc,
    /// NVLink state and topology.
    Topology,
    /// How many processes may use the GPU.
    ComputeMode,
}

/// The profile of this name.
pub fn profile(id: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|profile| profile.id == id)
}

/// The names of all profiles, for messages.
pub fn profile_names() -> String {
    let names: Vec<&str> = PROFILES.iter().map(|profile| profile.id).collect();
    names.join(", ")
}

const fn cc(major: u32, minor: u32) -> ComputeCapability {
    ComputeCapability { major, minor }
}

const fn cuda(major: u32, minor: u32) -> CudaVersion {
    CudaVersion { major, minor }
}

/// Defaults of a datacenter card; the table below overrides them.
const CARD: Profile = Profile {
    id: "",
    name: "",
    machine: "Generic GPU Server",
    behavior: DriverBehavior::Datacenter,
    memory_mib: 0,
    compute_capability: cc(8, 0),
    pci_device_id: 0,
    pci_domain: 0,
    architecture: 7,
    brand: 14,
    cores: 0,
    idle_watts: 55,
    limit_watts: 400,
    idle_celsius: 31,
    nvlinks: 0,
    driver_version: "570.133.20",
    cuda_version: cuda(12, 8),
    mig: &[],
};

/// All products, in the order documentation lists them.
pub static PROFILES: &[Profile] = &[
    Profile {
        id: "t4",
        name: "Tesla T4",
        memory_mib: 15_360,
        compute_capability: cc(7, 5),
        pci_device_id: 0x1eb8,
        architecture: 6,
        brand: 2,
        cores: 2560,
        idle_watts: 9,
        limit_watts: 70,
        ..CARD
    },
    Profile {
        id: "a100-40",
        name: "NVIDIA A100-SXM4-40GB",
        machine: "DGXA100 920-23687-2530-000",
        memory_mib: 40_960,
        pci_device_id: 0x20b0,
        cores: 6912,
        nvlinks: 12,
        mig: mig::A100_40,
        ..CARD
    },
    Profile {
        id: "a100-80",
        name: "NVIDIA A100-SXM4-80GB",
        machine: "DGXA100 920-23687-2531-000",
        memory_mib: 81_920,
        pci_device_id: 0x20b2,
        cores: 6912,
        nvlinks: 12,
        mig: mig::A100_80,
        ..CARD
    },
    Profile {
        id: "h100",
        name: "NVIDIA H100 80GB HBM3",
        machine: "DGXH100",
        memory_mib: 81_559,
        compute_capability: cc(9, 0),
        pci_device_id: 0x2330,
        architecture: 9,
        cores: 16896,
        idle_watts: 70,
        limit_watts: 700,
        nvlinks: 18,
        mig: mig::H100,
        ..CARD
    },
    Profile {
        id: "h200",
        name: "NVIDIA H200",
        machine: "DGXH200",
        memory_mib: 143_771,
        compute_capability: cc(9, 0),
        pci_device_id: 0x2335,
        architecture: 9,
        cores: 16896,
        idle_watts: 75,
        limit_watts: 700,
        nvlinks: 18,
        mig: mig::H200,
        ..CARD
    },
    Profile {
        id: "b200",
        name: "NVIDIA B200",
        machine: "DGXB200",
        memory_mib: 183_359,
        compute_capability: cc(10, 0),
        pci_device_id: 0x2901,
        architecture: 10,
        cores: 18944,
        idle_watts: 140,
        limit_watts: 1000,
        nvlinks: 18,
        driver_version: "580.95.05",
        cuda_version: cuda(13, 0),
        mig: mig::B200,
        ..CARD
    },
    Profile {
        id: "gb200",
        name: "NVIDIA GB200",
        machine: "GB200 NVL",
        memory_mib: 189_471,
        compute_capability: cc(10, 0),
        pci_device_id: 0x2941,
        pci_domain: 8,
        architecture: 10,
        cores: 19456,
        idle_watts: 150,
        limit_watts: 1200,
        nvlinks: 18,
        driver_version: "580.95.05",
        cuda_version: cuda(13, 0),
        mig: mig::GB200,
        ..CARD
    },
    Profile {
        id: "l40s",
        name: "NVIDIA L40S",
        memory_mib: 46_068,
        compute_capability: cc(8, 9),
        pci_device_id: 0x26b9,
        architecture: 8,
        cores: 18176,
        idle_watts: 35,
        limit_watts: 350,
        ..CARD
    },
    Profile {
        id: "rtx-6000-ada",
        name: "NVIDIA RTX 6000 Ada Generation",
        memory_mib: 49_140,
        compute_capability: cc(8, 9),
        pci_device_id: 0x26b1,
        architecture: 8,
        brand: 12,
        cores: 18176,
        idle_watts: 25,
        limit_watts: 300,
        ..CARD
    },
    Profile {
        id: "orin-nano",
        name: "Orin (nvgpu)",
        machine: "NVIDIA Jetson Orin Nano Developer Kit",
        behavior: DriverBehavior::Nvgpu,
        memory_mib: 7_619,
        compute_capability: cc(8, 7),
        brand: 0,
        cores: 1024,
        driver_version: "540.4.0",
        cuda_version: cuda(12, 6),
        ..CARD
    },
    Profile {
        id: "orin-agx",
        name: "Orin (nvgpu)",
        machine: "NVIDIA Jetson AGX Orin Developer Kit",
        behavior: DriverBehavior::Nvgpu,
        memory_mib: 62_834,
        compute_capability: cc(8, 7),
        brand: 0,
        cores: 2048,
        driver_version: "540.4.0",
        cuda_version: cuda(12, 6),
        ..CARD
    },
    Profile {
        id: "thor",
        name: "NVIDIA Thor",
        machine: "NVIDIA Jetson AGX Thor Developer Kit",
        behavior: DriverBehavior::Thor,
        memory_mib: 125_747,
        compute_capability: cc(11, 0),
        pci_device_id: 0x2b00,
        architecture: 10,
        brand: 0,
        cores: 2560,
        driver_version: "595.78",
        cuda_version: cuda(13, 2),
        ..CARD
    },
    Profile {
        id: "gb10",
        name: "NVIDIA GB10",
        machine: "NVIDIA_DGX_Spark",
        behavior: DriverBehavior::Gb10,
        memory_mib: 124_610,
        compute_capability: cc(12, 1),
        pci_device_id: 0x2e12,
        pci_domain: 15,
        architecture: 10,
        brand: 0,
        cores: 6144,
        idle_watts: 4,
        limit_watts: 140,
        driver_version: "580.95.05",
        cuda_version: cuda(13, 0),
        ..CARD
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_facts_complete() {
        let mut ids: Vec<&str> = PROFILES.iter().map(|profile| profile.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), PROFILES.len());
        for profile in PROFILES {
            assert!(
                !profile.name.is_empty() && profile.memory_mib > 0 && profile.cores > 0,
                "{}",
                profile.id
            );
            assert!(
                profile.behavior == DriverBehavior::Nvgpu || profile.pci_device_id != 0,
                "{}",
                profile.id
            );
        }
    }
}
