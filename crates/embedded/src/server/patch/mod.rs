//! Changes to objects as clients write them: JSON patch, merge patch, strategic merge patch and server-side apply, and
//! who owns which field afterwards. Pure: values in, values out.

pub(crate) mod apply;
pub(crate) mod fields;
mod json;
pub(crate) mod shape;
pub(crate) mod strategic;

use serde_json::Value;

use super::status_error::StatusError;
use shape::Shape;

/// A patch as it came, by its content type.
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
        /// What the manager wants.
        config: Value,
        /// Whether to take fields over from other managers.
        force: bool,
    },
}

/// The object after a patch of one of the three kinds that know no owners.
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
