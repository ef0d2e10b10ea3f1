//! Memory limits per cgroup, process lists and modes through NVML. Devices are looked up by UUID alone, so that a hook which sets one limit
//! does not list the machine's GPUs first.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nvml_wrapper::Device as NvmlDevice;
use nvml_wrapper::enum_wrappers::device::ComputeMode;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use super::driver::{Shared, device_of};
use super::errors::{is_driver_gone, is_refusal};
use super::library::Library;
use super::raw::MemoryLimitCalls;
use crate::memory_limits::{get_attempt, set_attempt};
use crate::processes::each_process_once;
use crate::{
    CgroupMemory, GpuComputeMode, GpuError, GpuProcess, GpuProcessKind, GpuProcesses, MemoryLimitError,
    MemoryLimitSupport, MemoryLimits, MigInstance, NvmlCode, ProcessList,
};

impl Shared {
    pub(super) fn memory_limit_support(&self) -> MemoryLimitSupport {
        let missing = |reason: String| MemoryLimitSupport::Missing { reason };
        match self.library() {
            // A driver that is away for a moment, as while it is updated, says nothing about its calls.
            Err(error) => MemoryLimitSupport::Unknown {
                reason: error.to_string(),
            },
            Ok(library) => match MemoryLimitCalls::find(&library.nvml) {
                Ok(_) => MemoryLimitSupport::Offered,
                Err(names) => missing(lacks(&library, &names)),
            },
        }
    }

    pub(super) fn memory_limits(&self, gpu: &str, cgroup: &Path) -> Result<CgroupMemory, MemoryLimitError> {
        let attempt = get_attempt(gpu, cgroup);
        let path = c_path(cgroup, &attempt)?;
        let (limits, used_bytes) =
            self.with_limit_calls(gpu, attempt, |calls, device| calls.get(device, path.as_c_str()))?;
        Ok(CgroupMemory { limits, used_bytes })
    }

    pub(super) fn set_memory_limits(
        &self,
        gpu: &str,
        cgroup: &Path,
        limits: MemoryLimits,
    ) -> Result<(), MemoryLimitError> {
        let attempt = set_attempt(gpu, cgroup, limits);
        let path = c_path(cgroup, &attempt)?;
        self.with_limit_calls(gpu, attempt, |calls, device| calls.set(device, path.as_c_str(), limits))
    }

    fn with_limit_calls<T>(
        &self,
        gpu: &str,
        attempt: String,
        work: impl FnOnce(&MemoryLimitCalls<'_>, &NvmlDevice<'_>) -> Result<T, NvmlError>,
    ) -> Result<T, MemoryLimitError> {
        let library = match self.library() {
            Ok(library) => library,
            Err(source) => return Err(MemoryLimitError::Driver { attempt, source }),
        };
        let calls = match MemoryLimitCalls::find(&library.nvml) {
            Ok(calls) => calls,
            Err(names) => {
                let reason = lacks(&library, &names);
                return Err(MemoryLimitError::Missing { attempt, reason });
            }
        };
        let device = match library.nvml.device_by_uuid(gpu) {
            Ok(device) => device,
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => return Err(MemoryLimitError::NoGpu { attempt }),
            Err(error) => return Err(self.limit_error(attempt, error)),
        };
        work(&calls, &device).map_err(|error| self.limit_error(attempt, error))
    }

    fn limit_error(&self, attempt: String, error: NvmlError) -> MemoryLimitError {
        if is_driver_gone(&error) {
            let source = self.failed(&attempt, error);
            return MemoryLimitError::Driver { attempt, source };
        }
        let code = NvmlCode(error.into());
        MemoryLimitError::Refused { attempt, code }
    }

    pub(super) fn processes(&self) -> Result<Vec<GpuProcesses>, GpuError> {
        let library = self.library()?;
        let known = self.known()?;
        let mut all = Vec::with_capacity(known.len());
        for device in &known {
            let handle = device_of(&library.nvml, device);
            let processes = match handle.and_then(|handle| listed(&handle)) {
                Ok(processes) => ProcessList::Listed(processes),
                Err(error) if is_driver_gone(&error) => {
                    return Err(self.failed("listing the processes on the GPUs", error));
                }
                Err(error) if is_not_offered(&error) => ProcessList::NotOffered,
                Err(_) => ProcessList::Unanswered,
            };
            let uuid = device.uuid.clone();
            all.push(GpuProcesses { uuid, processes });
        }
        Ok(all)
    }

