//! Translates NVML's return codes into [`GpuError`].

use nvml_wrapper::error::NvmlError;

use crate::GpuError;

/// `attempt` says what was attempted: "asking GPU 0 for its name".
pub(super) fn gpu_error(attempt: impl Into<String>, error: NvmlError) -> GpuError {
    let attempt = attempt.into();
    match error {
        NvmlError::DriverNotLoaded => GpuError::DriverNotLoaded { attempt },
        NvmlError::NoPermission => GpuError::NoPermission { attempt },
        NvmlError::LibRmVersionMismatch => GpuError::VersionMismatch { attempt },
        NvmlError::NotSupported | NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_) => {
            GpuError::NotSupported { attempt }
        }
        NvmlError::GpuLost => GpuError::GpuLost { attempt },
        NvmlError::ResetRequired => GpuError::ResetRequired { attempt },
        NvmlError::Uninitialized => GpuError::Uninitialized { attempt },
        NvmlError::Timeout => GpuError::Timeout { attempt },
        other => GpuError::Nvml {
            attempt,
            words: words(&other),
        },
    }
}

/// NVML's constant, which people search for, then the wrapper's phrase.
fn words(error: &NvmlError) -> String {
    let constant = match error {
        NvmlError::InvalidArg => "ERROR_INVALID_ARGUMENT",
        NvmlError::NotFound => "ERROR_NOT_FOUND",
        NvmlError::InsufficientSize(_) => "ERROR_INSUFFICIENT_SIZE",
        NvmlError::InsufficientPower => "ERROR_INSUFFICIENT_POWER",
        NvmlError::IrqIssue => "ERROR_IRQ_ISSUE",
        NvmlError::LibraryNotFound => "ERROR_LIBRARY_NOT_FOUND",
        NvmlError::CorruptedInfoROM => "ERROR_CORRUPTED_INFOROM",
        NvmlError::OperatingSystem => "ERROR_OPERATING_SYSTEM",
        NvmlError::InUse => "ERROR_IN_USE",
        NvmlError::InsufficientMemory => "ERROR_MEMORY",
        NvmlError::NoData => "ERROR_NO_DATA",
        NvmlError::Unknown => "Unknown Error (ERROR_UNKNOWN)",
        NvmlError::UnexpectedVariant(25) => "ERROR_ARGUMENT_VERSION_MISMATCH",
        _ => return error.to_string(),
    };
    format!("{constant}: {error}")
}

/// Whether an error means that NVML does not have this fact, as opposed to a failure of the device.
pub(super) fn is_refusal(error: &NvmlError) -> bool {
    !matches!(
        error,
        NvmlError::GpuLost
            | NvmlError::ResetRequired
            | NvmlError::Uninitialized
            | NvmlError::DriverNotLoaded
            | NvmlError::LibRmVersionMismatch
    )
}

/// Whether an error means that the library must be reopened.
pub(super) fn is_driver_gone(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::Uninitialized | NvmlError::DriverNotLoaded | NvmlError::LibRmVersionMismatch
    )
}
