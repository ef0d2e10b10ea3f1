//! Calls about the processes on a GPU: those that the control file names.

use std::ffi::{c_uint, c_ulonglong};
use std::time::{SystemTime, UNIX_EPOCH};

use gpu::fake::{Process, ProcessKind, Question};
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

    /// MPS clients: none.
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(handle: Handle, count: InOut<c_uint>, list: List<nvmlProcessInfo_t>) {
        device_for(handle, Question::Processes)?;
        list.put(&count, Vec::new())
    }

    /// Load per process: the GPU's load in equal shares.
    fn nvmlDeviceGetProcessUtilization(
        handle: Handle,
        list: List<nvmlProcessUtilizationSample_t>,
        count: InOut<c_uint>,
        _since: c_ulonglong,
    ) {
        let asked = device_for(handle, Question::Processes)?;
        let processes = running(handle, ProcessKind::Compute)?;
        if processes.is_empty() {
            return Err(NOT_FOUND);
        }
        let share = asked.picture.utilization_percent / processes.len() as u32;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
        let sample = |process: Process| nvmlProcessUtilizationSample_t {
            pid: process.pid,
            timeStamp: now,
            smUtil: share,
            memUtil: share / 2,
            encUtil: 0,
            decUtil: 0,
        };
        list.put(&count, processes.into_iter().map(sample).collect())
    }
}

fn running(handle: Handle, kind: ProcessKind) -> Answer<Vec<Process>> {
    let asked = device_for(handle, Question::Processes)?;
    let processes = asked.picture.control.processes.clone().unwrap_or_default();
    Ok(processes.into_iter().filter(|process| process.kind == kind).collect())
}

fn old(processes: Vec<Process>) -> Vec<nvmlProcessInfo_v1_t> {
    let info = |process: Process| nvmlProcessInfo_v1_t {
        pid: process.pid,
        usedGpuMemory: process.memory_mib * MIB,
    };
    processes.into_iter().map(info).collect()
}

/// All ones in the instance ids: the whole GPU.
fn new(processes: Vec<Process>) -> Vec<nvmlProcessInfo_t> {
    let info = |process: Process| nvmlProcessInfo_t {
        pid: process.pid,
        usedGpuMemory: process.memory_mib * MIB,
        gpuInstanceId: u32::MAX,
        computeInstanceId: u32::MAX,
    };
    processes.into_iter().map(info).collect()
}
