//! The errors of this crate.

use crate::bind::failure::BindFailure;

/// Why the binder can't run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A flag's value can't be used.
    #[error("reading the flag --{flag}: {message}")]
    Flag {
        /// Which flag.
        flag: &'static str,
        /// What is wrong with it.
        message: String,
    },
}

/// Why an attempt ended without a bound pod.
#[derive(Debug)]
pub(crate) enum NotBound {
    /// The attempt has to wait and is repeated after this time. No failure.
    RetryAfter(std::time::Duration),
    /// The bind fails.
    Failed(BindFailure),
    /// A call to the API server failed.
    Call(kai_cluster::Error),
}

impl From<BindFailure> for NotBound {
    fn from(failure: BindFailure) -> NotBound {
        NotBound::Failed(failure)
    }
}

impl From<kai_cluster::Error> for NotBound {
    fn from(error: kai_cluster::Error) -> NotBound {
        NotBound::Call(error)
    }
}

/// Whether a call failed for reasons that pass: the API server was unreachable or busy, or did not accept our credentials for a moment.
pub(crate) fn is_transient(error: &kai_cluster::Error) -> bool {
    match error {
        kai_cluster::Error::NotLeader { .. } | kai_cluster::Error::Connect { .. } => true,
        kai_cluster::Error::Call { code: None, .. } => true,
        kai_cluster::Error::Call { code: Some(code), .. } => matches!(code, 401 | 408 | 409 | 429 | 500..=599),
    }
}
