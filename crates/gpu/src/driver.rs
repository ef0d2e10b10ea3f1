//! The interface to GPU hardware: one object-safe trait. The inventory's notes say where facts came from.

use std::fmt;
use std::time::Duration;

use crate::{GpuError, HealthEvent, Inventory, Sample};

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
