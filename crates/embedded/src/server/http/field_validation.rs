//! The query parameter `fieldValidation`: whether unknown and duplicate fields are rejected, warned about or ignored.

use serde_json::json;

use super::request::ApiRequest;
use crate::server::status_error::{Cause, StatusError};

/// The value of `fieldValidation`.
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

    /// Adds the problems to the warnings, or returns the error of a strict request.
    pub(super) fn apply(self, problems: &[String], warnings: &mut Vec<String>) -> Result<(), String> {
        match self {
            Self::Ignore => Ok(()),
            Self::Warn => {
                for problem in problems {
                    // A write is planned again after a conflict.
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

/// The problems of a body as Kubernetes words them.
pub(super) fn problems(duplicates: &[String], unknown: &[String]) -> Vec<String> {
    let duplicates = duplicates.iter().map(|path| format!("duplicate field {path:?}"));
    let unknown = unknown.iter().map(|path| format!("unknown field {path:?}"));
    duplicates.chain(unknown).collect()
}
