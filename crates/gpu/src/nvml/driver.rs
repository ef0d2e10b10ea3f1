//! [`Driver`] over NVML. Holds the library while it works, lets go of it when the driver is gone, and takes it up again by itself.
//! A device that stops answering keeps its place in the inventory with the facts known from before.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nvml_wrapper::Device as NvmlDevice;
use nvml_wrapper::error::NvmlError;

use super::device::{interview, probe, sample};
use super::errors::{gpu_error, is_driver_gone, is_refusal};
use super::library::Library;
use super::peers::{Place, peers};
use super::watch::Watch;
use crate::platform::Detection;
use crate::{
    CudaVersion, Device, Driver, DriverKind, GpuError, HealthEvent, Inventory, OpenOptions, Peer, Platform,
    PlatformKind, Sample, noise,
};

/// Lines of library noise kept. A library that prints more is repeating itself with other addresses in it.
const NOISE_MAX: usize = 20;
/// After so many silent calls stderr is left alone: a child process started meanwhile would inherit the diverted one.
const QUIET_ENOUGH: u32 = 20;
/// Devices that drive a display of a workstation and must never be handed out.
const DISPLAY_ONLY: [&str; 2] = ["DGX Display", "NVIDIA DGX Display"];

/// The NVML driver.
#[derive(Debug)]
pub struct NvmlDriver {
    shared: Arc<Shared>,
    watch: Mutex<Option<Watch>>,
}

/// What the driver and its watching thread have in common.
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
    /// The devices as last seen, so that one that falls silent keeps its facts.
    known: Vec<Device>,
    /// Peers by the UUIDs they were asked for.
    peers: Option<(Vec<String>, Vec<Vec<Peer>>)>,
    /// What the library printed, each line once.
    noise: BTreeSet<String>,
    /// Calls in a row during which it printed nothing.
    quiet_calls: u32,
}

impl NvmlDriver {
    /// Opens nothing yet: the first question does.
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

    /// The same driver on a machine that turned out to be of another kind. The library stays open.
    pub(crate) fn with_platform(self, platform: Platform) -> Self {
        let options = self.shared.options.clone();
        let detection = Detection {
            platform,
            ..self.shared.detection.clone()
        };
        let driver = Self::new(options, detection);
        let taken = std::mem::take(&mut *self.shared.lock());
        *driver.shared.lock() = taken;
        driver
    }

