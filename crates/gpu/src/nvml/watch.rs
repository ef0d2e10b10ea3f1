//! The thread that watches the health of NVML's devices. It owns the event set, which borrows the library and so lives on this stack. It
//! also probes every device, because a GPU that falls off the bus does not always raise an event, and its return raises none. It does not
//! decide what an event means for a pod.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;

use super::driver::{Shared, device_of};
use super::errors::{gpu_error, is_driver_gone};
use super::library::Library;
use super::raw;
use crate::{Device, HealthEvent, HealthEventKind, MigInstance};

/// Longest wait in NVML. It bounds how fast the thread ends and how fast an unresponsive GPU is noticed: within a second, at a cost of a
/// few microseconds per GPU and probe.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// How often devices and MIG devices are listed and compared: less often than probes, since it needs many calls.
const INVENTORY_INTERVAL: Duration = Duration::from_secs(10);
/// While devices do not answer, the library is reopened in intervals that double up to 16 times: a card that was pulled must not cost an
/// initialisation of the driver twice a minute for ever.
const REOPEN_DOUBLINGS: u32 = 4;
/// The pause after failed openings doubles up to 500 ms * 2^4 = 8 s.
const BACK_OFF_DOUBLINGS: u32 = 4;
/// Upper bound on events that wait for the reader. More means that the reader is gone; the next probe repeats what is dropped.
const EVENTS_QUEUED_MAX: usize = 1024;

/// Handle of the running thread.
#[derive(Debug)]
pub(super) struct EventWatcher {
    events: Receiver<HealthEvent>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl EventWatcher {
    pub(super) fn start(shared: Arc<Shared>) -> Self {
        let (sender, events) = sync_channel(EVENTS_QUEUED_MAX);
        let stop = Arc::new(AtomicBool::new(false));
        let watcher = Watcher {
            shared,
            sender,
            stop: Arc::clone(&stop),
            unresponsive: BTreeMap::new(),
            driver_gone: false,
            failures: 0,
            reopened: 0,
        };
        let spawned = std::thread::Builder::new()
            .name("gpu-events".to_owned())
            .spawn(move || watcher.run());
        // If the thread can't be started, there are no events; `Driver::probe` still works.
        Self {
            events,
            stop,
            thread: spawned.ok(),
        }
    }

    pub(super) fn wait(&self, timeout: Duration) -> Vec<HealthEvent> {
        match self.events.recv_timeout(timeout) {
            Ok(first) => std::iter::once(first).chain(self.events.try_iter()).collect(),
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Err(RecvTimeoutError::Disconnected) => {
                // If the thread has ended, the caller's loop must not spin.
                std::thread::sleep(timeout);
                Vec::new()
            }
        }
    }
}

impl Drop for EventWatcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Watcher {
    shared: Arc<Shared>,
    sender: SyncSender<HealthEvent>,
    stop: Arc<AtomicBool>,
    /// Devices that do not answer, by UUID, with the reason.
    unresponsive: BTreeMap<String, String>,
    driver_gone: bool,
    /// Failed openings in a row.
    failures: u32,
    /// How often the library was reopened because of unresponsive devices.
    reopened: u32,
}

/// Why a session with one opened library ended.
enum SessionEnd {
    /// The driver was told to stop.
    Stopped,
    /// The library does not work any more.
    DriverGone(NvmlError),
    /// The list of devices changed: register events again.
    Changed,
    /// A device does not answer, and NVML may see it again only after the library was reopened.
    Unresponsive,
}

impl Watcher {
    fn run(mut self) {
        while !self.stopped() {
            let library = self
                .shared
                .library()
                .and_then(|library| Ok((library, self.shared.known()?)));
            match library {
                Ok((library, devices)) => {
                    self.failures = 0;
                    if std::mem::take(&mut self.driver_gone) {
                        self.send(None, HealthEventKind::Recovered);
                        self.send(None, HealthEventKind::InventoryChanged);
                    }
                    match self.session(&library, &devices) {
                        SessionEnd::Stopped => return,
                        SessionEnd::DriverGone(error) => {
                            self.shared.close_library();
                            self.report_driver_lost(gpu_error("waiting for GPU events", error).to_string());
                            self.back_off();
                        }
                        SessionEnd::Changed => self.send(None, HealthEventKind::InventoryChanged),
                        SessionEnd::Unresponsive => self.reopen(library),
                    }
                }
                Err(error) => {
                    self.report_driver_lost(error.to_string());
                    self.back_off();
                }
            }
        }
    }

    /// Watches the given devices until the library has to be reopened or the devices change.
    fn session(&mut self, library: &Library, devices: &[Device]) -> SessionEnd {
        let set = register(library, devices);
        let begun = Instant::now();
        let mut counted = begun;
        while !self.stopped() {
            let result = match &set {
                Some(set) => raw::wait_event(set, WAIT_MAX.as_millis() as u32),
                None => {
                    self.pause();
                    Err(NvmlError::Timeout)
                }
            };
            match result {
                Ok(event) => self.report(event),
                Err(NvmlError::Timeout | NvmlError::GpuLost | NvmlError::ResetRequired) => {}
                Err(error) if is_driver_gone(&error) => return SessionEnd::DriverGone(error),
                // An unknown error: the probes below find the device. The pause keeps the loop from spinning.
                Err(_) => self.pause(),
            }
            if let Err(error) = self.probe_all(library, devices) {
                return SessionEnd::DriverGone(error);
            }
            if self.unresponsive.is_empty() {
                self.reopened = 0;
            } else if begun.elapsed() >= self.shared.reopen_after() * (1 << self.reopened.min(REOPEN_DOUBLINGS))
                && !self.holds_limits(library, devices)
            {
                return SessionEnd::Unresponsive;
            }
            if counted.elapsed() >= INVENTORY_INTERVAL {
                counted = Instant::now();
                match self.shared.inventory() {
                    Ok(now) if !same_devices(devices, &now.devices) => return SessionEnd::Changed,
                    Ok(_) | Err(_) => {}
                }
            }
        }
        SessionEnd::Stopped
    }

