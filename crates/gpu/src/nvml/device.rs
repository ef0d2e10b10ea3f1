//! Queries one NVML device. Every query is optional: a query that NVML refuses costs that fact and is listed in a note. Only an error of
//! the device itself (lost, reset required) or of the driver ends the queries.

use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device as NvmlDevice, Nvml};

use super::errors::is_refusal;
use super::{mig, raw};
use crate::platform::MachineMemory;
use crate::tegra::is_integrated_name;
use crate::{
    ComputeCapability, Device, DeviceKind, MemoryKind, MigDevice, MigMode, OpenOptions, Sample, aliases_of,
    stable_uuid, sysfs_bus_id,
};

const MIB: u64 = 1 << 20;

/// The facts about one device.
pub(super) struct QueriedDevice {
    pub(super) device: Device,
    /// The facts that NVML refused.
    pub(super) refused: Vec<&'static str>,
}

/// Records refused queries; returns other errors.
struct OptionalQueries {
    refused: Vec<&'static str>,
}

impl OptionalQueries {
    fn optional<T>(&mut self, what: &'static str, answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
        match answer {
            Ok(value) => Ok(Some(value)),
            Err(error) if is_refusal(&error) => {
                self.refused.push(what);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Queries all facts of one device.
pub(super) fn query_device(
    nvml: &Nvml,
    index: u32,
    device: &NvmlDevice<'_>,
    options: &OpenOptions,
) -> Result<QueriedDevice, NvmlError> {
    let mut queries = OptionalQueries { refused: Vec::new() };
    let name = queries
        .optional("its name", device.name())?
        .unwrap_or_else(|| "NVIDIA GPU".to_owned());
    let reported_uuid = queries.optional("its UUID", device.uuid())?;
    let uuid = reported_uuid.unwrap_or_else(|| format!("GPU-{}", stable_uuid(&["nvml", &name, &index.to_string()])));
    let compute_capability = query_capability(&mut queries, device)?;
    let minor = queries.optional("its minor number", device.minor_number())?;
    let pci_bus_id = queries
        .optional("its PCI address", device.pci_info())?
        .map(|pci| pci.bus_id);
    let memory_bytes = queries
        .optional("its memory", total_bytes(nvml, device))?
        .filter(|bytes| *bytes > 0);
    let unified = memory_bytes.is_none() && is_unified(&name, compute_capability);
    let memory_mib = match memory_bytes {
        Some(bytes) => Some(bytes / MIB),
        None if unified => unified_mib(options),
        None => None,
    };
    let board_id = queries.optional("its board", device.board_id())?;
    let (mig_mode, mig_devices) = query_mig(&mut queries, nvml, device, memory_mib)?;
    let numa_node = numa_node(options, pci_bus_id.as_deref(), device);
    let kind = if is_integrated_name(&name) {
        DeviceKind::Integrated
    } else {
        DeviceKind::Discrete
    };
    let device = Device {
        index,
        aliases: aliases_of(index, &uuid),
        uuid,
        kind,
        minor,
        name,
        memory_mib,
        memory_kind: if unified {
            MemoryKind::Unified
        } else {
            MemoryKind::Dedicated
        },
        compute_capability,
        pci_bus_id,
        numa_node,
        board_id,
        peers: Vec::new(),
        mig_mode,
        mig_devices,
    };
    Ok(QueriedDevice {
        device,
        refused: queries.refused,
    })
}

fn query_capability(
    queries: &mut OptionalQueries,
    device: &NvmlDevice<'_>,
) -> Result<Option<ComputeCapability>, NvmlError> {
    let capability = queries.optional("its compute capability", device.cuda_compute_capability())?;
    Ok(capability.and_then(|cc| {
        Some(ComputeCapability {
            major: cc.major.try_into().ok()?,
            minor: cc.minor.try_into().ok()?,
        })
    }))
}

/// MIG mode, and the MIG devices if it is enabled.
fn query_mig(
    queries: &mut OptionalQueries,
    nvml: &Nvml,
    device: &NvmlDevice<'_>,
    memory_mib: Option<u64>,
) -> Result<(Option<MigMode>, Vec<MigDevice>), NvmlError> {
    let mode = queries.optional("its MIG mode", device.mig_mode())?;
    let mode = mode.map(|mode| {
        if mode.current == 1 {
            MigMode::Enabled
        } else {
            MigMode::Disabled
        }
    });
    let devices = match mode {
        Some(MigMode::Enabled) => queries
            .optional("its MIG devices", mig::mig_devices(nvml, device, memory_mib))?
            .unwrap_or_default(),
        Some(MigMode::Disabled) | None => Vec::new(),
    };
    Ok((mode, devices))
}

/// All measurements of one device. If the device does not answer, the sample says so.
pub(super) fn sample(nvml: &Nvml, known: &Device, device: &NvmlDevice<'_>, options: &OpenOptions) -> Sample {
    let identity = Sample {
        index: known.index,
        uuid: known.uuid.clone(),
        ..Sample::default()
    };
    let measure = || -> Result<Sample, NvmlError> {
        let mut queries = OptionalQueries { refused: Vec::new() };
        let utilization = queries.optional("", device.utilization_rates())?;
        let temperature = queries.optional("", device.temperature(TemperatureSensor::Gpu))?;
        let power = queries.optional("", device.power_usage())?;
        let (used_mib, free_mib) = match known.memory_kind {
            MemoryKind::Dedicated => {
                let bytes = queries.optional("", memory_bytes(nvml, device))?;
                (
                    bytes.as_ref().map(|bytes| bytes.used / MIB),
                    bytes.as_ref().map(|bytes| bytes.free / MIB),
                )
            }
            MemoryKind::Unified => {
                let free = MachineMemory::read(&options.roots)
                    .ok()
                    .map(|memory| memory.available_mib);
                let free = free.map(|free| known.memory_mib.map_or(free, |total| free.min(total)));
                (known.memory_mib.zip(free).map(|(total, free)| total - free), free)
            }
        };
        Ok(Sample {
            utilization_percent: utilization.as_ref().map(|rates| rates.gpu),
            memory_utilization_percent: utilization.as_ref().map(|rates| rates.memory),
            memory_used_mib: used_mib,
            memory_free_mib: free_mib,
            temperature_celsius: temperature.and_then(|celsius| celsius.try_into().ok()),
            power_milliwatts: power.map(u64::from),
            ..identity.clone()
        })
    };
    measure().unwrap_or_else(|error| {
        let attempt = format!("measuring GPU {}", known.index);
        Sample {
            unreachable: Some(super::errors::gpu_error(attempt, error).to_string()),
            ..identity.clone()
        }
    })
}

/// Whether the device answers. NVML answers identity calls from its cache, so the probe queries live values.
pub(super) fn probe(nvml: &Nvml, device: &NvmlDevice<'_>) -> Result<(), NvmlError> {
    for answer in [
        memory_bytes(nvml, device).map(drop),
        device.temperature(TemperatureSensor::Gpu).map(drop),
    ] {
        match answer {
            Ok(()) => return Ok(()),
            Err(NvmlError::Unknown) => return Err(NvmlError::Unknown),
            Err(error) if is_refusal(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn total_bytes(nvml: &Nvml, device: &NvmlDevice<'_>) -> Result<u64, NvmlError> {
    memory_bytes(nvml, device).map(|bytes| bytes.total)
}

/// The current memory call, or the old one if the driver lacks it.
fn memory_bytes(nvml: &Nvml, device: &NvmlDevice<'_>) -> Result<raw::MemoryBytes, NvmlError> {
    match device.memory_info() {
        Ok(memory) => Ok(raw::MemoryBytes {
            total: memory.total,
            free: memory.free,
            used: memory.used,
        }),
        Err(NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound | NvmlError::UnexpectedVariant(25)) => {
            raw::memory_v1(nvml, device)
        }
        Err(error) => Err(error),
    }
}

/// Devices that are known to share the machine's RAM. Unreadable memory alone is not enough: a lost card would get the size of the
/// machine's RAM.
fn is_unified(name: &str, capability: Option<ComputeCapability>) -> bool {
    let by_capability =
        capability.is_some_and(|cc| matches!((cc.major, cc.minor), (7, 2) | (8, 7) | (11, _) | (12, 1)));
    by_capability || is_integrated_name(name) || name.contains("GB10")
}

fn unified_mib(options: &OpenOptions) -> Option<u64> {
    let memory = MachineMemory::read(&options.roots).ok()?;
    Some(options.memory_reserve.usable_mib(memory.total_mib))
}

/// The NUMA node from sysfs, which has it for every PCI device, or from NVML, which has it for some.
fn numa_node(options: &OpenOptions, bus_id: Option<&str>, device: &NvmlDevice<'_>) -> Option<u32> {
    let from_sysfs = bus_id.and_then(|bus_id| {
        let path = options
            .roots
            .sys
            .join("bus/pci/devices")
            .join(sysfs_bus_id(bus_id))
            .join("numa_node");
        crate::platform::read_trimmed(&path)?.parse::<u32>().ok()
    });
    // On machines with at most one NUMA node NVML returns a huge number that means "unknown".
    from_sysfs.or_else(|| device.numa_node_id().ok().filter(|node| *node < 1024))
}
