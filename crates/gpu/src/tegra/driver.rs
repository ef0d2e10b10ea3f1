//! [`Driver`] for Tegra systems: the integrated GPU from files and NVML, and the discrete GPUs from NVML. If NVML fails, the discrete GPUs
//! and some facts are missing, never the integrated GPU.

use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{igpu, sysfs};
use crate::memory_limits::{get_attempt, set_attempt};
use crate::nvml::NvmlDriver;
use crate::platform::{Detection, MachineMemory, discrete_gpus};
use crate::{
    CgroupMemory, DeviceKind, Driver, DriverKind, GpuComputeMode, GpuError, GpuProcesses, HealthEvent, HealthEventKind,
    Inventory, MemoryKind, MemoryLimitError, MemoryLimitSupport, MemoryLimits, OpenOptions, Sample, TegraFacts,
    TegraStack,
};

/// Why an integrated GPU has no memory limits.
const UNIFIED: &str = "the memory of an integrated GPU is that of the machine";

/// How often a waiting thread checks whether the GPU's device nodes exist.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The Tegra driver.
#[derive(Debug)]
pub struct TegraDriver {
    options: OpenOptions,
    detection: Detection,
    nvml: Option<NvmlDriver>,
    /// A lock, because `wait_events` and `devices` run on different threads and both change it.
    known: Mutex<IntegratedGpu>,
}

#[derive(Debug)]
struct IntegratedGpu {
    /// The UUID under which the integrated GPU is reported. It must not change when NVML becomes available or unavailable.
    igpu: Option<String>,
    /// NVML's UUID of it, if it differs.
    nvml_uuid: Option<String>,
    /// Whether it answered at the last check.
    answers: bool,
    /// Whether device nodes were ever visible. If they never were (in an unprivileged pod), their absence is no failure.
    had_nodes: bool,
}

impl TegraDriver {
    /// Never fails: the inventory's notes say what is missing. Without `tegra_nvml`, NVML is not tried.
    pub fn new(options: OpenOptions, detection: Detection) -> Self {
        let nvml = options
            .tegra_nvml
            .then(|| NvmlDriver::new(options.clone(), detection.clone()));
        let facts = detection.platform.tegra.clone().unwrap_or_default();
        let had_nodes = !igpu::visible_nodes(&options.roots, &facts).is_empty();
        let known = Mutex::new(IntegratedGpu {
            igpu: options.integrated_uuid.clone(),
            nvml_uuid: None,
            answers: true,
            had_nodes,
        });
        Self {
            options,
            detection,
            nvml,
            known,
        }
    }

    fn facts(&self) -> TegraFacts {
        self.detection.platform.tegra.clone().unwrap_or_default()
    }

    /// NVML's inventory, or one without devices whose notes have the reason.
    fn nvml_inventory(&self) -> Inventory {
        let empty = Inventory {
            platform: self.detection.platform.clone(),
            ..Inventory::default()
        };
        let Some(nvml) = &self.nvml else { return empty };
        match nvml.devices() {
            Ok(inventory) => inventory,
            Err(error) => {
                let note = format!("NVML is of no help here ({error}); the integrated GPU is described from files");
                let mut notes = nvml.stderr_notes();
                notes.push(note);
                Inventory { notes, ..empty }
            }
        }
    }

    /// Adds facts about the integrated GPU that NVML lacks, or describes the GPU from files if NVML does not list it.
    fn complete(&self, inventory: &mut Inventory) -> Result<(), GpuError> {
        let facts = self.facts();
        let roots = &self.options.roots;
        let reserve = self.options.memory_reserve;
        let listed = inventory
            .devices
            .iter_mut()
            .find(|device| device.kind == DeviceKind::Integrated);
        if let Some(device) = listed {
            let memory = MachineMemory::read(roots)?;
            device.memory_kind = MemoryKind::Unified;
            device.memory_mib = Some(reserve.usable_mib(memory.total_mib));
            device.compute_capability = device.compute_capability.or(igpu::capability(&facts));
            device.aliases = igpu::aliases(device.index, &device.uuid);
        } else if inventory.devices.is_empty() || igpu::is_driven(roots, &facts) {
            let index = inventory
                .devices
                .iter()
                .map(|device| device.index + 1)
                .max()
                .unwrap_or(0);
            let device = igpu::from_files(roots, &inventory.platform, reserve, index)?;
            inventory.devices.push(device);
        } else {
            inventory
                .notes
                .push("the integrated GPU is switched off: only discrete GPUs are offered".to_owned());
        }
        let listed = inventory
            .devices
            .iter()
            .filter(|device| device.kind == DeviceKind::Discrete)
            .count();
        let present = discrete_gpus(&self.detection.platform).count();
        if present > listed {
            let missing = present - listed;
            inventory.notes.push(format!(
                "{missing} discrete GPU(s) on PCI are not offered, because NVML does not list them"
            ));
        }
        Ok(())
    }

