//! The AdmissionReview of admission.k8s.io/v1, as far as we read and write it, and the verdicts that rules come to.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// More warnings tell nobody anything, and the API server drops what exceeds 4096 bytes in all.
const WARNINGS_MAX: usize = 16;

/// Findings that a refusal has: whoever mends these is told the others next time.
const FINDINGS_MAX: usize = 16;
/// A finding may quote what the user wrote, which may be most of an object.
const FINDING_BYTES_MAX: usize = 2_048;

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
        let field = |pointer: &str| super::view::text(object, pointer);
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
pub struct Finding {
    /// Path of the field.
    pub field: String,
    /// What is wrong, with the remedy.
    pub text: String,
    /// Of what kind.
    pub cause: Cause,
}

/// Why something is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// This user may not do it.
    Forbidden,
    /// Nobody may.
    Invalid,
}

impl Finding {
    /// Something that nobody may do.
    pub fn invalid(field: impl Into<String>, text: impl Into<String>) -> Finding {
        Finding {
            field: field.into(),
            text: text.into(),
            cause: Cause::Invalid,
        }
    }

    /// Something that this user may not do.
    pub fn forbidden(field: impl Into<String>, text: impl Into<String>) -> Finding {
        Finding {
            cause: Cause::Forbidden,
            ..Finding::invalid(field, text)
        }
    }
}

/// What a rule came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// The decision.
    pub outcome: Outcome,
    /// What the user is told besides.
    pub warnings: Vec<String>,
}

/// The decision about a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Outcome {
    /// As it is.
    #[default]
    Allowed,
    /// With these changes, as RFC 6902 has them.
    Patched(json_patch::Patch),
    /// Not at all.
    Denied {
        /// Why, in a class.
        cause: Cause,
        /// Why, in words: object, field, remedy; a line each.
        message: String,
    },
}

impl Verdict {
    /// Allowed if there is no finding.
    pub fn of(object: &str, findings: &[Finding]) -> Verdict {
        let Some(first) = findings.first() else {
            return Verdict::default();
        };
        let line = |finding: &Finding| shortened(format!("{object}: {}: {}", finding.field, finding.text));
        let mut lines: Vec<String> = findings.iter().take(FINDINGS_MAX).map(line).collect();
        if findings.len() > FINDINGS_MAX {
            lines.push(format!(
                "{object}: and {} more like these",
                findings.len() - FINDINGS_MAX
            ));
        }
        Verdict {
            outcome: Outcome::Denied {
                cause: first.cause,
                message: lines.join("\n"),
            },
            warnings: Vec::new(),
        }
    }

    /// The changes from one object to another.
    pub fn change(before: &Value, after: &Value) -> Verdict {
        let patch = json_patch::diff(before, after);
        let outcome = if patch.is_empty() {
            Outcome::Allowed
        } else {
            Outcome::Patched(patch)
        };
        Verdict {
            outcome,
            warnings: Vec::new(),
        }
    }

    /// The same with words for the user.
    pub fn with_warnings(self, warnings: Vec<String>) -> Verdict {
        Verdict { warnings, ..self }
    }
}

fn shortened(mut line: String) -> String {
    if line.len() > FINDING_BYTES_MAX {
        let end = (0..=FINDING_BYTES_MAX).rev().find(|at| line.is_char_boundary(*at));
        line.truncate(end.unwrap_or_default());
        line.push_str(" ...");
    }
    line
}

/// Both directions of a review on the wire.
#[derive(Debug, Deserialize)]
pub(crate) struct Asked {
    pub(crate) request: Request,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Answered {
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

impl Answered {
    pub(crate) fn new(uid: String, verdict: Verdict) -> Answered {
        let (status, patch) = match verdict.outcome {
            Outcome::Allowed => (None, None),
            Outcome::Patched(patch) => {
                let text = serde_json::to_vec(&patch).expect("a patch is plain JSON");
                (None, Some(STANDARD.encode(text)))
            }
            Outcome::Denied { cause, message } => {
                let (code, reason) = match cause {
                    Cause::Forbidden => (403, "Forbidden"),
                    Cause::Invalid => (422, "Invalid"),
                };
                (Some(Status { code, reason, message }), None)
            }
        };
        let mut warnings = verdict.warnings;
        warnings.truncate(WARNINGS_MAX);
        Answered {
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
        let findings: Vec<Finding> = (0..FINDINGS_MAX + 2)
            .map(|at| Finding::invalid(format!("spec.list[{at}]"), "é".repeat(100_000)))
            .collect();
        let Outcome::Denied { message, .. } = Verdict::of("PodGroup a/g", &findings).outcome else {
            panic!("findings refuse");
        };
        assert_eq!(message.lines().count(), FINDINGS_MAX + 1);
        assert!(message.ends_with("PodGroup a/g: and 2 more like these"), "{message}");
        assert!(
            message.len() <= (FINDINGS_MAX + 1) * (FINDING_BYTES_MAX + 4 + 1),
            "{}",
            message.len()
        );
    }
}
