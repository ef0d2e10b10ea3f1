//! Calls about the library and the machine: start, stop, versions, texts.

use std::ffi::{c_char, c_int, c_uint};

use crate::abi::{Buffer, Out, export};
use crate::code::{NOT_FOUND, UNKNOWN, text};
use crate::state::{initialise, shut_down, snapshot};

export! {
    /// Starts the library.
    fn nvmlInit() { initialise() }

    /// Starts the library.
    fn nvmlInit_v2() { initialise() }

    /// Starts the library; flags change nothing here.
    fn nvmlInitWithFlags(_flags: c_uint) { initialise() }

    /// Stops the library.
    fn nvmlShutdown() { shut_down() }

    /// Kernel driver version.
    fn nvmlSystemGetDriverVersion(version: Buffer, length: c_uint) {
        let snapshot = snapshot()?;
        version.put(length, snapshot.visible_machine.machine.inventory().driver_version.as_deref().ok_or(UNKNOWN)?)
    }

    /// Version of this library.
    fn nvmlSystemGetNVMLVersion(version: Buffer, length: c_uint) {
        let snapshot = snapshot()?;
        version.put(length, snapshot.visible_machine.machine.inventory().nvml_version.as_deref().ok_or(UNKNOWN)?)
    }

    /// Newest CUDA version of the driver.
    fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) { cuda(&version) }

    /// Newest CUDA version of the driver.
    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) { cuda(&version) }

    /// Name of a process: from the control file, else from the system.
    fn nvmlSystemGetProcessName(pid: c_uint, name: Buffer, length: c_uint) {
        let snapshot = snapshot()?;
        let processes = snapshot.control.gpus.values().flat_map(|gpu| gpu.processes.iter().flatten());
        let told = processes.filter(|process| process.pid == pid).find_map(|process| process.name.clone());
        let found = told.or_else(|| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
        name.put(length, found.ok_or(NOT_FOUND)?.trim())
    }
}

/// The phrase for a return code. Never fails.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlErrorString(code: u32) -> *const c_char {
    text(code).as_ptr()
}

fn cuda(version: &Out<c_int>) -> crate::code::Answer {
    let snapshot = snapshot()?;
    let cuda = snapshot
        .visible_machine
        .machine
        .inventory()
        .cuda_version
        .ok_or(UNKNOWN)?;
    version.put(cuda.to_driver() as c_int)
}