    /// What the library printed so far, as notes.
    pub(crate) fn noise(&self) -> Vec<String> {
        self.shared.noise()
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open library, or one opened now. Opening has its own lock, so that the state is never held while the library talks.
    pub(super) fn library(&self) -> Result<Arc<Library>, GpuError> {
        let _only_one = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = &self.lock().library {
            return Ok(Arc::clone(library));
        }
        let library = Arc::new(self.quietly(|| Library::open(&self.options, &self.platform))?);
        let mut state = self.lock();
        state.library = Some(Arc::clone(&library));
        state.peers = None;
        Ok(library)
    }

    /// Runs calls into the library; what it prints meanwhile becomes notes. stderr belongs to the whole process, so it is taken away only
    /// where the noise is known to be, and no longer once the library has proved quiet. Never nested, never around a call that waits.
    pub(super) fn quietly<T>(&self, calls: impl FnOnce() -> T) -> T {
        if self.platform.kind != PlatformKind::Tegra || self.lock().quiet_calls >= QUIET_ENOUGH {
            return calls();
        }
        let (result, lines) = noise::capture(calls);
        let mut state = self.lock();
        state.quiet_calls = if lines.is_empty() { state.quiet_calls + 1 } else { 0 };
        let room = NOISE_MAX.saturating_sub(state.noise.len());
        state.noise.extend(lines.into_iter().take(room));
        result
    }

    fn noise(&self) -> Vec<String> {
        self.lock()
            .noise
            .iter()
            .map(|line| format!("the driver library printed: {line}"))
            .collect()
    }

    /// Lets go of the library, so that the next question opens it again: after a driver upgrade that is a new file.
    pub(super) fn let_go(&self) {
        let mut state = self.lock();
        state.library = None;
        state.peers = None;
        state.quiet_calls = 0;
    }

    /// The same, if nobody else has opened another one meanwhile. NVML forgets what it knows only when its last user has let go, so
    /// nobody may open it in between.
    pub(super) fn let_go_of(&self, library: Arc<Library>) {
        let _only_one = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let current = self
            .lock()
            .library
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, &library));
        if current {
            self.let_go();
        }
        // Ours may be the last one, and has to go before the lock does.
        drop(library);
    }

    pub(super) fn reopen_after(&self) -> Duration {
        self.options.reopen_after
    }

    fn failed(&self, attempt: &str, error: NvmlError) -> GpuError {
        if is_driver_gone(&error) {
            self.let_go();
        }
        gpu_error(attempt, error)
    }

    pub(super) fn inventory(&self) -> Result<Inventory, GpuError> {
        let library = self.library()?;
        let mut inventory = self.quietly(|| self.describe(&library))?;
        inventory.notes.extend(self.noise());
        Ok(inventory)
    }

    fn describe(&self, library: &Library) -> Result<Inventory, GpuError> {
        let nvml = &library.nvml;
        let count = nvml
            .device_count()
            .map_err(|error| self.failed("counting the GPUs", error))?;
        let before = self.lock().known.clone();
        let mut notes = library.notes.clone();
        let mut devices = Vec::with_capacity(count as usize);
        let mut handles = Vec::with_capacity(count as usize);
        for index in 0..count {
            let asked = nvml.device_by_index(index).and_then(|handle| {
                let told = interview(nvml, index, &handle, &self.options)?;
                Ok((handle, told))
            });
            match asked {
                Ok((_, told)) if DISPLAY_ONLY.contains(&told.device.name.as_str()) => {}
                Ok((handle, told)) => {
                    if !told.refused.is_empty() {
                        let refused = told.refused.join(", ");
                        notes.push(format!(
                            "NVML does not tell of GPU {index} ({}): {refused}",
                            told.device.name
                        ));
                    }
                    devices.push(told.device);
                    handles.push(handle);
                }
                Err(error) if is_driver_gone(&error) => return Err(self.failed("describing the GPUs", error)),
                Err(error) => {
                    let error = gpu_error(format!("describing GPU {index}"), error);
                    notes.push(error.with_remedy());
                    // Its facts from before, or nothing: a device that was never identified can't be offered.
                    devices.extend(before.iter().find(|device| device.index == index).cloned());
                }
            }
        }
        if handles.len() == devices.len() {
            self.add_peers(library, &mut devices, &handles);
        }
        self.lock().known = devices.clone();
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
            .lock()
            .peers
            .clone()
            .filter(|(known, _)| *known == uuids)
            .map(|(_, peers)| peers);
        let found = cached.unwrap_or_else(|| {
            let place = |(device, handle)| {
                let device: &Device = device;
                Place {
                    index: device.index,
                    bus_id: device.pci_bus_id.clone(),
                    device: handle,
                }
            };
            let places: Vec<Place<'_, '_>> = devices.iter().zip(handles).map(place).collect();
            let found = peers(&library.nvml, &places);
            self.lock().peers = Some((uuids, found.clone()));
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

    /// The devices as last seen; asks if nobody has yet.
    pub(super) fn known(&self) -> Result<Vec<Device>, GpuError> {
        let known = self.lock().known.clone();
        if known.is_empty() {
            Ok(self.inventory()?.devices)
        } else {
            Ok(known)
        }
    }

    /// Whether one device answers.
    pub(super) fn probe(&self, library: &Library, device: &Device) -> Result<(), NvmlError> {
        self.quietly(|| Self::ask(library, device))
    }

    fn ask(library: &Library, device: &Device) -> Result<(), NvmlError> {
        let handle = match library.nvml.device_by_uuid(device.uuid.as_str()) {
            // The name was made up by us, or poor implementations know no names: by position, if it is not somebody else's by now.
            Err(error) if is_refusal(&error) => {
                let handle = library.nvml.device_by_index(device.index)?;
                if handle.uuid().is_ok_and(|uuid| uuid != device.uuid) {
                    return Err(NvmlError::NotFound);
                }
                handle
            }
            found => found?,
        };
        probe(&library.nvml, &handle)
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
        self.shared.quietly(|| self.shared.measure(&library, &known))
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
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let watch = watch.get_or_insert_with(|| Watch::start(Arc::clone(&self.shared)));
        Ok(watch.wait(timeout))
    }
}
