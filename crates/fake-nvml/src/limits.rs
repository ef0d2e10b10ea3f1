//! Memory limits per cgroup, as drivers have them from 615 on, and the compute mode. The machine of the `gpu` crate keeps both; with a record
//! directory all processes that name it share them.

use std::ffi::{c_uint, c_ulonglong};
use std::path::PathBuf;

use kai_gpu::fake::{CgroupRoots, QueryGroup, cgroup_of};
use kai_gpu::{GpuComputeMode, MemoryLimits};

use crate::abi::{InOut, Out, Text, export};
use crate::code::{Answer, Code, INVALID_ARGUMENT, NOT_SUPPORTED};
use crate::state::{Handle, QueriedDevice, device, device_for};

/// `NVML_DEVICE_MEMORY_LIMIT_MAX`: no hard limit.
const MEMORY_LIMIT_MAX: c_ulonglong = c_ulonglong::MAX;

/// Argument of `nvmlDeviceSetMemoryLimits_v1`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SetMemoryLimits {
    name_space: Text,
    soft_limit: c_ulonglong,
    hard_limit: c_ulonglong,
}

/// Argument of `nvmlDeviceGetMemoryLimits_v1`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct GetMemoryLimits {
    name_space: Text,
    soft_limit: c_ulonglong,
    hard_limit: c_ulonglong,
    current_used: c_ulonglong,
}

export! {
    /// Limits the memory of a cgroup.
    fn nvmlDeviceSetMemoryLimits_v1(handle: Handle, argument: InOut<SetMemoryLimits>) {
        let queried = limited(handle)?;
        let wanted = argument.get()?;
        let limits = MemoryLimits {
            soft_bytes: wanted.soft_limit,
            hard_bytes: (wanted.hard_limit != MEMORY_LIMIT_MAX).then_some(wanted.hard_limit),
        };
        let (machine, control) = (&queried.snapshot.visible_machine.machine, &queried.snapshot.control);
        let path = PathBuf::from(wanted.name_space.read()?);
        machine.set_memory_limits(queried.fake(), control, &path, limits).map_err(|code| Code(code.0))
    }

    /// The limits of a cgroup, and what it uses.
    fn nvmlDeviceGetMemoryLimits_v1(handle: Handle, argument: InOut<GetMemoryLimits>) {
        let queried = limited(handle)?;
        let asked = argument.get()?;
        let (machine, control) = (&queried.snapshot.visible_machine.machine, &queried.snapshot.control);
        let path = PathBuf::from(asked.name_space.read()?);
        let told = machine.memory_limits(queried.fake(), control, &path).map_err(|code| Code(code.0))?;
        argument.put(GetMemoryLimits {
            soft_limit: told.limits.soft_bytes,
            hard_limit: told.limits.hard_bytes.unwrap_or(MEMORY_LIMIT_MAX),
            current_used: told.used_bytes,
            ..asked
        })
    }

    /// How many processes may use the GPU.
    fn nvmlDeviceGetComputeMode(handle: Handle, mode: Out<c_uint>) {
        let queried = device_for(handle, QueryGroup::ComputeMode)?;
        mode.put(match queried.snapshot.visible_machine.machine.compute_mode(queried.fake()) {
            GpuComputeMode::Default => 0,
            GpuComputeMode::Prohibited => 2,
            GpuComputeMode::ExclusiveProcess => 3,
        })
    }

    /// Sets how many processes may use the GPU.
    fn nvmlDeviceSetComputeMode(handle: Handle, mode: c_uint) {
        let queried = device_for(handle, QueryGroup::ComputeMode)?;
        queried.whole()?;
        let mode = match mode {
            0 => GpuComputeMode::Default,
            // Exclusive threads: no driver has them any more.
            1 => return Err(NOT_SUPPORTED),
            2 => GpuComputeMode::Prohibited,
            3 => GpuComputeMode::ExclusiveProcess,
            _ => return Err(INVALID_ARGUMENT),
        };
        let set = queried.snapshot.visible_machine.machine.set_compute_mode(queried.fake(), mode);
        set.map_err(|code| Code(code.0))
    }
}

/// The whole GPU of a handle.
fn limited(handle: Handle) -> Answer<QueriedDevice> {
    let queried = device(handle)?;
    queried.whole()?;
    Ok(queried)
}

/// Total and used bytes of a GPU as the calling process is told them: those of its cgroup, if that has a limit.
pub(crate) fn memory_of_caller(queried: &QueriedDevice) -> Option<(u64, u64)> {
    let cgroup = cgroup_of(&CgroupRoots::of_this_machine(), "self")?;
    let (machine, control) = (&queried.snapshot.visible_machine.machine, &queried.snapshot.control);
    machine.memory_within(queried.fake(), control, &cgroup)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn the_structs_have_the_layout_of_the_header() {
        assert_eq!((size_of::<SetMemoryLimits>(), size_of::<GetMemoryLimits>()), (24, 32));
        assert_eq!(offset_of!(SetMemoryLimits, name_space), 0);
        assert_eq!(offset_of!(SetMemoryLimits, soft_limit), 8);
        assert_eq!(offset_of!(SetMemoryLimits, hard_limit), 16);
        assert_eq!(offset_of!(GetMemoryLimits, name_space), 0);
        assert_eq!(offset_of!(GetMemoryLimits, soft_limit), 8);
        assert_eq!(offset_of!(GetMemoryLimits, hard_limit), 16);
        assert_eq!(offset_of!(GetMemoryLimits, current_used), 24);
    }
}
