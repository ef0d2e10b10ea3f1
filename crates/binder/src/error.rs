//! The errors of this crate.

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

/// Why a pass over a bind request ended without a bound pod.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Something is under way; look again then. No failure.
    Later(std::time::Duration),
    /// This bind can't be carried out.
    Refused(String),
    /// A call failed.
    Call(kai_cluster::Error),
}

impl From<kai_cluster::Error> for Stop {
    fn from(error: kai_cluster::Error) -> Stop {
        Stop::Call(error)
    }
}

/// Whether a failed call says nothing about the bind itself: the server was away, busy, or does not know us at the moment.
pub(crate) fn is_passing(error: &kai_cluster::Error) -> bool {
    match error {
        kai_cluster::Error::NotLeader { .. } | kai_cluster::Error::Connect { .. } => true,
        kai_cluster::Error::Call { code: None, .. } => true,
        kai_cluster::Error::Call { code: Some(code), .. } => matches!(code, 401 | 408 | 409 | 429 | 500..=599),
    }
}
