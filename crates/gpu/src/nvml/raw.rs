//! NVML calls that the safe wrapper lacks: MIG instance ids and placement, the old memory call, events with instance ids.
//! Each function owns its out-parameters and checks the return code before reading them.
#![allow(unsafe_code)]

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::event::EventSet;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventData_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlMemory_t,
};

use crate::Placement;

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
