//! The one error of this crate: what was attempted, what came back, what to do.

/// Why a call to the Kubernetes API failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no way to the API server.
    #[error(
        "finding the kubernetes api: {message}; run in a pod with a service account, or name a kubeconfig with --kubeconfig"
    )]
    Connect {
        /// What is missing.
        message: String,
    },
    /// Another replica leads now.
    #[error("{attempt}: another replica leads now; it does this")]
    NotLeader {
        /// What was attempted.
        attempt: String,
    },
    /// The API server refused or did not answer.
    #[error("{attempt}: {message}; {}", remedy(*code))]
    Call {
        /// What was attempted.
        attempt: String,
        /// HTTP status, if there was an answer.
        code: Option<u16>,
        /// What came back.
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
            // An object that can't be named can't be there.
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

    /// Whether the object is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::Call { code: Some(404), .. })
    }

    /// Whether somebody else was faster: the object exists already, or has changed.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Error::Call { code: Some(409), .. })
    }

    /// Whether the API server refuses it for good: forbidden or invalid. Trying again won't help until something else changes.
    pub fn is_refused(&self) -> bool {
        matches!(
            self,
            Error::Call {
                code: Some(400 | 403 | 422),
                ..
            }
        )
    }

    /// Whether we may not do this.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Error::Call { code: Some(403), .. })
    }

    /// Whether our credentials are no longer good.
    pub fn is_unauthorized(&self) -> bool {
        matches!(self, Error::Call { code: Some(401), .. })
    }
}

/// The client wraps the interesting words (connection refused, certificate expired) several times over.
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
