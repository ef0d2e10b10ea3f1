//! The door to hardware: one object-safe trait. It never says how an answer was found; the inventory's notes do.

use std::fmt;
use std::time::Duration;

use crate::{GpuError, HealthEvent, Inventory, Sample};

/// A source of truth about the GPUs of one machine.
///
/// Every method may block for as long as the driver does, so an async caller wraps calls in a blocking task. All methods take
/// `&self` and may be called from several threads.
pub trait Driver: fmt::Debug + Send + Sync {
    /// Which implementation this is, for logs and metrics.
    fn kind(&self) -> DriverKind;

    /// All devices with all facts that could be learned. A device that can't be asked any more (lost, reset required) stays in
    /// the list with the facts known from before, so that its identity does not flap; [`Driver::probe`] tells its state.
    fn devices(&self) -> Result<Inventory, GpuError>;

    /// Current measurements, one per device of [`Driver::devices`], in the same order. A measurement the hardware does not
    /// offer is `None`; a device that does not answer has [`Sample::unreachable`] set.
    fn samples(&self) -> Result<Vec<Sample>, GpuError>;

    /// Asks one device whether it answers: the cheapest question that a lost device can't answer. `uuid` is a device's or a
    /// MIG device's (then its parent is asked).
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
    /// Made-up devices.
    Fake,
    /// This machine has no NVIDIA GPU that we can see.
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

/// A machine without GPUs: an empty inventory is the truth there, not an error.
#[derive(Debug)]
pub struct NoGpu {
    inventory: Inventory,
}

impl NoGpu {
    /// `inventory` carries the platform and the notes that say why nothing was found; its devices must be empty.
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
