//! [`Driver`] over NVML. Keeps the library open while it works, closes it when the driver is gone, and opens it again by itself. A device
//! that stops answering stays in the inventory with its last known facts.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device as NvmlDevice, Nvml};
use parking_lot::Mutex;

use super::device::{probe, query_device, sample};
use super::errors::{gpu_error, is_driver_gone, is_refusal};
use super::library::Library;
use super::peers::{GpuLocation, peers};
use super::watch::EventWatcher;
use crate::platform::Detection;
use crate::{
    CgroupMemory, CudaVersion, Device, Driver, DriverKind, GpuComputeMode, GpuError, GpuProcesses, HealthEvent,
    Inventory, MemoryLimitError, MemoryLimitSupport, MemoryLimits, OpenOptions, Peer, Platform, PlatformKind, Sample,
    stderr_capture,
};

/// Upper bound on kept lines of the library's stderr. A library that prints more repeats itself with other addresses.
const STDERR_LINES_MAX: usize = 20;
/// After this many calls without output, stderr is no longer captured: a child process started meanwhile would inherit the redirected
/// stderr.
const QUIET_CALLS_MAX: u32 = 20;
/// Names of devices that drive a workstation's display and must never be offered.
const DISPLAY_ONLY: [&str; 2] = ["DGX Display", "NVIDIA DGX Display"];

/// The NVML driver.
#[derive(Debug)]
pub struct NvmlDriver {
    shared: Arc<Shared>,
    watch: Mutex<Option<EventWatcher>>,
}

/// State that the driver and its event thread share.
#[derive(Debug)]
pub(super) struct Shared {
    options: OpenOptions,
    detection: Detection,
    platform: Platform,
    opening: Mutex<()>,
    /// A lock, because calls come from several threads and any of them may have to open the library again.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    library: Option<Arc<Library>>,
    /// The devices as last listed, so that a device that stops answering keeps its facts.
    known: Vec<Device>,
    /// Cache: the UUIDs of the devices, and their peers.
    peers: Option<(Vec<String>, Vec<Vec<Peer>>)>,
    /// Lines that the library printed to stderr, each once.
    stderr_lines: BTreeSet<String>,
    /// Calls in a row without output.
    quiet_calls: u32,
}

impl NvmlDriver {
    /// Opens nothing; the first call opens the library.
    pub fn new(options: OpenOptions, detection: Detection) -> Self {
        let platform = detection.platform.clone();
        let shared = Shared {
            options,
            detection,
            platform,
            opening: Mutex::new(()),
            state: Mutex::new(State::default()),
        };
        Self {
            shared: Arc::new(shared),
            watch: Mutex::new(None),
        }
    }

    /// The same driver with a corrected platform. The library stays open.
    pub(crate) fn with_platform(self, platform: Platform) -> Self {
        let options = self.shared.options.clone();
        let detection = Detection {
            platform,
            ..self.shared.detection.clone()
        };
        let driver = Self::new(options, detection);
        let taken = std::mem::take(&mut *self.shared.state.lock());
        *driver.shared.state.lock() = taken;
        driver
    }

    /// The library's stderr output so far, as notes.
    pub(crate) fn stderr_notes(&self) -> Vec<String> {
        self.shared.stderr_notes()
    }
}

impl Shared {
    /// The open library; opens it if needed. Opening has its own lock, so that the state's lock is never held during a library call.
    pub(super) fn library(&self) -> Result<Arc<Library>, GpuError> {
        let _only_one = self.opening.lock();
        if let Some(library) = &self.state.lock().library {
            return Ok(Arc::clone(library));
        }
        let library = Arc::new(self.capturing_stderr(|| Library::open(&self.options, &self.platform))?);
        let mut state = self.state.lock();
        state.library = Some(Arc::clone(&library));
        state.peers = None;
        Ok(library)
    }

    /// Runs calls into the library and turns its stderr output into notes. stderr belongs to the whole process, so it is captured only on
    /// Tegra, whose libraries print, and no longer after `QUIET_CALLS_MAX` calls without output. Never nested, and never around a call that
    /// waits.
    pub(super) fn capturing_stderr<T>(&self, calls: impl FnOnce() -> T) -> T {
        if self.platform.kind != PlatformKind::Tegra || self.state.lock().quiet_calls >= QUIET_CALLS_MAX {
            return calls();
        }
        let (result, lines) = stderr_capture::capture(calls);
        let mut state = self.state.lock();
        state.quiet_calls = if lines.is_empty() { state.quiet_calls + 1 } else { 0 };
        let room = STDERR_LINES_MAX.saturating_sub(state.stderr_lines.len());
        state.stderr_lines.extend(lines.into_iter().take(room));
        result
    }

