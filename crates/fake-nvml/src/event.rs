//! Event sets: clients register devices and wait. Every event that is appended to the control file's list is delivered to every registered
//! set once. Handles of sets are numbers in a table, never pointers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{c_uint, c_ulonglong};
use std::time::{Duration, Instant};

use kai_gpu::fake::{ControlEvent, GpuState, QueryGroup};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t};
use parking_lot::Mutex;

use crate::abi::{Out, export};
use crate::code::{Answer, GPU_IS_LOST, INVALID_ARGUMENT, NOT_SUPPORTED, TIMEOUT};
use crate::state::{Handle, MachineSnapshot, device_for, snapshot};

const DOUBLE_BIT_ECC: c_ulonglong = 2;
const XID: c_ulonglong = 8;
/// All supported kinds: both memory errors, performance state, Xid, clock.
const SUPPORTED: c_ulonglong = 0b1_1111;
/// How often a waiting client polls the control file.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Upper bound on event sets of a process: a client that leaks them gets an error instead of unbounded memory.
const SETS_MAX: usize = 1024;
const SETS: usize = 0x4000_0000;

/// An event set as C sees it.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SetHandle(usize);

#[derive(Debug, Default)]
struct Set {
    /// Registered GPUs, with the kinds of events.
    registered: BTreeMap<usize, c_ulonglong>,
    /// Length of the control file's list at the last poll.
    seen: usize,
    due: VecDeque<Event>,
    /// Lost GPUs that were reported already. Without it, NVML's error would end every wait at once and make clients spin.
    reported_lost: BTreeSet<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Event {
    gpu: usize,
    kind: c_ulonglong,
    data: c_ulonglong,
    gpu_instance_id: c_uint,
    compute_instance_id: c_uint,
}

#[derive(Debug)]
struct Table {
    next: usize,
    sets: BTreeMap<SetHandle, Set>,
}

/// One table per process, like the library's state. Its lock is never held while waiting.
static TABLE: Mutex<Table> = Mutex::new(Table {
    next: SETS,
    sets: BTreeMap::new(),
});

/// The event struct of `nvmlEventSetWait`, without instance ids.
#[repr(C)]
pub(crate) struct OldEventData {
    device: nvmlDevice_t,
    kind: c_ulonglong,
    data: c_ulonglong,
}

export! {
    /// A new, empty set.
    fn nvmlEventSetCreate(set: Out<SetHandle>) {
        let snapshot = snapshot()?;
        let handle = with_table(|table| {
            if table.sets.len() >= SETS_MAX {
                return Err(crate::code::UNKNOWN);
            }
            table.next += 1;
            let handle = SetHandle(table.next);
            table.sets.insert(handle, Set { seen: snapshot.control.events.len(), ..Set::default() });
            Ok(handle)
        })?;
        set.put(handle)
    }

    /// Frees a set.
    fn nvmlEventSetFree(set: SetHandle) {
        with_table(|table| table.sets.remove(&set).map(drop).ok_or(INVALID_ARGUMENT))
    }

    /// Which kinds of events a device has.
    fn nvmlDeviceGetSupportedEventTypes(handle: Handle, kinds: Out<c_ulonglong>) {
        device_for(handle, QueryGroup::Events)?;
        kinds.put(SUPPORTED)
    }

    /// Adds a device to a set.
    fn nvmlDeviceRegisterEvents(handle: Handle, kinds: c_ulonglong, set: SetHandle) {
        let queried = device_for(handle, QueryGroup::Events)?;
        if kinds & !SUPPORTED != 0 {
            return Err(NOT_SUPPORTED);
        }
        with_table(|table| {
            let set = table.sets.get_mut(&set).ok_or(INVALID_ARGUMENT)?;
            *set.registered.entry(queried.gpu).or_default() |= kinds;
            Ok(())
        })
    }

    /// Waits for an event.
    fn nvmlEventSetWait_v2(set: SetHandle, data: Out<nvmlEventData_t>, timeout_ms: c_uint) {
        let event = wait(set, timeout_ms)?;
        data.put(nvmlEventData_t {
            device: Handle::of(event.gpu, None).as_pointer(),
            eventType: event.kind,
            eventData: event.data,
            gpuInstanceId: event.gpu_instance_id,
            computeInstanceId: event.compute_instance_id,
        })
    }

    /// Waits for an event, old struct.
    fn nvmlEventSetWait(set: SetHandle, data: Out<OldEventData>, timeout_ms: c_uint) {
        let event = wait(set, timeout_ms)?;
        data.put(OldEventData {
            device: Handle::of(event.gpu, None).as_pointer(),
            kind: event.kind,
            data: event.data,
        })
    }
}

/// Frees all sets when the library is shut down.
pub(crate) fn free_all_sets() {
    let _ = with_table(|table| {
        table.sets.clear();
        Ok(())
    });
}

fn with_table<T>(work: impl FnOnce(&mut Table) -> Answer<T>) -> Answer<T> {
    work(&mut TABLE.lock())
}

fn wait(handle: SetHandle, timeout_ms: c_uint) -> Answer<Event> {
    let deadline = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
    loop {
        let snapshot = snapshot()?;
        let due = with_table(|table| {
            let set = table.sets.get_mut(&handle).ok_or(INVALID_ARGUMENT)?;
            set.read_new_events(&snapshot);
            set.report_lost(&snapshot)?;
            Ok(set.due.pop_front())
        })?;
        if let Some(event) = due {
            return Ok(event);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(TIMEOUT);
        }
        std::thread::sleep(left.min(POLL_INTERVAL));
    }
}

impl Set {
    /// Reads the events that were appended to the control file's list. A shorter list was rewritten, so all of its events are new.
    fn read_new_events(&mut self, snapshot: &MachineSnapshot) {
        let events = &snapshot.control.events;
        let from = if events.len() < self.seen { 0 } else { self.seen };
        self.seen = events.len();
        for event in &events[from..] {
            let (kind, data) = match (event.xid, event.double_bit_ecc) {
                (Some(xid), _) => (XID, xid),
                (None, true) => (DOUBLE_BIT_ECC, 0),
                (None, false) => continue,
            };
            for (&gpu, &kinds) in &self.registered {
                if kinds & kind != 0 && applies_to(event, snapshot, gpu) {
                    self.due.push_back(Event {
                        gpu,
                        kind,
                        data,
                        gpu_instance_id: event.gpu_instance_id.unwrap_or(u32::MAX),
                        compute_instance_id: event.compute_instance_id.unwrap_or(u32::MAX),
                    });
                }
            }
        }
    }

    fn report_lost(&mut self, snapshot: &MachineSnapshot) -> Answer {
        let mut news = false;
        for &gpu in self.registered.keys() {
            match snapshot.gpu(gpu).status(&snapshot.control).state {
                GpuState::Lost | GpuState::Removed => news |= self.reported_lost.insert(gpu),
                GpuState::Healthy | GpuState::ResetRequired => {
                    self.reported_lost.remove(&gpu);
                }
            }
        }
        // Due events come first, so that the Xid that explains the loss is delivered.
        if news && self.due.is_empty() {
            Err(GPU_IS_LOST)
        } else {
            Ok(())
        }
    }
}

fn applies_to(event: &ControlEvent, snapshot: &MachineSnapshot, gpu: usize) -> bool {
    let device = &snapshot.gpu(gpu).device;
    event.gpu == "*" || event.gpu == device.uuid || event.gpu == device.index.to_string()
}
