//! The fields of an AdmissionReview (admission.k8s.io/v1) that admission reads and writes, and the verdicts of the rules.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Warnings in a response. The API server drops warnings beyond 4096 bytes in all.
const WARNINGS_MAX: usize = 16;

/// Field errors in a denial message; the user sees the others after correcting these.
const FIELD_ERRORS_MAX: usize = 16;
/// A field error may quote the user's value, which may be most of an object.
const FIELD_ERROR_BYTES_MAX: usize = 2_048;

/// An AdmissionRequest.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Identifies the request; random and unique.
    pub uid: String,
    /// The operation on the object.
    #[serde(default)]
    pub operation: Operation,
    /// The subresource; empty for the object itself.
    #[serde(default)]
    pub sub_resource: String,
    /// Name of the object; empty if the API server will generate one.
    #[serde(default)]
    pub name: String,
    /// Namespace of the object; empty for cluster-scoped kinds.
    #[serde(default)]
    pub namespace: String,
    /// The user of the request.
    #[serde(default)]
    pub user_info: User,
    /// The new object; null for a deletion.
    #[serde(default)]
    pub object: Value,
    /// The stored object; null for a creation.
    #[serde(default)]
    pub old_object: Value,
}

/// The user of the request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct User {
    /// Name.
    pub username: String,
    /// Groups.
    pub groups: Vec<String>,
}

/// The operation of an admission request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// Creation.
    #[default]
    Create,
    /// Update.
    Update,
    /// Deletion.
    Delete,
    /// Connection to a subresource such as exec.
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

/// An invalid or forbidden field, like `field.Error` of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the field.
    pub field: String,
    /// The problem and the remedy.
    pub text: String,
    /// The reason for the denial.
    pub reason: DenialReason,
}

/// The reason of a denial, which decides its HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialReason {
    /// This user may not set the field so.
    Forbidden,
    /// No user may set the field so.
    Invalid,
}

impl FieldError {
    /// An error that applies to every user.
    pub fn invalid(field: impl Into<String>, text: impl Into<String>) -> FieldError {
        FieldError {
            field: field.into(),
            text: text.into(),
            reason: DenialReason::Invalid,
        }
    }

    /// An error that applies to users without the right.
    pub fn forbidden(field: impl Into<String>, text: impl Into<String>) -> FieldError {
        FieldError {
            reason: DenialReason::Forbidden,
            ..FieldError::invalid(field, text)
        }
    }
}

/// The result of a rule: a decision, and warnings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Whether the object is admitted.
    pub decision: Decision,
    /// Warnings that kubectl prints.
    pub warnings: Vec<String>,
}

/// The decision about a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Decision {
    /// Admitted as it is.
    #[default]
    Allowed,
    /// Admitted with this JSON patch (RFC 6902).
    Patched(json_patch::Patch),
    /// Denied.
    Denied {
        /// The reason of the first field error.
        reason: DenialReason,
        /// A line per field error: object, field, problem, remedy.
        message: String,
    },
}

impl Verdict {
    /// Allows the object if there is no field error, denies it otherwise.
    pub fn of(object: &str, errors: &[FieldError]) -> Verdict {
        let Some(first) = errors.first() else {
            return Verdict::default();
        };
        let line = |error: &FieldError| truncated(format!("{object}: {}: {}", error.field, error.text));
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

    /// Allows the object with the patch from `before` to `after`.
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

    /// Adds warnings.
    pub fn with_warnings(self, warnings: Vec<String>) -> Verdict {
        Verdict { warnings, ..self }
    }
}

fn truncated(mut line: String) -> String {
    if line.len() > FIELD_ERROR_BYTES_MAX {
        let end = (0..=FIELD_ERROR_BYTES_MAX).rev().find(|at| line.is_char_boundary(*at));
        line.truncate(end.unwrap_or_default());
        line.push_str(" ...");
    }
    line
}

/// An AdmissionReview as the API server sends it.
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
