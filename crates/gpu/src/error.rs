//! The error type of this crate. Messages contain NVML's own constants and phrases, which operators search for, and every variant has a
//! remedy.

use std::path::PathBuf;

use crate::linker::integrity::Defect;

/// Why a call failed. `Display` says what was attempted and what the result was; [`GpuError::remedy`] says what to do.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// `libnvidia-ml.so.1` was not found.
    #[error("unable to initialize NVML: ERROR_LIBRARY_NOT_FOUND: libnvidia-ml.so.1 is in none of the places tried: {}", tried.join("; "))]
    LibraryNotFound {
        /// Each path that was tried, with the result.
        tried: Vec<String>,
    },
    /// A library was loaded, but it is no usable NVML.
    #[error("loading NVML from {library}: ERROR_FUNCTION_NOT_FOUND: {detail}")]
    LibraryUnusable {
        /// Path of the library.
        library: String,
        /// The loader's message.
        detail: String,
    },
    /// The library, or one of its dependencies, is truncated: loading it would kill this process by SIGBUS.
    #[error("loading NVML: {} is not loaded, because {defect}", file.display())]
    LibraryCutOff {
        /// The truncated file.
        file: PathBuf,
        /// What is wrong with it.
        defect: Defect,
    },
    /// The kernel module is missing, or its device nodes are not visible here.
    #[error("{attempt}: Driver Not Loaded (ERROR_DRIVER_NOT_LOADED)")]
    DriverNotLoaded {
        /// What was attempted.
        attempt: String,
    },
    /// The device nodes exist but may not be opened.
    #[error("{attempt}: Insufficient Permissions (ERROR_NO_PERMISSION)")]
    NoPermission {
        /// What was attempted.
        attempt: String,
    },
    /// Library and kernel module have different versions: a driver upgrade without a reboot or reload.
    #[error("{attempt}: Driver/library version mismatch (ERROR_LIB_RM_VERSION_MISMATCH)")]
    VersionMismatch {
        /// What was attempted.
        attempt: String,
    },
    /// The hardware or driver does not support this query. It costs one fact, never a device.
    #[error("{attempt}: Not Supported (ERROR_NOT_SUPPORTED)")]
    NotSupported {
        /// What was attempted.
        attempt: String,
    },
    /// The GPU fell off the bus.
    #[error("{attempt}: GPU is lost (ERROR_GPU_IS_LOST)")]
    GpuLost {
        /// What was attempted.
        attempt: String,
    },
    /// The GPU answers, but only a reset makes it usable.
    #[error("{attempt}: GPU requires reset (ERROR_RESET_REQUIRED)")]
    ResetRequired {
        /// What was attempted.
        attempt: String,
    },
    /// NVML was shut down or never started in this process.
    #[error("{attempt}: Uninitialized (ERROR_UNINITIALIZED)")]
    Uninitialized {
        /// What was attempted.
        attempt: String,
    },
    /// No answer in time.
    #[error("{attempt}: Timeout (ERROR_TIMEOUT)")]
    Timeout {
        /// What was attempted.
        attempt: String,
    },
    /// Any other NVML error.
    #[error("{attempt}: {words}")]
    Nvml {
        /// What was attempted.
        attempt: String,
        /// NVML's constant and phrase.
        words: String,
    },
    /// No device of this name.
    #[error("looking up GPU {id}: Not Found (ERROR_NOT_FOUND)")]
    DeviceNotFound {
        /// The requested name.
        id: String,
    },
    /// The fake driver was asked for on a machine with a real one.
    #[error("starting the fake GPU driver: refused, because this machine has a real NVIDIA driver ({evidence})")]
    FakeBesideReal {
        /// The evidence for the real driver.
        evidence: String,
    },
    /// The fake driver's settings are wrong.
    #[error("reading the fake GPU settings from {origin}: {detail}")]
    FakeSettings {
        /// Flag, environment variable or file.
        origin: String,
        /// What is wrong.
        detail: String,
    },
    /// The faults and loads of the fake GPUs make no sense.
    #[error("reading the control of the fake GPUs from {origin}: {detail}")]
    FakeControl {
        /// Flag, environment variable or file.
        origin: String,
        /// What is wrong, with the field.
        detail: String,
    },
    /// A file could not be read.
    #[error("reading {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
}

