//! NVML calls that the safe wrapper lacks: MIG instance ids and placement, the old memory call, events with instance ids, memory limits per
//! cgroup.
//! Each function owns its out-parameters and checks the return code before reading them.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_ulonglong};

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::event::EventSet;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventData_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlMemory_t,
    nvmlReturn_t,
};

use crate::{MemoryLimits, Placement};

/// Total, free and used bytes by the old call, for drivers older than 510 that lack the new one.
pub(super) struct MemoryBytes {
    pub(super) total: u64,
    pub(super) free: u64,
    pub(super) used: u64,
}

pub(super) fn memory_v1(nvml: &Nvml, device: &Device<'_>) -> Result<MemoryBytes, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut memory = nvmlMemory_t {
        total: 0,
        free: 0,
        used: 0,
    };
    // SAFETY: the symbol has NVML's documented signature; the handle comes from this `nvml`, which `device` borrows and so keeps alive;
    // `memory` is a valid, writable struct of the layout the call fills.
    nvml_try(unsafe { call(device.handle(), &mut memory) })?;
    Ok(MemoryBytes {
        total: memory.total,
        free: memory.free,
        used: memory.used,
    })
}

pub(super) fn gpu_instance_id(nvml: &Nvml, mig: &Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
    let mut id = 0;
    // SAFETY: as above; the out-parameter is one unsigned int.
    nvml_try(unsafe { call(mig.handle(), &mut id) })?;
    Ok(id)
}

pub(super) fn compute_instance_id(nvml: &Nvml, mig: &Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetComputeInstanceId.as_ref())?;
    let mut id = 0;
    // SAFETY: as above; the out-parameter is one unsigned int.
    nvml_try(unsafe { call(mig.handle(), &mut id) })?;
    Ok(id)
}

pub(super) fn placement(nvml: &Nvml, parent: &Device<'_>, gpu_instance_id: u32) -> Result<Placement, NvmlError> {
    let find = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceById.as_ref())?;
    let describe = nvml_sym(nvml.lib().nvmlGpuInstanceGetInfo.as_ref())?;
    let mut instance: nvmlGpuInstance_t = std::ptr::null_mut();
    let mut info = nvmlGpuInstanceInfo_t {
        device: std::ptr::null_mut::<nvml_wrapper_sys::bindings::nvmlDevice_st>() as nvmlDevice_t,
        id: 0,
        profileId: 0,
        placement: nvmlGpuInstancePlacement_t { start: 0, size: 0 },
    };
    // SAFETY: as above; `instance` is written before it is read, because the first call's return code is checked in between.
    unsafe {
        nvml_try(find(parent.handle(), gpu_instance_id, &mut instance))?;
        nvml_try(describe(instance, &mut info))?;
    }
    Ok(Placement {
        start: info.placement.start,
        size: info.placement.size,
    })
}

/// One event with all of NVML's fields; the wrapper drops the instance ids.
pub(super) struct RawEvent<'nvml> {
    pub(super) device: Device<'nvml>,
    pub(super) kind: u64,
    pub(super) data: u64,
    pub(super) gpu_instance_id: u32,
    pub(super) compute_instance_id: u32,
}

pub(super) fn wait_event<'nvml>(set: &EventSet<'nvml>, timeout_ms: u32) -> Result<RawEvent<'nvml>, NvmlError> {
    let nvml = set.nvml;
    let call = nvml_sym(nvml.lib().nvmlEventSetWait_v2.as_ref())?;
    let mut event = nvmlEventData_t {
        device: std::ptr::null_mut(),
        eventType: 0,
        eventData: 0,
        gpuInstanceId: u32::MAX,
        computeInstanceId: u32::MAX,
    };
    // SAFETY: the set's handle is only read here and `set` outlives the call; `event` is a valid struct of the layout the call fills; the
    // device handle in it belongs to the same library, whose lifetime the new `Device` carries.
    let device = unsafe {
        nvml_try(call(set.handle(), &mut event, timeout_ms))?;
        Device::new(event.device, nvml)
    };
    Ok(RawEvent {
        device,
        kind: event.eventType,
        data: event.eventData,
        gpu_instance_id: event.gpuInstanceId,
        compute_instance_id: event.computeInstanceId,
    })
}

/// `nvmlSetMemoryLimits_v1_t`, which the bindings lack. The layout is that of the header of NVML 13.4, for 64 bit.
#[repr(C)]
struct SetMemoryLimits {
    name_space: *const c_char,
    soft_limit: c_ulonglong,
    hard_limit: c_ulonglong,
}

/// `nvmlGetMemoryLimits_v1_t`.
#[repr(C)]
struct GetMemoryLimits {
    name_space: *const c_char,
    soft_limit: c_ulonglong,
    hard_limit: c_ulonglong,
    current_used: c_ulonglong,
}

