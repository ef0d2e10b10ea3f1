//! The one error of this crate.

/// Why a controller can't go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A part that runs for ever has ended.
    #[error("{part} has ended although nobody asked it to; report this as a bug")]
    Ended {
        /// Which.
        part: &'static str,
    },
    /// A flag makes no sense.
    #[error("--{flag}: {reason}")]
    Flag {
        /// Which.
        flag: &'static str,
        /// What is wrong, and what to write.
        reason: String,
    },
    /// The API is not to be had.
    #[error(transparent)]
    Cluster(#[from] kai_cluster::Error),
}