    fn stderr_notes(&self) -> Vec<String> {
        self.state
            .lock()
            .stderr_lines
            .iter()
            .map(|line| format!("the driver library printed: {line}"))
            .collect()
    }

    /// Closes the library, so that the next call opens it again: after a driver upgrade it is a new file.
    pub(super) fn close_library(&self) {
        let mut state = self.state.lock();
        state.library = None;
        state.peers = None;
        state.quiet_calls = 0;
    }

    /// Closes the library unless another thread has opened a new one meanwhile. NVML drops its cached state only when its last user closes
    /// it, so the lock keeps other threads from opening it in between.
    pub(super) fn close_if_current(&self, library: Arc<Library>) {
        let _only_one = self.opening.lock();
        let current = self
            .state
            .lock()
            .library
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, &library));
        if current {
            self.close_library();
        }
        // This may be the last reference, and it has to be dropped before the lock is released.
        drop(library);
    }

    pub(super) fn reopen_after(&self) -> Duration {
        self.options.reopen_after
    }

    pub(super) fn failed(&self, attempt: &str, error: NvmlError) -> GpuError {
        if is_driver_gone(&error) {
            self.close_library();
        }
        gpu_error(attempt, error)
    }

    pub(super) fn inventory(&self) -> Result<Inventory, GpuError> {
        let library = self.library()?;
        let mut inventory = self.capturing_stderr(|| self.describe(&library))?;
        inventory.notes.extend(self.stderr_notes());
        Ok(inventory)
    }

    fn describe(&self, library: &Library) -> Result<Inventory, GpuError> {
        let nvml = &library.nvml;
        let count = nvml
            .device_count()
            .map_err(|error| self.failed("counting the GPUs", error))?;
        let before = self.state.lock().known.clone();
        let mut notes = library.notes.clone();
        let mut devices = Vec::with_capacity(count as usize);
        let mut handles = Vec::with_capacity(count as usize);
        for index in 0..count {
            let result = nvml.device_by_index(index).and_then(|handle| {
                let queried = query_device(nvml, index, &handle, &self.options)?;
                Ok((handle, queried))
            });
            match result {
                Ok((_, queried)) if DISPLAY_ONLY.contains(&queried.device.name.as_str()) => {}
                Ok((handle, queried)) => {
                    if !queried.refused.is_empty() {
                        let refused = queried.refused.join(", ");
                        notes.push(format!(
                            "NVML does not tell of GPU {index} ({}): {refused}",
                            queried.device.name
                        ));
                    }
                    devices.push(queried.device);
                    handles.push(handle);
                }
                Err(error) if is_driver_gone(&error) => return Err(self.failed("describing the GPUs", error)),
                Err(error) => {
                    let error = gpu_error(format!("describing GPU {index}"), error);
                    notes.push(error.with_remedy());
                    // The device keeps its last known facts. A device that was never identified can't be offered.
                    devices.extend(before.iter().find(|device| device.index == index).cloned());
                }
            }
        }
        if handles.len() == devices.len() {
            self.add_peers(library, &mut devices, &handles);
        }
        self.state.lock().known = devices.clone();
        Ok(Inventory {
            platform: self.platform.clone(),
            driver_version: nvml
                .sys_driver_version()
                .ok()
                .or_else(|| self.detection.driver_version.clone()),
            cuda_version: cuda_version(library),
            nvml_version: nvml.sys_nvml_version().ok(),
            nvml_library: Some(library.path.clone()),
            devices,
            notes,
        })
    }

    fn add_peers(&self, library: &Library, devices: &mut [Device], handles: &[NvmlDevice<'_>]) {
        let uuids: Vec<String> = devices.iter().map(|device| device.uuid.clone()).collect();
        let cached = self
            .state
            .lock()
            .peers
            .clone()
            .filter(|(known, _)| *known == uuids)
            .map(|(_, peers)| peers);
        let found = cached.unwrap_or_else(|| {
            let place = |(device, handle)| {
                let device: &Device = device;
                GpuLocation {
                    index: device.index,
                    bus_id: device.pci_bus_id.clone(),
                    device: handle,
                }
            };
            let places: Vec<GpuLocation<'_, '_>> = devices.iter().zip(handles).map(place).collect();
            let found = peers(&library.nvml, &places);
            self.state.lock().peers = Some((uuids, found.clone()));
            found
        });
        for (device, peers) in devices.iter_mut().zip(found) {
            device.peers = peers;
        }
    }

    fn measure(&self, library: &Library, known: &[Device]) -> Result<Vec<Sample>, GpuError> {
        let mut samples = Vec::with_capacity(known.len());
        for device in known {
            match library.nvml.device_by_index(device.index) {
                Ok(handle) => samples.push(sample(&library.nvml, device, &handle, &self.options)),
                Err(error) if is_driver_gone(&error) => return Err(self.failed("measuring the GPUs", error)),
                Err(error) => {
                    let unreachable = Some(gpu_error(format!("measuring GPU {}", device.index), error).to_string());
                    let (index, uuid) = (device.index, device.uuid.clone());
                    samples.push(Sample {
                        index,
                        uuid,
                        unreachable,
                        ..Sample::default()
                    });
                }
            }
        }
        Ok(samples)
    }

    /// The devices as last listed; lists them if that has not happened yet.
    pub(super) fn known(&self) -> Result<Vec<Device>, GpuError> {
        let known = self.state.lock().known.clone();
        if known.is_empty() {
            Ok(self.inventory()?.devices)
        } else {
            Ok(known)
        }
    }

    /// Whether one device answers.
    pub(super) fn probe(&self, library: &Library, device: &Device) -> Result<(), NvmlError> {
        self.capturing_stderr(|| Self::probe_by_uuid(library, device))
    }

    fn probe_by_uuid(library: &Library, device: &Device) -> Result<(), NvmlError> {
        probe(&library.nvml, &device_of(&library.nvml, device)?)
    }
}

