//! The error type of the controllers.

/// Why the controllers ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A controller ended, although it should run until dropped.
    #[error("{part} ended unexpectedly; report this as a bug")]
    Ended {
        /// The name.
        part: &'static str,
    },
    /// A flag is invalid.
    #[error("--{flag}: {reason}")]
    Flag {
        /// The name.
        flag: &'static str,
        /// The problem and the remedy.
        reason: String,
    },
    /// A call to the API server failed.
    #[error(transparent)]
    Cluster(#[from] kai_cluster::Error),
}