    /// Reports the integrated GPU under the UUID that was reported first, also before a restart.
    fn keep_identity(&self, inventory: &mut Inventory) {
        let mut known = self.known.lock();
        let listed = inventory
            .devices
            .iter_mut()
            .find(|device| device.kind == DeviceKind::Integrated);
        let Some(device) = listed else { return };
        let served = known.igpu.get_or_insert_with(|| device.uuid.clone()).clone();
        if device.uuid == served {
            return;
        }
        let own = std::mem::replace(&mut device.uuid, served);
        device.aliases = igpu::aliases(device.index, &device.uuid);
        device.aliases.push(own.clone());
        if own != igpu::board_uuid(&self.options.roots, &self.detection.platform) {
            known.nvml_uuid = Some(own);
        }
    }

    fn check_nodes(&self) -> Option<HealthEvent> {
        let visible = !igpu::visible_nodes(&self.options.roots, &self.facts()).is_empty();
        let mut known = self.known.lock();
        known.had_nodes |= visible;
        let answers = visible || !known.had_nodes;
        let changed = answers != std::mem::replace(&mut known.answers, answers);
        let uuid = known.igpu.clone();
        let reason = "the device nodes of the integrated GPU are gone (Driver Not Loaded)".to_owned();
        let kind = if answers {
            HealthEventKind::Recovered
        } else {
            HealthEventKind::Lost { reason }
        };
        changed.then_some(HealthEvent { uuid, mig: None, kind })
    }

    /// The event with the UUID under which the device is reported.
    fn with_reported_uuid(&self, event: HealthEvent) -> HealthEvent {
        let known = self.known.lock();
        match &known.igpu {
            Some(igpu) if event.uuid.is_some() && event.uuid == known.nvml_uuid => HealthEvent {
                uuid: Some(igpu.clone()),
                ..event
            },
            Some(_) | None => event,
        }
    }

    fn is_integrated(&self, uuid: &str) -> bool {
        self.known.lock().igpu.as_deref() == Some(uuid)
    }

    /// NVML, for the limits of a discrete GPU.
    fn discrete(&self, gpu: &str, attempt: impl Fn() -> String) -> Result<&NvmlDriver, MemoryLimitError> {
        let nvml = self.nvml.as_ref().filter(|_| !self.is_integrated(gpu));
        nvml.ok_or_else(|| MemoryLimitError::Missing {
            attempt: attempt(),
            reason: UNIFIED.to_owned(),
        })
    }

    /// Whether an event of NVML is about our devices. On `nvgpu` the integrated GPU works without NVML, so a lost NVML is not relevant.
    fn is_relevant(&self, event: &HealthEvent) -> bool {
        event.uuid.is_some() || self.facts().stack == Some(TegraStack::OpenRm)
    }
}

impl Driver for TegraDriver {
    fn kind(&self) -> DriverKind {
        DriverKind::Tegra
    }

    fn devices(&self) -> Result<Inventory, GpuError> {
        let mut inventory = self.nvml_inventory();
        self.complete(&mut inventory)?;
        self.keep_identity(&mut inventory);
        inventory.driver_version = inventory
            .driver_version
            .or_else(|| self.detection.driver_version.clone());
        if igpu::visible_nodes(&self.options.roots, &self.facts()).is_empty() {
            inventory
                .notes
                .push("no device node of the integrated GPU is visible from here".to_owned());
        }
        Ok(inventory)
    }

    fn samples(&self) -> Result<Vec<Sample>, GpuError> {
        let inventory = self.devices()?;
        let from_nvml = self
            .nvml
            .as_ref()
            .and_then(|nvml| nvml.samples().ok())
            .unwrap_or_default();
        let roots = &self.options.roots;
        let mut samples = Vec::with_capacity(inventory.devices.len());
        for device in &inventory.devices {
            let told = from_nvml.iter().find(|sample| sample.index == device.index).cloned();
            let mut sample = told.unwrap_or_default();
            (sample.index, sample.uuid) = (device.index, device.uuid.clone());
            if device.kind == DeviceKind::Integrated {
                // Some nvgpu builds return zeros instead of NOT_SUPPORTED, so values from files take precedence.
                sample.utilization_percent = sysfs::utilization_percent(roots).or(sample.utilization_percent);
                sample.temperature_celsius = sysfs::temperature_celsius(roots).or(sample.temperature_celsius);
                sample.power_milliwatts = sysfs::power_milliwatts(roots).or(sample.power_milliwatts);
                let memory = MachineMemory::read(roots)?;
                let total_mib = device.memory_mib.unwrap_or(memory.total_mib);
                let free_mib = memory.available_mib.min(total_mib);
                sample.memory_free_mib = Some(free_mib);
                sample.memory_used_mib = Some(total_mib - free_mib);
                sample.unreachable = self.probe(&device.uuid).err().map(|error| error.to_string());
            }
            samples.push(sample);
        }
        Ok(samples)
    }

