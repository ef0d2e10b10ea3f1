//! What becomes of fields that a kind does not have, or that a body has twice: refused, warned about or ignored, as the
//! request says by `fieldValidation`.

use serde_json::json;

use super::request::ApiRequest;
use crate::server::status_error::{Cause, StatusError};

/// What a request wants done about such fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

impl FieldValidation {
    pub(super) fn of(request: &ApiRequest) -> Result<Self, StatusError> {
        match request.query.text("fieldValidation") {
            "Ignore" => Ok(Self::Ignore),
            "" | "Warn" => Ok(Self::Warn),
            "Strict" => Ok(Self::Strict),
            other => {
                let allowed = ["", "Ignore", "Strict", "Warn"];
                Err(request.bad_option(Cause::unsupported("fieldValidation", &json!(other), &allowed)))
            }
        }
    }

    /// Warns about the problems, or says that the request is refused because of them.
    pub(super) fn apply(self, problems: &[String], warnings: &mut Vec<String>) -> Result<(), String> {
        match self {
            Self::Ignore => Ok(()),
            Self::Warn => {
                for problem in problems {
                    // A write that somebody outran is planned again.
                    if !warnings.contains(problem) {
                        warnings.push(problem.clone());
                    }
                }
                Ok(())
            }
            Self::Strict if problems.is_empty() => Ok(()),
            Self::Strict => Err(format!("strict decoding error: {}", problems.join(", "))),
        }
    }
}

/// The problems of a body in the words of Kubernetes.
pub(super) fn problems(duplicates: &[String], unknown: &[String]) -> Vec<String> {
    let duplicates = duplicates.iter().map(|path| format!("duplicate field {path:?}"));
    let unknown = unknown.iter().map(|path| format!("unknown field {path:?}"));
    duplicates.chain(unknown).collect()
}
