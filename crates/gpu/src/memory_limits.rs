//! The driver's memory limits per cgroup (driver 615 and newer): values, support and errors. [`Driver`] has the calls.
//!
//! The driver charges each allocation on a GPU to the cgroup of the process, and refuses those above the hard limit of that cgroup. An error
//! of a read proves nothing about support, and a successful write proves nothing about the limit: only [`set_and_verify`] does.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Driver, GpuError};

/// The memory limits of one cgroup on one GPU. The default is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryLimits {
    /// Memory that is guaranteed to the cgroup, in bytes. Only an MPS server acts on it.
    pub soft_bytes: u64,
    /// The most memory that the cgroup may allocate, in bytes; `None` is no limit.
    pub hard_bytes: Option<u64>,
}

impl MemoryLimits {
    /// A hard limit without a guarantee. Guarantees are not used by default: they are added to each ancestor of the cgroup and stay there
    /// after the cgroup is removed.
    pub fn hard(hard_bytes: u64) -> Self {
        Self {
            soft_bytes: 0,
            hard_bytes: Some(hard_bytes),
        }
    }
}

impl fmt::Display for MemoryLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.hard_bytes, self.soft_bytes) {
            (None, 0) => f.write_str("no limit"),
            (None, soft) => write!(f, "no limit, soft {soft} bytes"),
            (Some(hard), 0) => write!(f, "{hard} bytes"),
            (Some(hard), soft) => write!(f, "{hard} bytes, soft {soft} bytes"),
        }
    }
}

/// The driver's answer about one cgroup on one GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CgroupMemory {
    /// The limits in force.
    pub limits: MemoryLimits,
    /// GPU memory that processes of the cgroup use.
    pub used_bytes: u64,
}

/// Whether the driver's library has the calls for memory limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryLimitSupport {
    /// It has. Whether the kernel and a GPU take a limit is known after [`set_and_verify`] on a cgroup of one's own.
    Offered,
    /// It has not.
    Missing {
        /// Why, in words for operators.
        reason: String,
    },
    /// The driver does not answer, so it does not say.
    Unknown {
        /// Why it does not answer.
        reason: String,
    },
}

/// The remedy for a driver without the calls.
const NO_SUCH_CALL: &str =
    "Install driver 615 or newer on the node; until then the node offers a lower tier of enforcement.";

/// Why a memory limit could not be set or read. `Display` says what was attempted and the result; [`MemoryLimitError::remedy`] says what
/// to do.
#[derive(Debug, thiserror::Error)]
pub enum MemoryLimitError {
    /// NVML refused the call.
    #[error("{attempt}: {code}")]
    Refused {
        /// What was attempted.
        attempt: String,
        /// NVML's code.
        code: NvmlCode,
    },
    /// This driver has no such call.
    #[error("{attempt}: {reason} (ERROR_FUNCTION_NOT_FOUND)")]
    Missing {
        /// What was attempted.
        attempt: String,
        /// Why there is none.
        reason: String,
    },
    /// No GPU has this UUID.
    #[error("{attempt}: there is no such GPU (ERROR_NOT_FOUND)")]
    NoGpu {
        /// What was attempted.
        attempt: String,
    },
    /// The driver itself does not work.
    #[error("{attempt}: {source}")]
    Driver {
        /// What was attempted.
        attempt: String,
        /// Its error.
        source: GpuError,
    },
    /// The driver took the limits but has others afterwards.
    #[error("{attempt}: the driver took the limits, but then reported {reported}")]
    NotKept {
        /// What was attempted.
        attempt: String,
        /// What the driver reports.
        reported: MemoryLimits,
    },
}

impl MemoryLimitError {
    /// The NVML code that is nearest to this error, as a label of metrics. A limit that the driver did not keep is `UNKNOWN`.
    pub fn code(&self) -> NvmlCode {
        match self {
            MemoryLimitError::Refused { code, .. } => *code,
            MemoryLimitError::Missing { .. } => NvmlCode::FUNCTION_NOT_FOUND,
            MemoryLimitError::NoGpu { .. } => NvmlCode::NOT_FOUND,
            MemoryLimitError::Driver { source, .. } => NvmlCode::of(source),
            MemoryLimitError::NotKept { .. } => NvmlCode::UNKNOWN,
        }
    }

