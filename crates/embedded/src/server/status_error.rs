//! The error of a rejected request, as Kubernetes' `StatusError`: code, reason, message and details of the `Status` object.

use http::StatusCode;
use serde_json::{Value, json};

/// The error of a rejected request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct StatusError {
    /// HTTP status code.
    pub code: u16,
    /// The reason of the `Status`, e.g. `NotFound`.
    pub reason: &'static str,
    /// The message for people.
    pub message: String,
    /// `details` of the `Status`: name, group, kind, uid, causes, retryAfterSeconds.
    pub details: Box<Value>,
}

/// The usual reason of each status code.
const USUAL_REASONS: [(u16, &str); 15] = [
    (400, "BadRequest"),
    (401, "Unauthorized"),
    (403, "Forbidden"),
    (404, "NotFound"),
    (405, "MethodNotAllowed"),
    (406, "NotAcceptable"),
    (409, "Conflict"),
    (410, "Expired"),
    (413, "RequestEntityTooLarge"),
    (415, "UnsupportedMediaType"),
    (422, "Invalid"),
    (429, "TooManyRequests"),
    (500, "InternalError"),
    (503, "ServiceUnavailable"),
    (504, "Timeout"),
];

/// The known reason that equals this text; `Unknown` if there is none.
pub(crate) fn reason_word(text: &str) -> &'static str {
    let mut words = USUAL_REASONS
        .iter()
        .map(|(_, reason)| *reason)
        .chain(["AlreadyExists", "Gone"]);
    words.find(|word| *word == text).unwrap_or("Unknown")
}

/// A cause in `details.causes`: what is wrong with one field.
#[derive(Debug, Clone, PartialEq)]
pub struct Cause {
    /// The reason of the cause, e.g. `FieldValueInvalid`.
    pub reason: &'static str,
    /// The message for people.
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

    /// A required field that is missing.
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

    /// A field whose value is none of the allowed words.
    pub(crate) fn unsupported(field: impl Into<String>, value: &Value, allowed: &[&str]) -> Self {
        let allowed: Vec<String> = allowed.iter().map(|word| format!("{word:?}")).collect();
        let message = format!("Unsupported value: {value}: supported values: {}", allowed.join(", "));
        Self {
            reason: "FieldValueNotSupported",
            message,
            field: field.into(),
        }
    }

    /// A field whose value occurs twice.
    pub(crate) fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self {
            reason: "FieldValueDuplicate",
            message: format!("Duplicate value: {value}"),
            field: field.into(),
        }
    }

    /// A field that refers to a missing object.
    pub(crate) fn not_found(field: impl Into<String>, value: &Value) -> Self {
        Self {
            reason: "FieldValueNotFound",
            message: format!("Not found: {value}"),
            field: field.into(),
        }
    }

    /// A field with too many bytes.
    pub(crate) fn too_long(field: impl Into<String>, bytes_max: usize) -> Self {
        Self {
            reason: "FieldValueTooLong",
            message: format!("Too long: may not be more than {bytes_max} bytes"),
            field: field.into(),
        }
    }

    /// A list with too many items.
    pub(crate) fn too_many(field: impl Into<String>, count: usize, max: u64) -> Self {
        Self {
            reason: "FieldValueTooMany",
            message: format!("Too many: {count}: must have at most {max} items"),
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

/// The object of a rejected request, for the message and for `details`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObjectRef<'a> {
    pub(crate) group: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) name: &'a str,
}

impl ObjectRef<'_> {
    fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.resource.to_owned()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }

    fn details(&self) -> Value {
        details_of(self.name, self.resource, self.group)
    }
}

impl StatusError {
    /// An error without details.
    pub fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code: code.as_u16(),
            reason,
            message: message.into(),
            details: Box::new(Value::Null),
        }
    }

    /// An error with the usual reason of a status code, for faults and proxies.
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

    pub(crate) fn not_found(object: ObjectRef<'_>) -> Self {
        let message = format!("{} \"{}\" not found", object.qualified(), object.name);
        Self {
            details: Box::new(object.details()),
            ..Self::of_code(404, message)
        }
    }

    /// An error without a reason, where Kubernetes gives none.
    pub(crate) fn without_reason(code: u16, message: impl Into<String>) -> Self {
        Self {
            reason: "",
            ..Self::of_code(code, message)
        }
    }

    pub(crate) fn no_such_path() -> Self {
        Self::of_code(404, "the server could not find the requested resource").with_empty_details()
    }

    pub(crate) fn no_such_method() -> Self {
        Self::of_code(405, "the server does not allow this method on the requested resource").with_empty_details()
    }

    /// The error of invalid request options, e.g. of `CreateOptions`.
    pub(crate) fn invalid_options(options: &str, cause: Cause) -> Self {
        Self::invalid(options, "meta.k8s.io", "", &[cause])
    }

    pub(crate) fn with_empty_details(mut self) -> Self {
        *self.details = json!({});
        self
    }

    pub(crate) fn already_exists(object: ObjectRef<'_>) -> Self {
        let message = format!("{} \"{}\" already exists", object.qualified(), object.name);
        Self {
            code: 409,
            reason: "AlreadyExists",
            message,
            details: Box::new(object.details()),
        }
    }

    pub(crate) fn conflict(object: ObjectRef<'_>, why: impl AsRef<str>) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{}\": {}",
            object.qualified(),
            object.name,
            why.as_ref()
        );
        Self {
            details: Box::new(object.details()),
            ..Self::of_code(409, message)
        }
    }

    /// The conflict of a write with an outdated resourceVersion.
    pub(crate) fn outdated(object: ObjectRef<'_>) -> Self {
        Self::conflict(
            object,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub(crate) fn forbidden(object: ObjectRef<'_>, why: impl AsRef<str>) -> Self {
        let message = format!(
            "{} \"{}\" is forbidden: {}",
            object.qualified(),
            object.name,
            why.as_ref()
        );
        Self {
            details: Box::new(object.details()),
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
        let mut details = details_of(name, kind, group);
        details["causes"] = causes_json(causes);
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

    /// The `Status` object for the client.
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if !self.details.is_null() {
            status["details"] = (*self.details).clone();
        }
        status
    }
}

/// The fields of `details` that are not empty.
fn details_of(name: &str, kind: &str, group: &str) -> Value {
    let all = [("name", name), ("kind", kind), ("group", group)];
    let given = all.iter().filter(|(_, text)| !text.is_empty());
    given.map(|(field, text)| ((*field).to_owned(), json!(text))).collect()
}

fn causes_json(causes: &[Cause]) -> Value {
    causes
        .iter()
        .map(|c| json!({"reason": c.reason, "message": c.message, "field": c.field}))
        .collect()
}
