//! Event sets: clients register devices and wait; what the control file appends to its list of events is delivered to every set that
//! listens, once. Sets are numbers in a table, never pointers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{c_uint, c_ulonglong};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kai_gpu::fake::{ControlEvent, GpuState, Question};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t};

use crate::abi::{Out, export};
use crate::code::{Answer, GPU_IS_LOST, INVALID_ARGUMENT, NOT_SUPPORTED, TIMEOUT};
use crate::state::{Handle, Now, device_for, world};

const DOUBLE_BIT_ECC: c_ulonglong = 2;
const XID: c_ulonglong = 8;
/// All kinds we can raise: both memory errors, performance state, Xid, clock.
const SUPPORTED: c_ulonglong = 0b1_1111;
/// How often a waiting client looks at the control file.
const LOOK: Duration = Duration::from_millis(20);
/// Sets one process may hold; a client that leaks them gets an error instead of our memory.
const SETS_MAX: usize = 1024;
const SETS: usize = 0x4000_0000;

/// An event set as C sees it.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SetHandle(usize);

#[derive(Debug, Default)]
struct Set {
    /// GPU to the kinds it was registered for.
    registered: BTreeMap<usize, c_ulonglong>,
    /// Length of the control file's list when last looked at.
    seen: usize,
    due: VecDeque<Event>,
    /// Lost GPUs already told of: NVML's error would otherwise end every wait at once and make clients spin.
    told_lost: BTreeSet<usize>,
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

/// One table per process, like the library's state. Never held while waiting.
static TABLE: Mutex<Table> = Mutex::new(Table {
    next: SETS,
    sets: BTreeMap::new(),
});

/// The struct of the first version of waiting, without instance ids.
#[repr(C)]
pub(crate) struct OldEventData {
    device: nvmlDevice_t,
    kind: c_ulonglong,
    data: c_ulonglong,
}

export! {
    /// A new, empty set.
    fn nvmlEventSetCreate(set: Out<SetHandle>) {
        let now = world()?;
        let handle = with_table(|table| {
            if table.sets.len() >= SETS_MAX {
                return Err(crate::code::UNKNOWN);
            }
            table.next += 1;
            let handle = SetHandle(table.next);
            table.sets.insert(handle, Set { seen: now.control.events.len(), ..Set::default() });
            Ok(handle)
        })?;
        set.put(handle)
    }

    /// Ends a set.
    fn nvmlEventSetFree(set: SetHandle) {
        with_table(|table| table.sets.remove(&set).map(drop).ok_or(INVALID_ARGUMENT))
    }

    /// Which kinds of events a device has.
    fn nvmlDeviceGetSupportedEventTypes(handle: Handle, kinds: Out<c_ulonglong>) {
        device_for(handle, Question::Events)?;
        kinds.put(SUPPORTED)
    }

    /// Adds a device to a set.
    fn nvmlDeviceRegisterEvents(handle: Handle, kinds: c_ulonglong, set: SetHandle) {
        let asked = device_for(handle, Question::Events)?;
        if kinds & !SUPPORTED != 0 {
            return Err(NOT_SUPPORTED);
        }
        with_table(|table| {
            let set = table.sets.get_mut(&set).ok_or(INVALID_ARGUMENT)?;
            *set.registered.entry(asked.gpu).or_default() |= kinds;
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

/// Called when the library is shut down: all handles end.
pub(crate) fn forget_all() {
    let _ = with_table(|table| {
        table.sets.clear();
        Ok(())
    });
}

fn with_table<T>(work: impl FnOnce(&mut Table) -> Answer<T>) -> Answer<T> {
    work(&mut TABLE.lock().unwrap_or_else(PoisonError::into_inner))
}

fn wait(handle: SetHandle, timeout_ms: c_uint) -> Answer<Event> {
    let deadline = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
    loop {
        let now = world()?;
        let due = with_table(|table| {
            let set = table.sets.get_mut(&handle).ok_or(INVALID_ARGUMENT)?;
            set.take_up(&now);
            set.tell_lost(&now)?;
            Ok(set.due.pop_front())
        })?;
        if let Some(event) = due {
            return Ok(event);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(TIMEOUT);
        }
        std::thread::sleep(left.min(LOOK));
    }
}

impl Set {
    /// Takes up what was appended to the control file's list. A shortened list was rewritten: all of it is news.
    fn take_up(&mut self, now: &Now) {
        let events = &now.control.events;
        let from = if events.len() < self.seen { 0 } else { self.seen };
        self.seen = events.len();
        for event in &events[from..] {
            let (kind, data) = match (event.xid, event.double_bit_ecc) {
                (Some(xid), _) => (XID, xid),
                (None, true) => (DOUBLE_BIT_ECC, 0),
                (None, false) => continue,
            };
            for (&gpu, &kinds) in &self.registered {
                if kinds & kind != 0 && concerns(event, now, gpu) {
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

    fn tell_lost(&mut self, now: &Now) -> Answer {
        let mut news = false;
        for &gpu in self.registered.keys() {
            match now.gpu(gpu).picture(&now.control).state {
                GpuState::Lost | GpuState::Removed => news |= self.told_lost.insert(gpu),
                GpuState::Healthy | GpuState::ResetRequired => {
                    self.told_lost.remove(&gpu);
                }
            }
        }
        // Events that are due come first: the Xid that explains the loss must not be lost with the GPU.
        if news && self.due.is_empty() {
            Err(GPU_IS_LOST)
        } else {
            Ok(())
        }
    }
}

fn concerns(event: &ControlEvent, now: &Now, gpu: usize) -> bool {
    let device = &now.gpu(gpu).device;
    event.gpu == "*" || event.gpu == device.uuid || event.gpu == device.index.to_string()
}