    /// What an operator should do, in one sentence.
    pub fn remedy(&self) -> &'static str {
        match self {
            MemoryLimitError::Refused { code, .. } => code.limit_remedy(),
            MemoryLimitError::Missing { .. } => NO_SUCH_CALL,
            MemoryLimitError::NoGpu { .. } => {
                "Compare the UUID with nvidia-smi -L on the node; the GPU may have been removed or be lost."
            }
            MemoryLimitError::Driver { source, .. } => source.remedy(),
            MemoryLimitError::NotKept { .. } => {
                "Switch on persistence mode (nvidia-smi -pm 1, or the service nvidia-persistenced): without it the driver forgets the \
                 limits of an idle GPU; then compare with nvidia-smi memory-limits --get."
            }
        }
    }

    /// Message and remedy in one text.
    pub fn with_remedy(&self) -> String {
        format!("{self}. {}", self.remedy())
    }
}

/// A return code of NVML.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NvmlCode(pub u32);

impl NvmlCode {
    /// A wrong argument: soft above hard, or a limit above the GPU's memory.
    pub const INVALID_ARGUMENT: NvmlCode = NvmlCode(2);
    /// No support: MIG, the root cgroup, no accounting; of a read also: no limit.
    pub const NOT_SUPPORTED: NvmlCode = NvmlCode(3);
    /// Not an administrator.
    pub const NO_PERMISSION: NvmlCode = NvmlCode(4);
    /// No such GPU, or the cgroup lacks the controller; of a read: no limit.
    pub const NOT_FOUND: NvmlCode = NvmlCode(6);
    /// The library lacks the call.
    pub const FUNCTION_NOT_FOUND: NvmlCode = NvmlCode(13);
    /// The directory can't be opened.
    pub const OPERATING_SYSTEM: NvmlCode = NvmlCode(17);
    /// Anything else.
    pub const UNKNOWN: NvmlCode = NvmlCode(999);

    /// NVML's constant without its prefix: `NOT_SUPPORTED`. Numbers that this crate does not know are `UNKNOWN`.
    pub fn constant(self) -> &'static str {
        match self.0 {
            0 => "SUCCESS",
            1 => "UNINITIALIZED",
            2 => "INVALID_ARGUMENT",
            3 => "NOT_SUPPORTED",
            4 => "NO_PERMISSION",
            5 => "ALREADY_INITIALIZED",
            6 => "NOT_FOUND",
            7 => "INSUFFICIENT_SIZE",
            8 => "INSUFFICIENT_POWER",
            9 => "DRIVER_NOT_LOADED",
            10 => "TIMEOUT",
            11 => "IRQ_ISSUE",
            12 => "LIBRARY_NOT_FOUND",
            13 => "FUNCTION_NOT_FOUND",
            14 => "CORRUPTED_INFOROM",
            15 => "GPU_IS_LOST",
            16 => "RESET_REQUIRED",
            17 => "OPERATING_SYSTEM",
            18 => "LIB_RM_VERSION_MISMATCH",
            19 => "IN_USE",
            20 => "MEMORY",
            21 => "NO_DATA",
            25 => "ARGUMENT_VERSION_MISMATCH",
            _ => "UNKNOWN",
        }
    }

    /// The code of an error of the driver.
    fn of(error: &GpuError) -> NvmlCode {
        NvmlCode(match error {
            GpuError::LibraryNotFound { .. } | GpuError::LibraryCutOff { .. } => 12,
            GpuError::LibraryUnusable { .. } => 13,
            GpuError::DriverNotLoaded { .. } => 9,
            GpuError::NoPermission { .. } => 4,
            GpuError::VersionMismatch { .. } => 18,
            GpuError::NotSupported { .. } => 3,
            GpuError::GpuLost { .. } => 15,
            GpuError::ResetRequired { .. } => 16,
            GpuError::Uninitialized { .. } => 1,
            GpuError::Timeout { .. } => 10,
            GpuError::DeviceNotFound { .. } => 6,
            GpuError::Nvml { .. }
            | GpuError::FakeBesideReal { .. }
            | GpuError::FakeSettings { .. }
            | GpuError::FakeControl { .. }
            | GpuError::File { .. } => 999,
        })
    }

    /// What to do if a memory limit was refused with this code.
    fn limit_remedy(self) -> &'static str {
        match self.constant() {
            "INVALID_ARGUMENT" => {
                "The limit is above the GPU's memory, or the soft limit above the hard one: compare it with nvidia-smi -q -d MEMORY."
            }
            "NOT_SUPPORTED" => {
                "The kernel needs cgroup v2 with the DMEM controller (6.14 or newer) or the MISC controller, and the driver its accounting \
                 (NVreg_RegistryDwords RmMemacctMode other than 0); MIG and integrated GPUs have no memory limits."
            }
            "NO_PERMISSION" => {
                "The program that sets limits has to run as root with CAP_SYS_ADMIN, as hooks of the container runtime do."
            }
            "NOT_FOUND" => {
                "The cgroup has no dmem files: a cgroup between the root and it does not have the dmem controller in \
                 cgroup.subtree_control."
            }
            "OPERATING_SYSTEM" => {
                "The cgroup directory is gone or can't be opened: the container may have ended meanwhile."
            }
            "GPU_IS_LOST" | "RESET_REQUIRED" => {
                "Reset the GPU with nvidia-smi --gpu-reset, or reboot the node; it is not handed out until it answers again."
            }
            "FUNCTION_NOT_FOUND" => NO_SUCH_CALL,
            _ => "Run nvidia-smi memory-limits --get on the host, and look for NVRM lines in dmesg.",
        }
    }
}