    /// Whether this process may be the user for whom the driver keeps memory limits: without persistence mode it forgets those of a GPU
    /// whose last user closes the library. A GPU that has failed then returns only when this process starts anew.
    fn holds_limits(&self, library: &Library, devices: &[Device]) -> bool {
        let offered = raw::MemoryLimitCalls::find(&library.nvml).is_ok();
        let may_forget = |device: &Device| {
            let answers = !self.unresponsive.contains_key(&device.uuid);
            let persistent = || device_of(&library.nvml, device).and_then(|handle| handle.is_in_persistent_mode());
            answers && matches!(persistent(), Ok(false))
        };
        offered && devices.iter().any(may_forget)
    }

    /// Reopens the library, and sends an event if a missing device is listed again.
    fn reopen(&mut self, library: Arc<Library>) {
        self.reopened += 1;
        let before = self.shared.known().unwrap_or_default();
        self.shared.close_if_current(library);
        match self.shared.inventory() {
            Ok(now) if !same_devices(&before, &now.devices) => self.send(None, HealthEventKind::InventoryChanged),
            Ok(_) | Err(_) => {}
        }
    }

    fn report(&self, event: raw::RawEvent<'_>) {
        let Ok(uuid) = event.device.uuid() else { return };
        let kind = EventTypes::from_bits_truncate(event.kind);
        let kind = if kind.contains(EventTypes::CRITICAL_XID_ERROR) {
            HealthEventKind::Xid(event.data)
        } else if kind.contains(EventTypes::DOUBLE_BIT_ECC_ERROR) {
            HealthEventKind::DoubleBitEcc
        } else {
            return;
        };
        // All bits set: the event is about the whole GPU.
        let mig = (event.gpu_instance_id != u32::MAX).then_some(MigInstance {
            gpu_instance_id: event.gpu_instance_id,
            compute_instance_id: event.compute_instance_id,
        });
        let _ = self.sender.try_send(HealthEvent {
            uuid: Some(uuid),
            mig,
            kind,
        });
    }

    /// Probes all devices and sends events for those that stopped answering or answer again.
    fn probe_all(&mut self, library: &Library, devices: &[Device]) -> Result<(), NvmlError> {
        for device in devices {
            match (
                self.shared.probe(library, device),
                self.unresponsive.contains_key(&device.uuid),
            ) {
                (Ok(()), true) => {
                    self.unresponsive.remove(&device.uuid);
                    self.send(Some(device.uuid.clone()), HealthEventKind::Recovered);
                }
                (Err(error), _) if is_driver_gone(&error) => return Err(error),
                (Err(error), false) => {
                    let reason =
                        gpu_error(format!("asking GPU {} whether it answers", device.index), error).to_string();
                    self.unresponsive.insert(device.uuid.clone(), reason.clone());
                    self.send(Some(device.uuid.clone()), HealthEventKind::Lost { reason });
                }
                (Ok(()), false) | (Err(_), true) => {}
            }
        }
        Ok(())
    }

    fn report_driver_lost(&mut self, reason: String) {
        if !std::mem::replace(&mut self.driver_gone, true) {
            self.send(None, HealthEventKind::Lost { reason });
        }
    }

    fn send(&self, uuid: Option<String>, kind: HealthEventKind) {
        let _ = self.sender.try_send(HealthEvent { uuid, mig: None, kind });
    }

    fn pause(&self) {
        std::thread::sleep(WAIT_MAX);
    }

    /// Waits longer after every failed opening, so that a node without NVML is not searched twice a second for ever.
    fn back_off(&mut self) {
        let pauses = 1 << self.failures.min(BACK_OFF_DOUBLINGS);
        self.failures += 1;
        for _ in 0..pauses {
            if self.stopped() {
                return;
            }
            self.pause();
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// An event set with every device that supports events, or `None` if none does. A failed registration destroys the set, so a new set is
/// made without the device.
fn register<'a>(library: &'a Library, devices: &[Device]) -> Option<EventSet<'a>> {
    let nvml = &library.nvml;
    let mut refused: Vec<u32> = Vec::new();
    'again: loop {
        let mut set = nvml.create_event_set().ok()?;
        let mut registered = 0;
        for device in devices.iter().filter(|device| !refused.contains(&device.index)) {
            let wanted = EventTypes::CRITICAL_XID_ERROR | EventTypes::DOUBLE_BIT_ECC_ERROR;
            let Ok(handle) = nvml.device_by_index(device.index) else {
                continue;
            };
            let events = handle.supported_event_types().unwrap_or(EventTypes::empty()) & wanted;
            if events.is_empty() {
                continue;
            }
            let Ok(same) = handle.register_events(events, set) else {
                refused.push(device.index);
                continue 'again;
            };
            set = same;
            registered += 1;
        }
        return (registered > 0).then_some(set);
    }
}

fn same_devices(before: &[Device], now: &[Device]) -> bool {
    let identity = |device: &Device| {
        let mig: Vec<String> = device.mig_devices.iter().map(|mig| mig.uuid.clone()).collect();
        (device.uuid.clone(), device.mig_mode, mig)
    };
    before.iter().map(identity).eq(now.iter().map(identity))
}
