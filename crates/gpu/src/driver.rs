//! The interface to GPU hardware: one object-safe trait. The inventory's notes say where facts came from.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use crate::memory_limits::{get_attempt, set_attempt};
use crate::{
    CgroupMemory, GpuComputeMode, GpuError, GpuProcesses, HealthEvent, Inventory, MemoryLimitError, MemoryLimitSupport,
    MemoryLimits, ProcessList, Sample,
};

/// Why a driver other than NVML has no memory limits.
const NO_LIMITS: &str = "this driver has no memory limits per cgroup";

/// Lists, measures and watches the GPUs of one machine.
///
/// Every method may block for as long as the driver does, so an async caller wraps calls in a blocking task. All methods take
/// `&self` and may be called from several threads.
pub trait Driver: fmt::Debug + Send + Sync {
    /// Which implementation this is, for logs and metrics.
    fn kind(&self) -> DriverKind;

    /// All devices with all known facts. A device that no longer answers (lost, reset required) stays in the list with its last known
    /// facts, so that its UUID does not come and go; [`Driver::probe`] returns its state.
    fn devices(&self) -> Result<Inventory, GpuError>;

    /// Current measurements, one per device of [`Driver::devices`], in the same order. A measurement the hardware does not
    /// offer is `None`; a device that does not answer has [`Sample::unreachable`] set.
    fn samples(&self) -> Result<Vec<Sample>, GpuError>;

    /// Checks whether one device answers, by the cheapest call that fails for a lost device. `uuid` is that of a device or of a MIG device,
    /// whose parent is then checked.
    fn probe(&self, uuid: &str) -> Result<(), GpuError>;

    /// Waits up to `timeout` for health events. Returns at once with all that are due, or an empty list at the timeout.
    /// Events are delivered once, so one thread per driver should wait. Drivers without events sleep and return nothing.
    fn wait_events(&self, timeout: Duration) -> Result<Vec<HealthEvent>, GpuError>;

    /// Whether the driver's library has the calls for memory limits per cgroup. `Offered` does not say that a GPU takes a limit. `Unknown` while
    /// the driver does not answer.
    fn memory_limit_support(&self) -> MemoryLimitSupport {
        MemoryLimitSupport::Missing {
            reason: NO_LIMITS.to_owned(),
        }
    }

    /// Whether the driver counts the memory of cgroups with a controller of the kernel, which the host then needs: DMEM or MISC. The fake
    /// driver counts by itself.
    fn counts_by_controller(&self) -> bool {
        true
    }

    /// The memory limits of a cgroup on a GPU, and what the cgroup uses. `gpu` is a UUID; `cgroup` is the full path of the cgroup's
    /// directory as this process sees it. An error does not prove that there is no limit, nor that limits are not supported.
    fn memory_limits(&self, gpu: &str, cgroup: &Path) -> Result<CgroupMemory, MemoryLimitError> {
        Err(MemoryLimitError::Missing {
            attempt: get_attempt(gpu, cgroup),
            reason: NO_LIMITS.to_owned(),
        })
    }

    /// Sets the memory limits of a cgroup on a GPU. Needs root and `CAP_SYS_ADMIN`. [`crate::set_and_verify`] also reads them back.
    fn set_memory_limits(&self, gpu: &str, cgroup: &Path, limits: MemoryLimits) -> Result<(), MemoryLimitError> {
        Err(MemoryLimitError::Missing {
            attempt: set_attempt(gpu, cgroup, limits),
            reason: NO_LIMITS.to_owned(),
        })
    }

    /// The processes on each GPU of [`Driver::devices`], in the same order. Processes outside of this process's pid namespace are missing.
    fn processes(&self) -> Result<Vec<GpuProcesses>, GpuError> {
        let unlisted = |device: crate::Device| GpuProcesses {
            uuid: device.uuid,
            processes: ProcessList::NotOffered,
        };
        Ok(self.devices()?.devices.into_iter().map(unlisted).collect())
    }

    /// Whether the driver keeps this GPU initialized while nobody uses it. `None`: the driver does not say. Without it, an idle GPU forgets
    /// its memory limits unless some process keeps NVML open.
    fn persistence_mode(&self, _gpu: &str) -> Result<Option<bool>, GpuError> {
        Ok(None)
    }

    /// How many processes may use this GPU. `None`: the GPU has no compute modes.
    fn compute_mode(&self, _gpu: &str) -> Result<Option<GpuComputeMode>, GpuError> {
        Ok(None)
    }

    /// Sets how many processes may use this GPU. Needs root.
    fn set_compute_mode(&self, gpu: &str, mode: GpuComputeMode) -> Result<(), GpuError> {
        Err(GpuError::NotSupported {
            attempt: format!("setting the compute mode of GPU {gpu} to {mode}"),
        })
    }
}

/// The implementations of [`Driver`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverKind {
    /// NVML, loaded at run time.
    Nvml,
    /// Tegra files (device tree, sysfs, /proc/meminfo), with or without NVML's help.
    Tegra,
    /// Fake devices.
    Fake,
    /// No NVIDIA GPU is visible.
    None,
}

impl fmt::Display for DriverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DriverKind::Nvml => "nvml",
            DriverKind::Tegra => "tegra",
            DriverKind::Fake => "fake",
            DriverKind::None => "none",
        })
    }
}

/// The driver of a machine without GPUs. Its empty inventory is no error.
#[derive(Debug)]
pub struct NoGpu {
    inventory: Inventory,
}

impl NoGpu {
    /// `inventory` has the platform and the notes that say why no GPU was found; its devices must be empty.
    pub fn new(inventory: Inventory) -> Self {
        assert!(inventory.devices.is_empty(), "a machine without GPUs has no devices");
        Self { inventory }
    }
}

impl Driver for NoGpu {
    fn kind(&self) -> DriverKind {
        DriverKind::None
    }

    fn devices(&self) -> Result<Inventory, GpuError> {
        Ok(self.inventory.clone())
    }

    fn samples(&self) -> Result<Vec<Sample>, GpuError> {
        Ok(Vec::new())
    }

    fn probe(&self, uuid: &str) -> Result<(), GpuError> {
        Err(GpuError::DeviceNotFound { id: uuid.to_owned() })
    }

    fn wait_events(&self, timeout: Duration) -> Result<Vec<HealthEvent>, GpuError> {
        std::thread::sleep(timeout);
        Ok(Vec::new())
    }
}
