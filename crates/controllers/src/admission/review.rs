//! The AdmissionReview of admission.k8s.io/v1, as far as we read and write it, and the verdicts that rules come to.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// More warnings tell nobody anything, and the API server drops what exceeds 4096 bytes in all.
const WARNINGS_MAX: usize = 16;

/// Findings that a refusal has: whoever mends these is told the others next time.
const FIELD_ERRORS_MAX: usize = 16;
/// A error may quote what the user wrote, which may be most of an object.
const FIELD_ERROR_BYTES_MAX: usize = 2_048;

/// What an API server asks.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Names the question; unique and random.
    pub uid: String,
    /// What is being done.
    #[serde(default)]
    pub operation: Operation,
    /// The part of the object that is addressed; empty for the object itself.
    #[serde(default)]
    pub sub_resource: String,
    /// Name; empty while the server has yet to make one.
    #[serde(default)]
    pub name: String,
    /// Namespace; empty for kinds without one.
    #[serde(default)]
    pub namespace: String,
    /// Who asks.
    #[serde(default)]
    pub user_info: User,
    /// The object as it shall be; null when it shall go.
    #[serde(default)]
    pub object: Value,
    /// The object as it is; null when it is created.
    #[serde(default)]
    pub old_object: Value,
}

/// Who asks.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct User {
    /// Name.
    pub username: String,
    /// Groups.
    pub groups: Vec<String>,
}

/// What is being done to an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// It is made.
    #[default]
    Create,
    /// It is changed.
    Update,
    /// It is deleted.
    Delete,
    /// A subresource that is no object, such as exec.
    Connect,
}

impl Request {
    /// Kind, namespace and name, for messages.
    pub fn object_name(&self, kind: &str) -> String {
        let object = if self.object.is_null() {
            &self.old_object
        } else {
            &self.object
        };
        let field = |pointer: &str| super::unstructured::text(object, pointer);
        let name = match (&*self.name, field("/metadata/name"), field("/metadata/generateName")) {
            ("", Some(name), _) => name.to_owned(),
            ("", None, Some(prefix)) => format!("{prefix}*"),
            ("", None, None) => "(no name)".to_owned(),
            (name, ..) => name.to_owned(),
        };
        match (&*self.namespace, field("/metadata/namespace")) {
            ("", None) => format!("{kind} {name}"),
            ("", Some(namespace)) | (namespace, _) => format!("{kind} {namespace}/{name}"),
        }
    }
}

/// One thing that is wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the field.
    pub field: String,
    /// What is wrong, with the remedy.
    pub text: String,
    /// Of what kind.
    pub reason: DenialReason,
}

/// Why something is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialReason {
    /// This user may not do it.
    Forbidden,
    /// Nobody may.
    Invalid,
}

impl FieldError {
    /// Something that nobody may do.
    pub fn invalid(field: impl Into<String>, text: impl Into<String>) -> FieldError {
        FieldError {
            field: field.into(),
            text: text.into(),
            reason: DenialReason::Invalid,
        }
    }

    /// Something that this user may not do.
    pub fn forbidden(field: impl Into<String>, text: impl Into<String>) -> FieldError {
        FieldError {
            reason: DenialReason::Forbidden,
            ..FieldError::invalid(field, text)
        }
    }
}

/// What a rule came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// The decision.
    pub decision: Decision,
    /// What the user is told besides.
    pub warnings: Vec<String>,
}

/// The decision about a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Decision {
    /// As it is.
    #[default]
    Allowed,
    /// With these changes, as RFC 6902 has them.
    Patched(json_patch::Patch),
    /// Not at all.
    Denied {
        /// Why, in a class.
        reason: DenialReason,
        /// Why, in words: object, field, remedy; a line each.
        message: String,
    },
}

impl Verdict {
    /// Allowed if there is no error.
    pub fn of(object: &str, errors: &[FieldError]) -> Verdict {
        let Some(first) = errors.first() else {
            return Verdict::default();
        };
        let line = |error: &FieldError| shortened(format!("{object}: {}: {}", error.field, error.text));
        let mut lines: Vec<String> = errors.iter().take(FIELD_ERRORS_MAX).map(line).collect();
        if errors.len() > FIELD_ERRORS_MAX {
            lines.push(format!(
                "{object}: and {} more like these",
                errors.len() - FIELD_ERRORS_MAX
            ));
        }
        Verdict {
            decision: Decision::Denied {
                reason: first.reason,
                message: lines.join("\n"),
            },
            warnings: Vec::new(),
        }
    }

    /// The changes from one object to another.
    pub fn change(before: &Value, after: &Value) -> Verdict {
        let patch = json_patch::diff(before, after);
        let decision = if patch.is_empty() {
            Decision::Allowed
        } else {
            Decision::Patched(patch)
        };
        Verdict {
            decision,
            warnings: Vec::new(),
        }
    }

    /// The same with words for the user.
    pub fn with_warnings(self, warnings: Vec<String>) -> Verdict {
        Verdict { warnings, ..self }
    }
}

fn shortened(mut line: String) -> String {
    if line.len() > FIELD_ERROR_BYTES_MAX {
        let end = (0..=FIELD_ERROR_BYTES_MAX).rev().find(|at| line.is_char_boundary(*at));
        line.truncate(end.unwrap_or_default());
        line.push_str(" ...");
    }
    line
}

/// Both directions of a review on the wire.
#[derive(Debug, Deserialize)]
pub(crate) struct AdmissionReview {
    pub(crate) request: Request,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AdmissionReviewResponse {
    api_version: &'static str,
    kind: &'static str,
    response: Response,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    uid: String,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct Status {
    code: u16,
    reason: &'static str,
    message: String,
}

impl AdmissionReviewResponse {
    pub(crate) fn new(uid: String, verdict: Verdict) -> AdmissionReviewResponse {
        let (status, patch) = match verdict.decision {
            Decision::Allowed => (None, None),
            Decision::Patched(patch) => {
                let text = serde_json::to_vec(&patch).expect("a patch is plain JSON");
                (None, Some(STANDARD.encode(text)))
            }
            Decision::Denied { reason, message } => {
                let (code, reason) = match reason {
                    DenialReason::Forbidden => (403, "Forbidden"),
                    DenialReason::Invalid => (422, "Invalid"),
                };
                (Some(Status { code, reason, message }), None)
            }
        };
        let mut warnings = verdict.warnings;
        warnings.truncate(WARNINGS_MAX);
        AdmissionReviewResponse {
            api_version: "admission.k8s.io/v1",
            kind: "AdmissionReview",
            response: Response {
                uid,
                allowed: status.is_none(),
                status,
                warnings,
                patch_type: patch.is_some().then_some("JSONPatch"),
                patch,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_short_however_much_is_wrong() {
        let errors: Vec<FieldError> = (0..FIELD_ERRORS_MAX + 2)
            .map(|at| FieldError::invalid(format!("spec.list[{at}]"), "é".repeat(100_000)))
            .collect();
        let Decision::Denied { message, .. } = Verdict::of("PodGroup a/g", &errors).decision else {
            panic!("errors refuse");
        };
        assert_eq!(message.lines().count(), FIELD_ERRORS_MAX + 1);
        assert!(message.ends_with("PodGroup a/g: and 2 more like these"), "{message}");
        assert!(
            message.len() <= (FIELD_ERRORS_MAX + 1) * (FIELD_ERROR_BYTES_MAX + 4 + 1),
            "{}",
            message.len()
        );
    }
}
