//! Calls about the processes on a GPU: those that the control file names.

use std::ffi::{c_uint, c_ulonglong};
use std::time::{SystemTime, UNIX_EPOCH};

use kai_gpu::fake::{Process, ProcessKind, QueryGroup};
use nvml_wrapper_sys::bindings::{nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlProcessUtilizationSample_t};

use crate::abi::{InOut, List, export};
use crate::code::{Answer, NOT_FOUND};
use crate::state::{Handle, device_for};

const MIB: u64 = 1 << 20;

export! {
    /// CUDA processes, old struct.
    fn nvmlDeviceGetComputeRunningProcesses(handle: Handle, count: InOut<c_uint>, list: List<nvmlProcessInfo_v1_t>) {
        list.put(&count, old(running(handle, ProcessKind::Compute)?))
    }

    /// CUDA processes.
    fn nvmlDeviceGetComputeRunningProcesses_v2(handle: Handle, count: InOut<c_uint>, list: List<nvmlProcessInfo_t>) {
        list.put(&count, new(running(handle, ProcessKind::Compute)?))
    }

    /// CUDA processes.
    fn nvmlDeviceGetComputeRunningProcesses_v3(handle: Handle, count: InOut<c_uint>, list: List<nvmlProcessInfo_t>) {
        list.put(&count, new(running(handle, ProcessKind::Compute)?))
    }

    /// Rendering processes, old struct.
    fn nvmlDeviceGetGraphicsRunningProcesses(handle: Handle, count: InOut<c_uint>, list: List<nvmlProcessInfo_v1_t>) {
        list.put(&count, old(running(handle, ProcessKind::Graphics)?))
    }

    /// Rendering processes.
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(handle: Handle, count: InOut<c_uint>, list: List<nvmlProcessInfo_t>) {
        list.put(&count, new(running(handle, ProcessKind::Graphics)?))
    }

    /// Rendering processes.
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(handle: Handle, count: InOut<c_uint>, list: List<nvmlProcessInfo_t>) {
        list.put(&count, new(running(handle, ProcessKind::Graphics)?))
    }

    /// CUDA processes that are clients of a multi-process server.
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(handle: Handle, count: InOut<c_uint>, list: List<nvmlProcessInfo_t>) {
        list.put(&count, new(running(handle, ProcessKind::MpsClient)?))
    }

    /// Load per process: the GPU's load in equal shares.
    fn nvmlDeviceGetProcessUtilization(
        handle: Handle,
        list: List<nvmlProcessUtilizationSample_t>,
        count: InOut<c_uint>,
        _since: c_ulonglong,
    ) {
        let queried = device_for(handle, QueryGroup::Processes)?;
        let processes = running(handle, ProcessKind::Compute)?;
        if processes.is_empty() {
            return Err(NOT_FOUND);
        }
        let share = queried.status.utilization_percent / processes.len() as u32;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
        let sample = |running: Running| nvmlProcessUtilizationSample_t {
            pid: running.process.pid,
            timeStamp: now,
            smUtil: share,
            memUtil: share / 2,
            encUtil: 0,
            decUtil: 0,
        };
        list.put(&count, processes.into_iter().map(sample).collect())
    }
}

/// A process with its instance ids: all ones mean the whole GPU.
struct Running {
    process: Process,
    instance: (u32, u32),
}

/// The processes on a GPU, or those in one partition of it.
fn running(handle: Handle, kind: ProcessKind) -> Answer<Vec<Running>> {
    let queried = device_for(handle, QueryGroup::Processes)?;
    let gpu = queried.fake();
    let mut found = Vec::new();
    for process in queried
        .status
        .control
        .processes
        .iter()
        .flatten()
        .filter(|process| process.kind == kind)
    {
        let partition = gpu.partition_of(process);
        if queried.mig.is_some() && queried.mig != partition {
            continue;
        }
        let ids = partition.map(|mig| {
            (
                gpu.mig[mig].device.gpu_instance_id,
                gpu.mig[mig].device.compute_instance_id,
            )
        });
        found.push(Running {
            process: process.clone(),
            instance: ids.unwrap_or((u32::MAX, u32::MAX)),
        });
    }
    Ok(found)
}

/// All ones mean that the driver does not say.
fn used_bytes(process: &Process) -> u64 {
    match process.memory_unavailable {
        true => u64::MAX,
        false => process.memory_mib * MIB,
    }
}

fn old(running: Vec<Running>) -> Vec<nvmlProcessInfo_v1_t> {
    let info = |running: Running| nvmlProcessInfo_v1_t {
        pid: running.process.pid,
        usedGpuMemory: used_bytes(&running.process),
    };
    running.into_iter().map(info).collect()
}

fn new(running: Vec<Running>) -> Vec<nvmlProcessInfo_t> {
    let info = |running: Running| nvmlProcessInfo_t {
        pid: running.process.pid,
        usedGpuMemory: used_bytes(&running.process),
        gpuInstanceId: running.instance.0,
        computeInstanceId: running.instance.1,
    };
    running.into_iter().map(info).collect()
}
