//! Errors of objects. Their texts are in `kai_engine::reasons`, because an invalid field can be the reason why a pod waits.

use kai_engine::reasons::Refusal;
pub use kai_engine::reasons::{InvalidValue as Error, Problem};

/// An error and its field, without the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldError {
    pub(crate) field: String,
    pub(crate) error: Error,
}

impl FieldError {
    pub(crate) fn new(field: impl Into<String>, error: Error) -> FieldError {
        FieldError {
            field: field.into(),
            error,
        }
    }

    /// The pod with this field waits for its correction.
    pub(crate) fn refusal(self) -> Refusal {
        Refusal::InvalidField {
            field: self.field,
            error: self.error,
        }
    }

    pub(crate) fn of(self, object: String, effect: &'static str) -> Problem {
        Problem {
            object,
            field: self.field,
            error: self.error,
            effect,
        }
    }
}
