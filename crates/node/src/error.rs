//! The error type of this crate. Messages are lower case and say what was attempted and how to repair it.

use std::io;
use std::path::{Path, PathBuf};

/// Why an operation failed. After its start the agent never stops because of an error: the affected part logs it and tries again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A command line option has a wrong value.
    #[error("reading option {option}: {problem}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// What is wrong, and which values are right.
        problem: String,
    },
    /// The GPU driver did not answer.
    #[error("{}", .0.with_remedy())]
    Gpu(#[from] kai_gpu::GpuError),
    /// The Kubernetes API did not answer.
    #[error(transparent)]
    Cluster(#[from] kai_cluster::Error),
    /// Our socket could not be served.
    #[error("serving the device plugin socket {}: {source}; mount the host's device plugin directory writable", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The kubelet does not answer.
    #[error("calling the kubelet on {}: {message}; check that the kubelet runs and that its directory is mounted", path.display())]
    Kubelet {
        /// The kubelet's socket.
        path: PathBuf,
        /// The error or status of the call.
        message: String,
    },
    /// A CDI spec could not be written.
    #[error("writing the CDI spec {}: {source}; mount the directory writable and keep space on it", path.display())]
    Cdi {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A runtime would refuse the CDI spec. Runtimes refuse all specs of a directory with an invalid one, so the agent does not write it.
    #[error(
        "writing the CDI spec {}: a runtime would refuse it ({problems}); rename the device or driver file that the message names, or \
         serve without CDI by --mode mounts", path.display()
    )]
    InvalidCdi {
        /// The file.
        path: PathBuf,
        /// What a runtime would refuse.
        problems: String,
    },
    /// The driver volume could not be built or removed.
    #[error("preparing the driver volume {}: {source}; mount the directory writable and keep space on it", path.display())]
    DriverVolume {
        /// The directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The agent could not write its state directory.
    #[error("keeping the agent's state in {}: {source}; mount the directory writable, or point --state-dir elsewhere (chart value nodeAgent.stateDir)", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The metrics address is in use or not allowed.
    #[error("listening for metrics on {address}: {source}; choose another --metrics-address")]
    Metrics {
        /// The address.
        address: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The process could not create its runtime.
    #[error("starting the agent: {0}; raise the process limits of this container")]
    Start(io::Error),
    /// A reservation pod must see exactly one GPU.
    #[error(
        "looking for the one GPU of this reservation pod: found {found} GPU devices; request exactly one nvidia.com/gpu for the pod, \
         and use a device plugin or runtime that shows a container only the GPU it was given"
    )]
    NotOneDevice {
        /// How many the pod sees.
        found: usize,
    },
    /// The reservation process does not know its pod.
    #[error("reading who this pod is: {variable} is not set; set it from metadata by the downward API (fieldRef)")]
    Identity {
        /// The environment variable.
        variable: &'static str,
    },
}

impl Error {
    pub(crate) fn write_cdi(path: &Path, source: io::Error) -> Self {
        Error::Cdi {
            path: path.to_owned(),
            source,
        }
    }
}