/// `NVML_DEVICE_MEMORY_LIMIT_MAX`: no hard limit.
const MEMORY_LIMIT_MAX: u64 = u64::MAX;

const SET_MEMORY_LIMITS: &CStr = c"nvmlDeviceSetMemoryLimits_v1";
const GET_MEMORY_LIMITS: &CStr = c"nvmlDeviceGetMemoryLimits_v1";

type SetMemoryLimitsCall = unsafe extern "C" fn(nvmlDevice_t, *mut SetMemoryLimits) -> nvmlReturn_t;
type GetMemoryLimitsCall = unsafe extern "C" fn(nvmlDevice_t, *mut GetMemoryLimits) -> nvmlReturn_t;

/// The library's calls for memory limits, of driver 615 and newer.
pub(super) struct MemoryLimitCalls<'nvml> {
    set: SetMemoryLimitsCall,
    get: GetMemoryLimitsCall,
    nvml: &'nvml Nvml,
}

impl<'nvml> MemoryLimitCalls<'nvml> {
    /// Looks both up in the loaded library. An error with the names that it lacks.
    pub(super) fn find(nvml: &'nvml Nvml) -> Result<Self, Vec<&'static str>> {
        let library = &nvml.lib().__library;
        // SAFETY: the symbols have these signatures in every NVML that exports them; the copied function pointers are called only through
        // `self`, which borrows `nvml` and so keeps the library loaded.
        let (set, get) = unsafe {
            (
                library.get::<SetMemoryLimitsCall>(SET_MEMORY_LIMITS.to_bytes_with_nul()),
                library.get::<GetMemoryLimitsCall>(GET_MEMORY_LIMITS.to_bytes_with_nul()),
            )
        };
        let name = |name: &'static CStr| name.to_str().expect("the names are ASCII");
        match (set, get) {
            (Ok(set), Ok(get)) => Ok(Self {
                set: *set,
                get: *get,
                nvml,
            }),
            (set, get) => Err([
                set.err().map(|_| SET_MEMORY_LIMITS),
                get.err().map(|_| GET_MEMORY_LIMITS),
            ]
            .into_iter()
            .flatten()
            .map(name)
            .collect()),
        }
    }

    pub(super) fn set(&self, device: &Device<'_>, cgroup: &CStr, limits: MemoryLimits) -> Result<(), NvmlError> {
        debug_assert!(std::ptr::eq(device.nvml(), self.nvml), "the handle is of this library");
        let mut argument = SetMemoryLimits {
            name_space: cgroup.as_ptr(),
            soft_limit: limits.soft_bytes,
            hard_limit: limits.hard_bytes.unwrap_or(MEMORY_LIMIT_MAX),
        };
        // SAFETY: the handle comes from the library of `self`; `argument` is a valid struct of the layout that the call reads, and its text
        // is NUL-terminated and outlives the call.
        nvml_try(unsafe { (self.set)(device.handle(), &mut argument) })
    }

    /// The limits and the bytes in use.
    pub(super) fn get(&self, device: &Device<'_>, cgroup: &CStr) -> Result<(MemoryLimits, u64), NvmlError> {
        debug_assert!(std::ptr::eq(device.nvml(), self.nvml), "the handle is of this library");
        let mut argument = GetMemoryLimits {
            name_space: cgroup.as_ptr(),
            soft_limit: 0,
            hard_limit: 0,
            current_used: 0,
        };
        // SAFETY: as in `set`; the call writes only into `argument`.
        nvml_try(unsafe { (self.get)(device.handle(), &mut argument) })?;
        let limits = MemoryLimits {
            soft_bytes: argument.soft_limit,
            hard_bytes: (argument.hard_limit != MEMORY_LIMIT_MAX).then_some(argument.hard_limit),
        };
        Ok((limits, argument.current_used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn the_structs_have_the_layout_of_the_header() {
        assert_eq!(size_of::<SetMemoryLimits>(), 24);
        assert_eq!(size_of::<GetMemoryLimits>(), 32);
        assert_eq!(offset_of!(SetMemoryLimits, name_space), 0);
        assert_eq!(offset_of!(SetMemoryLimits, soft_limit), 8);
        assert_eq!(offset_of!(SetMemoryLimits, hard_limit), 16);
        assert_eq!(offset_of!(GetMemoryLimits, name_space), 0);
        assert_eq!(offset_of!(GetMemoryLimits, soft_limit), 8);
        assert_eq!(offset_of!(GetMemoryLimits, hard_limit), 16);
        assert_eq!(offset_of!(GetMemoryLimits, current_used), 24);
        assert_eq!(MEMORY_LIMIT_MAX, 0xffff_ffff_ffff_ffff);
    }
}