    pub(super) fn persistence_mode(&self, gpu: &str) -> Result<Option<bool>, GpuError> {
        let attempt = format!("reading the persistence mode of GPU {gpu}");
        self.optional(gpu, &attempt, |device| device.is_in_persistent_mode())
    }

    pub(super) fn compute_mode(&self, gpu: &str) -> Result<Option<GpuComputeMode>, GpuError> {
        let attempt = format!("reading the compute mode of GPU {gpu}");
        let mode = self.optional(gpu, &attempt, |device| device.compute_mode())?;
        Ok(mode.map(|mode| match mode {
            ComputeMode::Default => GpuComputeMode::Default,
            ComputeMode::Prohibited => GpuComputeMode::Prohibited,
            ComputeMode::ExclusiveProcess | ComputeMode::ExclusiveThread => GpuComputeMode::ExclusiveProcess,
        }))
    }

    pub(super) fn set_compute_mode(&self, gpu: &str, mode: GpuComputeMode) -> Result<(), GpuError> {
        let attempt = format!("setting the compute mode of GPU {gpu} to {mode}");
        let library = self.library()?;
        let mode = match mode {
            GpuComputeMode::Default => ComputeMode::Default,
            GpuComputeMode::Prohibited => ComputeMode::Prohibited,
            GpuComputeMode::ExclusiveProcess => ComputeMode::ExclusiveProcess,
        };
        let device = library.nvml.device_by_uuid(gpu);
        let set = device.and_then(|mut device| device.set_compute_mode(mode));
        set.map_err(|error| self.failed(&attempt, error))
    }

    /// A fact that this GPU may not have.
    fn optional<T>(
        &self,
        gpu: &str,
        attempt: &str,
        ask: impl FnOnce(&NvmlDevice<'_>) -> Result<T, NvmlError>,
    ) -> Result<Option<T>, GpuError> {
        let library = self.library()?;
        let device = library.nvml.device_by_uuid(gpu).map_err(|error| match error {
            NvmlError::NotFound | NvmlError::InvalidArg => GpuError::DeviceNotFound { id: gpu.to_owned() },
            error => self.failed(attempt, error),
        })?;
        match ask(&device) {
            Ok(fact) => Ok(Some(fact)),
            Err(error) if is_not_offered(&error) => Ok(None),
            Err(error) => Err(self.failed(attempt, error)),
        }
    }
}

/// All processes on one GPU: computing, computing through MPS, rendering. The last two lists are optional.
fn listed(device: &NvmlDevice<'_>) -> Result<Vec<GpuProcess>, NvmlError> {
    let mut all: Vec<GpuProcess> = told(device.running_compute_processes()?, GpuProcessKind::Compute).collect();
    for (listed, kind) in [
        (device.mps_running_compute_processes(), GpuProcessKind::MpsClient),
        (device.running_graphics_processes(), GpuProcessKind::Graphics),
    ] {
        match listed {
            Ok(listed) => all.extend(told(listed, kind)),
            Err(error) if is_refusal(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(each_process_once(all))
}

fn told(listed: Vec<ProcessInfo>, kind: GpuProcessKind) -> impl Iterator<Item = GpuProcess> {
    listed.into_iter().map(move |process| GpuProcess {
        pid: process.pid,
        used_bytes: match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
        kind,
        mig: process.gpu_instance_id.map(|gpu_instance_id| MigInstance {
            gpu_instance_id,
            compute_instance_id: process.compute_instance_id.unwrap_or(0),
        }),
    })
}

fn is_not_offered(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::NotSupported | NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_)
    )
}

fn lacks(library: &Library, names: &[&str]) -> String {
    let version = library.nvml.sys_driver_version();
    let version = version.map_or_else(|_| String::new(), |version| format!(" of driver {version}"));
    format!("{}{version} lacks {}", library.path, names.join(" and "))
}

fn c_path(cgroup: &Path, attempt: &str) -> Result<CString, MemoryLimitError> {
    CString::new(cgroup.as_os_str().as_bytes()).map_err(|_| MemoryLimitError::Refused {
        attempt: attempt.to_owned(),
        code: NvmlCode::INVALID_ARGUMENT,
    })
}