impl fmt::Display for NvmlCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ERROR_{} ({})", self.constant(), self.0)
    }
}

/// Sets the limits of a cgroup and reads them back. An error if the driver then reports others.
pub fn set_and_verify(
    driver: &dyn Driver,
    gpu: &str,
    cgroup: &Path,
    limits: MemoryLimits,
) -> Result<CgroupMemory, MemoryLimitError> {
    driver.set_memory_limits(gpu, cgroup, limits)?;
    let reported = driver.memory_limits(gpu, cgroup)?;
    if reported.limits == limits {
        return Ok(reported);
    }
    Err(MemoryLimitError::NotKept {
        attempt: set_attempt(gpu, cgroup, limits),
        reported: reported.limits,
    })
}

/// For messages: what a write attempts.
pub(crate) fn set_attempt(gpu: &str, cgroup: &Path, limits: MemoryLimits) -> String {
    format!(
        "limiting the memory of cgroup {} on GPU {gpu} to {limits}",
        cgroup.display()
    )
}

/// For messages: what a read attempts.
pub(crate) fn get_attempt(gpu: &str, cgroup: &Path) -> String {
    format!("reading the memory limit of cgroup {} on GPU {gpu}", cgroup.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told_in_bytes() {
        for (limits, words) in [
            (MemoryLimits::default(), "no limit"),
            (MemoryLimits::hard(5), "5 bytes"),
            (
                MemoryLimits {
                    soft_bytes: 3,
                    hard_bytes: Some(5),
                },
                "5 bytes, soft 3 bytes",
            ),
            (
                MemoryLimits {
                    soft_bytes: 3,
                    hard_bytes: None,
                },
                "no limit, soft 3 bytes",
            ),
        ] {
            assert_eq!(limits.to_string(), words);
        }
    }

    #[test]
    fn every_error_has_a_code_a_constant_and_a_remedy() {
        let attempt = || set_attempt("GPU-1", Path::new("/sys/fs/cgroup/a"), MemoryLimits::hard(7));
        let refused = |code| MemoryLimitError::Refused {
            attempt: attempt(),
            code,
        };
        for (error, number, words) in [
            (refused(NvmlCode(3)), 3, "ERROR_NOT_SUPPORTED (3)"),
            (refused(NvmlCode(13)), 13, "ERROR_FUNCTION_NOT_FOUND (13)"),
            (refused(NvmlCode(17)), 17, "ERROR_OPERATING_SYSTEM (17)"),
            (refused(NvmlCode(77)), 77, "ERROR_UNKNOWN (77)"),
            (
                MemoryLimitError::Missing {
                    attempt: attempt(),
                    reason: "old".into(),
                },
                13,
                "ERROR_FUNCTION_NOT_FOUND",
            ),
            (MemoryLimitError::NoGpu { attempt: attempt() }, 6, "ERROR_NOT_FOUND"),
            (
                MemoryLimitError::Driver {
                    attempt: attempt(),
                    source: GpuError::DriverNotLoaded { attempt: "x".into() },
                },
                9,
                "ERROR_DRIVER_NOT_LOADED",
            ),
            (
                MemoryLimitError::NotKept {
                    attempt: attempt(),
                    reported: MemoryLimits::default(),
                },
                999,
                "then reported no limit",
            ),
        ] {
            let text = error.with_remedy();
            let calls_missing = error.code() == NvmlCode::FUNCTION_NOT_FOUND;
            assert_eq!(error.remedy() == NO_SUCH_CALL, calls_missing, "{text}");
            assert_eq!(error.code().0, number, "{text}");
            assert!(text.contains(words) && text.contains("/sys/fs/cgroup/a"), "{text}");
            assert!(error.remedy().ends_with('.') && error.remedy().len() > 30, "{text}");
        }
    }
}