    fn probe(&self, uuid: &str) -> Result<(), GpuError> {
        let known = self.known.lock();
        let is_ours = known.igpu.as_deref() == Some(uuid);
        let own = known.nvml_uuid.clone().filter(|_| is_ours);
        let nvml_uuid = own.unwrap_or_else(|| uuid.to_owned());
        let had_nodes = known.had_nodes;
        drop(known);
        let asked = self.nvml.as_ref().map(|nvml| nvml.probe(&nvml_uuid));
        if !is_ours {
            return asked.unwrap_or_else(|| Err(GpuError::DeviceNotFound { id: uuid.to_owned() }));
        }
        let visible = !igpu::visible_nodes(&self.options.roots, &self.facts()).is_empty();
        if had_nodes && !visible {
            let attempt = format!("looking for the device nodes of GPU {uuid}");
            return Err(GpuError::DriverNotLoaded { attempt });
        }
        // Only errors of the device itself count: the integrated GPU works without NVML.
        match asked {
            Some(Err(error @ (GpuError::GpuLost { .. } | GpuError::ResetRequired { .. }))) => Err(error),
            Some(Ok(()) | Err(_)) | None => Ok(()),
        }
    }

    fn wait_events(&self, timeout: Duration) -> Result<Vec<HealthEvent>, GpuError> {
        let deadline = Instant::now() + timeout;
        loop {
            let mut events: Vec<HealthEvent> = self.check_nodes().into_iter().collect();
            let left = deadline.saturating_duration_since(Instant::now()).min(POLL_INTERVAL);
            match &self.nvml {
                Some(nvml) if events.is_empty() => {
                    let told = nvml.wait_events(left)?;
                    events.extend(
                        told.into_iter()
                            .filter(|event| self.is_relevant(event))
                            .map(|event| self.with_reported_uuid(event)),
                    );
                }
                Some(_) | None if events.is_empty() => std::thread::sleep(left),
                Some(_) | None => {}
            }
            if !events.is_empty() || Instant::now() >= deadline {
                return Ok(events);
            }
        }
    }

    fn memory_limit_support(&self) -> MemoryLimitSupport {
        match &self.nvml {
            Some(nvml) => nvml.memory_limit_support(),
            None => MemoryLimitSupport::Missing {
                reason: UNIFIED.to_owned(),
            },
        }
    }

    fn memory_limits(&self, gpu: &str, cgroup: &Path) -> Result<CgroupMemory, MemoryLimitError> {
        self.discrete(gpu, || get_attempt(gpu, cgroup))?
            .memory_limits(gpu, cgroup)
    }

    fn set_memory_limits(&self, gpu: &str, cgroup: &Path, limits: MemoryLimits) -> Result<(), MemoryLimitError> {
        let nvml = self.discrete(gpu, || set_attempt(gpu, cgroup, limits))?;
        nvml.set_memory_limits(gpu, cgroup, limits)
    }

    fn processes(&self) -> Result<Vec<GpuProcesses>, GpuError> {
        let told = self
            .nvml
            .as_ref()
            .and_then(|nvml| nvml.processes().ok())
            .unwrap_or_default();
        let nvml_uuid = self.known.lock().nvml_uuid.clone();
        let devices = self.devices()?.devices.into_iter();
        Ok(devices
            .map(|device| {
                let integrated = device.kind == DeviceKind::Integrated;
                let is_it = |told: &&GpuProcesses| {
                    told.uuid == device.uuid || (integrated && nvml_uuid.as_ref() == Some(&told.uuid))
                };
                let own = told.iter().find(is_it);
                let processes = own.map(|told| told.processes.clone()).unwrap_or_default();
                let uuid = device.uuid.clone();
                GpuProcesses { uuid, processes }
            })
            .collect())
    }

    fn persistence_mode(&self, gpu: &str) -> Result<Option<bool>, GpuError> {
        match self.nvml.as_ref().filter(|_| !self.is_integrated(gpu)) {
            Some(nvml) => nvml.persistence_mode(gpu),
            None => Ok(None),
        }
    }

    fn compute_mode(&self, gpu: &str) -> Result<Option<GpuComputeMode>, GpuError> {
        match self.nvml.as_ref().filter(|_| !self.is_integrated(gpu)) {
            Some(nvml) => nvml.compute_mode(gpu),
            None => Ok(None),
        }
    }

    fn set_compute_mode(&self, gpu: &str, mode: GpuComputeMode) -> Result<(), GpuError> {
        match self.nvml.as_ref().filter(|_| !self.is_integrated(gpu)) {
            Some(nvml) => nvml.set_compute_mode(gpu, mode),
            None => Err(GpuError::NotSupported {
                attempt: format!("setting the compute mode of GPU {gpu} to {mode}"),
            }),
        }
    }
}