impl GpuError {
    /// What an operator should do, in one sentence.
    pub fn remedy(&self) -> &'static str {
        match self {
            GpuError::LibraryNotFound { .. } => {
                "Install the NVIDIA driver on the host (Ubuntu: ubuntu-drivers install; Debian: apt-get install nvidia-driver \
                 libnvidia-ml1), or mount its libraries into this container and point --nvml-library at \
                 libnvidia-ml.so.1; on JetPack 5 and older there is no NVML, and Tegra detection is used instead."
            }
            GpuError::LibraryUnusable { .. } => {
                "The file is not the NVML of this CPU architecture and driver: remove stale copies and stubs from the library \
                 path, or point --nvml-library at the driver's own libnvidia-ml.so.1."
            }
            GpuError::LibraryCutOff { .. } => {
                "Reinstall the driver package that owns the file (dpkg -S or rpm -qf names it) and look for a full disk; an \
                 interrupted driver installation leaves such files behind."
            }
            GpuError::DriverNotLoaded { .. } => {
                "Load the kernel module on the host (modprobe nvidia; dmesg tells why it fails) and make /dev/nvidiactl and \
                 /dev/nvidia0 visible here: in a container that needs a runtime class, CDI or privileged mode with /dev mounted."
            }
            GpuError::NoPermission { .. } => {
                "Run as root, or with the group that owns the device nodes (on Jetson: video for /dev/nvmap, render for \
                 /dev/dri), or give the container access to them by CDI."
            }
            GpuError::VersionMismatch { .. } => {
                "The driver was upgraded but the old kernel module still runs: drain the node and reboot it, or reload the \
                 nvidia modules."
            }
            GpuError::NotSupported { .. } => {
                "Nothing to repair: this GPU or driver does not offer that, and everything else goes on without it."
            }
            GpuError::GpuLost { .. } => {
                "Look for Xid 79 in dmesg, check power and seating, and reboot the node; the GPU is not handed out until it \
                 answers again."
            }
            GpuError::ResetRequired { .. } => {
                "Stop what runs on the GPU and reset it with nvidia-smi --gpu-reset, or reboot the node; it is not handed out \
                 until it answers again."
            }
            GpuError::Uninitialized { .. } => "NVML is started again by itself; restart the agent if this persists.",
            GpuError::Timeout { .. } => {
                "The driver is slow to answer: look for hung tasks and Xid messages in dmesg; the question is asked again."
            }
            GpuError::Nvml { .. } => "Run nvidia-smi on the host and look for NVRM and Xid lines in dmesg.",
            GpuError::DeviceNotFound { .. } => {
                "List the devices with kai doctor; the GPU may have been removed or renamed."
            }
            GpuError::FakeBesideReal { .. } => {
                "Use the fake driver only on machines without NVIDIA hardware, or drop --driver fake to use the real GPUs."
            }
            GpuError::FakeSettings { .. } => {
                "Give profiles as name:count (for example a100-40:2,t4), or a YAML file with a gpus list; the profile names are \
                 in the message of an unknown one."
            }
            GpuError::FakeControl { .. } => {
                "Correct the value or the file of --fake-control, or leave the flag out; GPUs are named by index, UUID or '*', as in \
                 {gpus: {0: {state: lost}}}."
            }
            GpuError::File { .. } => "Check that the path is mounted into this container and readable.",
        }
    }

    /// Message and remedy in one text.
    pub fn with_remedy(&self) -> String {
        format!("{self}. {}", self.remedy())
    }

    /// Whether only this query is not supported while the device works.
    pub fn is_not_supported(&self) -> bool {
        matches!(self, GpuError::NotSupported { .. })
    }

    /// Whether the whole driver is gone, as opposed to one device or one fact. NVML must then be reopened.
    pub fn is_driver_gone(&self) -> bool {
        matches!(
            self,
            GpuError::LibraryNotFound { .. }
                | GpuError::LibraryUnusable { .. }
                | GpuError::LibraryCutOff { .. }
                | GpuError::DriverNotLoaded { .. }
                | GpuError::VersionMismatch { .. }
                | GpuError::Uninitialized { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_the_words_people_search_for() {
        let attempt = || "asking GPU 0 for its name".to_owned();
        for (error, words) in [
            (
                GpuError::LibraryNotFound {
                    tried: vec!["/x: no such file".into()],
                },
                "ERROR_LIBRARY_NOT_FOUND",
            ),
            (
                GpuError::LibraryUnusable {
                    library: "/x".into(),
                    detail: "y".into(),
                },
                "ERROR_FUNCTION_NOT_FOUND",
            ),
            (GpuError::DriverNotLoaded { attempt: attempt() }, "Driver Not Loaded"),
            (GpuError::NoPermission { attempt: attempt() }, "NO_PERMISSION"),
            (
                GpuError::VersionMismatch { attempt: attempt() },
                "Driver/library version mismatch",
            ),
            (GpuError::NotSupported { attempt: attempt() }, "NOT_SUPPORTED"),
            (GpuError::GpuLost { attempt: attempt() }, "GPU is lost"),
            (GpuError::ResetRequired { attempt: attempt() }, "RESET_REQUIRED"),
            (GpuError::Uninitialized { attempt: attempt() }, "UNINITIALIZED"),
            (GpuError::Timeout { attempt: attempt() }, "TIMEOUT"),
            (GpuError::DeviceNotFound { id: "GPU-1".into() }, "NOT_FOUND"),
        ] {
            let text = error.to_string();
            assert!(text.contains(words), "{text}");
            let remedy = error.remedy();
            assert!(remedy.ends_with('.') && remedy.len() > 30, "{remedy}");
            assert!(error.with_remedy().contains(remedy));
        }
    }
}
