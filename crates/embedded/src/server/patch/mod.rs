//! JSON patch, merge patch, strategic merge patch and server-side apply with its `managedFields`. Pure.

pub(crate) mod apply;
pub(crate) mod fields;
mod json;
pub(crate) mod shape;
pub(crate) mod strategic;

use serde_json::Value;

use super::status_error::StatusError;
use shape::Shape;

/// A patch, by its content type.
#[derive(Debug, Clone, PartialEq)]
pub enum Patch {
    /// `application/json-patch+json`.
    Json(Value),
    /// `application/merge-patch+json`.
    Merge(Value),
    /// `application/strategic-merge-patch+json`.
    Strategic(Value),
    /// `application/apply-patch+yaml`.
    Apply {
        /// The configuration of the manager.
        config: Value,
        /// Whether the manager takes conflicting fields over from other managers.
        force: bool,
    },
}

/// The object after a JSON, merge or strategic merge patch.
pub(crate) fn patched(old: &Value, patch: &Patch, shape: Shape<'_>) -> Result<Value, StatusError> {
    let mut new = old.clone();
    match patch {
        Patch::Json(operations) => {
            json::apply(&mut new, operations)?;
        }
        Patch::Merge(merge) if merge.is_object() => json_patch::merge(&mut new, merge),
        Patch::Merge(_) => {
            return Err(StatusError::bad_request(
                "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}",
            ));
        }
        Patch::Strategic(merge) => strategic::merge(&mut new, merge, shape)?,
        Patch::Apply { config, .. } => return Ok(apply::merged(old, config, shape)),
    }
    Ok(new)
}
