//! The error type of this crate: the attempt, the API server's response, and a remedy.

/// Why a call to the Kubernetes API failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no configuration or no connection to the API server.
    #[error(
        "finding the kubernetes api: {message}; run in a pod with a service account, or name a kubeconfig with --kubeconfig"
    )]
    Connect {
        /// The cause.
        message: String,
    },
    /// This replica is not the leader (any more), so it does not write.
    #[error("{attempt}: this replica does not lead; the leader does this")]
    NotLeader {
        /// What was attempted.
        attempt: String,
    },
    /// The API server refused the call or did not answer.
    #[error("{attempt}: {message}; {}", remedy(*code))]
    Call {
        /// What was attempted.
        attempt: String,
        /// HTTP status; `None` without a response.
        code: Option<u16>,
        /// The API server's message, or the cause of the missing response.
        message: String,
    },
}

impl Error {
    pub(crate) fn call(attempt: String, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Error::Call {
                attempt,
                code: Some(status.code),
                message: status.message,
            },
            // No object has an illegal name, so the answer is `not found`.
            kube::Error::BuildRequest(kube::core::request::Error::Validation(message)) => Error::Call {
                attempt,
                code: Some(404),
                message,
            },
            other => Error::Call {
                attempt,
                code: None,
                message: chain(&other),
            },
        }
    }

    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::Call { code: Some(404), .. })
    }

    /// Whether another writer was faster: the object exists already, or has changed.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Error::Call { code: Some(409), .. })
    }

    /// Whether the API server refuses the call as forbidden or invalid. A retry can't succeed until permissions or objects change.
    pub fn is_refused(&self) -> bool {
        matches!(
            self,
            Error::Call {
                code: Some(400 | 403 | 422),
                ..
            }
        )
    }

    /// Whether our account lacks the permission.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Error::Call { code: Some(403), .. })
    }

    /// Whether the API server does not accept our credentials (any more).
    pub fn is_unauthorized(&self) -> bool {
        matches!(self, Error::Call { code: Some(401), .. })
    }
}

/// All messages of an error chain: kube wraps the root cause (connection refused, certificate expired) several times.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let words = error.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        source = error.source();
    }
    text
}

fn remedy(code: Option<u16>) -> &'static str {
    match code {
        Some(401 | 403) => "grant the service account the permissions that the manifests give it",
        Some(404) => "check the object's name and that it exists",
        Some(409) => "another writer was faster; it is tried again",
        Some(422 | 400) => "report this as a bug: the api server does not accept what was sent",
        Some(_) => "it is tried again",
        None => "check that the api server can be reached from here; it is tried again",
    }
}
