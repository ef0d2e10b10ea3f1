//! What the hook does for a container: it limits the GPU memory of the container's cgroup, and where GPU and CPU share memory, the system
//! memory. The result is a receipt. Everything comes in as an argument, so simulated kubelets run the same code with the fake driver.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use kai_gpu::{Driver, MemoryLimitError, set_and_verify};

use super::cgroup::{CgroupError, CgroupPlace};
use super::limits::GpuLimit;
use super::receipt::{ContainerName, Failure, Receipt};
use super::state_document::{self, StateError};

/// A v1 memory limit at or above this is none: the kernel shows "no limit" as the largest number of whole pages.
const V1_NO_LIMIT_MIN: u64 = 1 << 60;

/// What a container that can't be held to its limits does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnforcePolicy {
    /// It does not start.
    #[default]
    Closed,
    /// It starts without limits, and the agent reports it.
    Open,
}

impl EnforcePolicy {
    /// The flag's value.
    pub fn name(self) -> &'static str {
        match self {
            EnforcePolicy::Closed => "closed",
            EnforcePolicy::Open => "open",
        }
    }
}

/// What a container is to be held to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HoldRequest {
    /// The container.
    pub container: ContainerName,
    /// Its limits, one for each GPU.
    pub limits: Vec<GpuLimit>,
    /// The limit of its system memory, if it has none of its own.
    pub system_memory_bytes: Option<u64>,
    /// What happens if it can't be held.
    pub policy: EnforcePolicy,
}

/// Why a container can't be held to its limits.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// The runtime's document is of no use.
    #[error(transparent)]
    State(#[from] StateError),
    /// The container's cgroup was not found.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The driver refused.
    #[error("{}", .0.with_remedy())]
    Driver(#[from] MemoryLimitError),
    /// The driver did not answer in time.
    #[error("the GPU driver did not answer within {0} seconds; look for NVRM lines in dmesg on the node")]
    Timeout(u64),
    /// The system memory could not be limited.
    #[error("limiting the system memory by {}: {source}; or run the node agent with --unified-memory-limit=false", path.display())]
    SystemMemory {
        /// The file of the cgroup.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl HoldError {
    /// The driver's error constant, as a label of metrics.
    pub fn code(&self) -> Option<String> {
        match self {
            HoldError::Driver(error) => Some(error.code().constant().to_owned()),
            HoldError::Timeout(_) => Some("TIMEOUT".to_owned()),
            HoldError::State(_) | HoldError::Cgroup(_) | HoldError::SystemMemory { .. } => None,
        }
    }
}

/// Holds the container whose state document is `input` to its limits. The receipt's failure says whether it may start nevertheless.
pub fn hold(
    request: &HoldRequest,
    input: impl Read,
    driver: &dyn Driver,
    place: &CgroupPlace,
    now_seconds: u64,
) -> Receipt {
    let mut receipt = Receipt {
        container: request.container.clone(),
        container_id: String::new(),
        cgroup: String::new(),
        at_seconds: now_seconds,
        limits: Vec::new(),
        system_memory_bytes: None,
        failure: None,
    };
    if let Err(error) = try_hold(request, input, driver, place, &mut receipt) {
        receipt.failure = Some(failure(&error, request.policy));
    }
    receipt
}

/// The report of a failure.
pub fn failure(error: &HoldError, policy: EnforcePolicy) -> Failure {
    Failure {
        code: error.code(),
        message: error.to_string(),
        // The limit of system memory is no promise of the tier: kubelet and kernel cope without it.
        started: policy == EnforcePolicy::Open || matches!(error, HoldError::SystemMemory { .. }),
    }
}

fn try_hold(
    request: &HoldRequest,
    input: impl Read,
    driver: &dyn Driver,
    place: &CgroupPlace,
    receipt: &mut Receipt,
) -> Result<(), HoldError> {
    let state = state_document::read(input)?;
    receipt.container_id = state.id;
    if !request.limits.is_empty() {
        let cgroup = place.leaf(state.pid)?;
        receipt.cgroup = cgroup.display().to_string();
        limit_gpu_memory(driver, &cgroup, &request.limits)?;
        receipt.limits = request.limits.clone();
    }
    if let Some(bytes) = request.system_memory_bytes {
        let file = place.memory_limit_file(state.pid)?;
        if receipt.cgroup.is_empty() {
            receipt.cgroup = file.parent().unwrap_or(&file).display().to_string();
        }
        let limited =
            limit_system_memory(&file, bytes).map_err(|source| HoldError::SystemMemory { path: file, source })?;
        receipt.system_memory_bytes = limited;
    }
    Ok(())
}

/// Sets the limits of a cgroup, and checks that the driver reports the same numbers. Limits of all GPUs or of none: if one fails, those of
/// the others are lifted.
pub fn limit_gpu_memory(driver: &dyn Driver, cgroup: &Path, limits: &[GpuLimit]) -> Result<(), MemoryLimitError> {
    for (at, limit) in limits.iter().enumerate() {
        let set = match limit.hard_bytes {
            Some(_) => set_and_verify(driver, &limit.gpu, cgroup, limit.memory_limits()).map(drop),
            // A read of a cgroup without limits is an error with some drivers.
            None => driver.set_memory_limits(&limit.gpu, cgroup, limit.memory_limits()),
        };
        if let Err(error) = set {
            for done in &limits[..=at] {
                let _ = driver.set_memory_limits(&done.gpu, cgroup, GpuLimit::none(&done.gpu).memory_limits());
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Writes the limit unless the cgroup has one. Returns what was written.
fn limit_system_memory(file: &Path, bytes: u64) -> io::Result<Option<u64>> {
    let present = fs::read_to_string(file)?;
    let unlimited = match present.trim() {
        "max" => true,
        number => number.parse::<u64>().is_ok_and(|number| number >= V1_NO_LIMIT_MIN),
    };
    if !unlimited {
        return Ok(None);
    }
    fs::write(file, bytes.to_string())?;
    Ok(Some(bytes))
}
