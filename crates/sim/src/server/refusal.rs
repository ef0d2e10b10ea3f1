//! Why a request is refused, in the form clients know: code, reason, message, details; and as a `Status` object.
//! Never an internal fault of the server: those have no variant because the store can't fail.

use http::StatusCode;
use serde_json::{Value, json};

/// A refused request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// HTTP status code.
    pub code: u16,
    /// Kubernetes' word for it, e.g. `NotFound`.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// `details` of the Status object: name, group, kind, uid, causes, retryAfterSeconds.
    pub details: Box<Value>,
}

/// The reason that usually goes with a code.
const USUAL_REASONS: [(u16, &str); 13] = [
    (400, "BadRequest"),
    (401, "Unauthorized"),
    (403, "Forbidden"),
    (404, "NotFound"),
    (405, "MethodNotAllowed"),
    (409, "Conflict"),
    (410, "Expired"),
    (415, "UnsupportedMediaType"),
    (422, "Invalid"),
    (429, "TooManyRequests"),
    (500, "InternalError"),
    (503, "ServiceUnavailable"),
    (504, "Timeout"),
];

/// Kubernetes' word as others wrote it; `Unknown` if it is none.
pub(crate) fn reason_word(text: &str) -> &'static str {
    let mut words = USUAL_REASONS
        .iter()
        .map(|(_, reason)| *reason)
        .chain(["AlreadyExists", "Gone"]);
    words.find(|word| *word == text).unwrap_or("Unknown")
}

/// What went wrong with one field of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Cause {
    /// Kubernetes' word, e.g. `FieldValueInvalid`.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// The field's path.
    pub field: String,
}

impl Cause {
    /// A field with a value that is not allowed.
    pub(crate) fn invalid(field: impl Into<String>, value: &Value, why: impl AsRef<str>) -> Self {
        let message = format!("Invalid value: {value}: {}", why.as_ref());
        Self {
            reason: "FieldValueInvalid",
            message,
            field: field.into(),
        }
    }

    /// A field that has to be there.
    pub(crate) fn required(field: impl Into<String>, why: impl AsRef<str>) -> Self {
        let why = why.as_ref();
        let message = if why.is_empty() {
            "Required value".to_owned()
        } else {
            format!("Required value: {why}")
        };
        Self {
            reason: "FieldValueRequired",
            message,
            field: field.into(),
        }
    }

    /// A field that may not be set or changed.
    pub(crate) fn forbidden(field: impl Into<String>, why: impl AsRef<str>) -> Self {
        Self {
            reason: "FieldValueForbidden",
            message: format!("Forbidden: {}", why.as_ref()),
            field: field.into(),
        }
    }
}

/// The resource a refusal is about, for `details`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    pub(crate) group: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) name: &'a str,
}

impl About<'_> {
    fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.resource.to_owned()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }

    fn details(&self) -> Value {
        let mut details = json!({"name": self.name, "kind": self.resource});
        if !self.group.is_empty() {
            details["group"] = json!(self.group);
        }
        details
    }
}

impl Refusal {
    /// A refusal without details.
    pub fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code: code.as_u16(),
            reason,
            message: message.into(),
            details: Box::new(Value::Null),
        }
    }

    /// The refusal usual for a status code, for faults and proxies.
    pub fn of_code(code: u16, message: impl Into<String>) -> Self {
        let usual = USUAL_REASONS.iter().find(|(usual, _)| *usual == code);
        Self {
            code,
            reason: usual.map_or("Unknown", |(_, reason)| reason),
            message: message.into(),
            details: Box::new(Value::Null),
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::of_code(400, message)
    }

    pub(crate) fn not_found(about: About<'_>) -> Self {
        let message = format!("{} \"{}\" not found", about.qualified(), about.name);
        Self {
            details: Box::new(about.details()),
            ..Self::of_code(404, message)
        }
    }

    pub(crate) fn no_such_path() -> Self {
        Self::of_code(404, "the server could not find the requested resource")
    }

    pub(crate) fn already_exists(about: About<'_>) -> Self {
        let message = format!("{} \"{}\" already exists", about.qualified(), about.name);
        Self {
            code: 409,
            reason: "AlreadyExists",
            message,
            details: Box::new(about.details()),
        }
    }

    pub(crate) fn conflict(about: About<'_>, why: impl AsRef<str>) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{}\": {}",
            about.qualified(),
            about.name,
            why.as_ref()
        );
        Self {
            details: Box::new(about.details()),
            ..Self::of_code(409, message)
        }
    }

    /// The conflict of a write that was made from an outdated object.
    pub(crate) fn outdated(about: About<'_>) -> Self {
        Self::conflict(
            about,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub(crate) fn forbidden(about: About<'_>, why: impl AsRef<str>) -> Self {
        let message = format!(
            "{} \"{}\" is forbidden: {}",
            about.qualified(),
            about.name,
            why.as_ref()
        );
        Self {
            details: Box::new(about.details()),
            ..Self::of_code(403, message)
        }
    }

    pub(crate) fn invalid(kind: &str, group: &str, name: &str, causes: &[Cause]) -> Self {
        let list: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
        let listed = match list.as_slice() {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let qualified = if group.is_empty() {
            kind.to_owned()
        } else {
            format!("{kind}.{group}")
        };
        let mut details = json!({"name": name, "kind": kind, "causes": causes_json(causes)});
        if !group.is_empty() {
            details["group"] = json!(group);
        }
        let message = format!("{qualified} \"{name}\" is invalid: {listed}");
        Self {
            details: Box::new(details),
            ..Self::of_code(422, message)
        }
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::of_code(410, message)
    }

    pub(crate) fn too_many_requests(message: impl Into<String>, causes: &[Cause]) -> Self {
        let details = json!({"causes": causes_json(causes)});
        Self {
            details: Box::new(details),
            ..Self::of_code(429, message)
        }
    }

    pub(crate) fn with_causes(mut self, causes: &[Cause]) -> Self {
        if self.details.is_null() {
            *self.details = json!({});
        }
        self.details["causes"] = causes_json(causes);
        self
    }

    /// The `Status` object that a client gets.
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        });
        if !self.details.is_null() {
            status["details"] = (*self.details).clone();
        }
        status
    }
}

fn causes_json(causes: &[Cause]) -> Value {
    causes
        .iter()
        .map(|c| json!({"reason": c.reason, "message": c.message, "field": c.field}))
        .collect()
}