/// NVML's handle of a known device. Indices may have changed since it was listed.
pub(super) fn device_of<'n>(nvml: &'n Nvml, device: &Device) -> Result<NvmlDevice<'n>, NvmlError> {
    match nvml.device_by_uuid(device.uuid.as_str()) {
        // The UUID is derived by us, or this NVML can't find devices by UUID: take the device at the same index, unless it now has
        // another UUID.
        Err(error) if is_refusal(&error) => {
            let handle = nvml.device_by_index(device.index)?;
            if handle.uuid().is_ok_and(|uuid| uuid != device.uuid) {
                return Err(NvmlError::NotFound);
            }
            Ok(handle)
        }
        found => found,
    }
}

fn cuda_version(library: &Library) -> Option<CudaVersion> {
    let version = library.nvml.sys_cuda_driver_version().ok()?;
    u32::try_from(version)
        .ok()
        .filter(|version| *version > 0)
        .map(CudaVersion::from_driver)
}

impl Driver for NvmlDriver {
    fn kind(&self) -> DriverKind {
        DriverKind::Nvml
    }

    fn devices(&self) -> Result<Inventory, GpuError> {
        self.shared.inventory()
    }

    fn samples(&self) -> Result<Vec<Sample>, GpuError> {
        let library = self.shared.library()?;
        let known = self.shared.known()?;
        self.shared.capturing_stderr(|| self.shared.measure(&library, &known))
    }

    fn probe(&self, uuid: &str) -> Result<(), GpuError> {
        let attempt = format!("asking GPU {uuid} whether it answers");
        let library = self.shared.library()?;
        let known = Inventory {
            devices: self.shared.known()?,
            ..Inventory::default()
        };
        let Some(device) = known.device(uuid) else {
            return Err(GpuError::DeviceNotFound { id: uuid.to_owned() });
        };
        self.shared
            .probe(&library, device)
            .map_err(|error| self.shared.failed(&attempt, error))
    }

    fn wait_events(&self, timeout: Duration) -> Result<Vec<HealthEvent>, GpuError> {
        let mut watch = self.watch.lock();
        let watch = watch.get_or_insert_with(|| EventWatcher::start(Arc::clone(&self.shared)));
        Ok(watch.wait(timeout))
    }

    fn memory_limit_support(&self) -> MemoryLimitSupport {
        self.shared.memory_limit_support()
    }

    fn memory_limits(&self, gpu: &str, cgroup: &Path) -> Result<CgroupMemory, MemoryLimitError> {
        self.shared.memory_limits(gpu, cgroup)
    }

    fn set_memory_limits(&self, gpu: &str, cgroup: &Path, limits: MemoryLimits) -> Result<(), MemoryLimitError> {
        self.shared.set_memory_limits(gpu, cgroup, limits)
    }

    fn processes(&self) -> Result<Vec<GpuProcesses>, GpuError> {
        self.shared.processes()
    }

    fn persistence_mode(&self, gpu: &str) -> Result<Option<bool>, GpuError> {
        self.shared.persistence_mode(gpu)
    }

    fn compute_mode(&self, gpu: &str) -> Result<Option<GpuComputeMode>, GpuError> {
        self.shared.compute_mode(gpu)
    }

    fn set_compute_mode(&self, gpu: &str, mode: GpuComputeMode) -> Result<(), GpuError> {
        self.shared.set_compute_mode(gpu, mode)
    }
}
