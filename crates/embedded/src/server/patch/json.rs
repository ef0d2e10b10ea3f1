//! JSON patch. Bounds on operations and copied bytes keep a small patch from creating a huge object. Pure.

use json_patch::{AddOperation, PatchOperation};
use serde_json::Value;

use crate::server::object::json_bytes;
use crate::server::status_error::StatusError;

/// Operations per patch, as in Kubernetes.
const OPERATIONS_MAX: usize = 10_000;
/// Bytes that the copies of one patch may add, as in Kubernetes: the size of the largest request body.
const COPIED_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Applies the operations to `target`. After an error `target` has some of the changes.
pub(super) fn apply(target: &mut Value, operations: &Value) -> Result<(), StatusError> {
    let Value::Array(list) = operations else {
        return Err(StatusError::bad_request(format!(
            "error decoding patch: json: cannot unmarshal {} into Go value of type []handlers.jsonPatchOp",
            if operations.is_object() { "object" } else { "value" }
        )));
    };
    if list.len() > OPERATIONS_MAX {
        let count = list.len();
        let message = format!(
            "Request entity too large: The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {count}"
        );
        return Err(StatusError::of_code(413, message));
    }
    let mut copied_bytes = 0;
    for operation in list {
        let refused = |why: String| StatusError::of_code(422, format!("{operation}: {why}")).with_empty_details();
        let mut read: PatchOperation = serde_json::from_value(operation.clone()).map_err(|e| refused(e.to_string()))?;
        match read {
            PatchOperation::Copy(ref copy) => {
                let from = copy.from.resolve(target).map_err(|e| refused(e.to_string()))?;
                copied_bytes += json_bytes(from);
                if copied_bytes > COPIED_BYTES_MAX {
                    return Err(refused(format!(
                        "the copies of this JSON patch add {copied_bytes} bytes, and may add {COPIED_BYTES_MAX}"
                    )));
                }
            }
            // As in Kubernetes, `replace` of a missing field of an object adds the field.
            PatchOperation::Replace(replace) if is_missing_field(target, &replace.path) => {
                let (path, value) = (replace.path, replace.value);
                read = PatchOperation::Add(AddOperation { path, value });
            }
            _ => {}
        }
        json_patch::patch_unsafe(target, &[read]).map_err(|e| refused(e.kind.to_string()))?;
    }
    Ok(())
}

fn is_missing_field(target: &Value, path: &json_patch::jsonptr::Pointer) -> bool {
    let Some((parent, name)) = path.split_back() else {
        return false;
    };
    let parent = parent.resolve(target).ok().and_then(Value::as_object);
    parent.is_some_and(|fields| !fields.contains_key(name.decoded().as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn copies_that_double_an_object_again_and_again_are_stopped() {
        let mut target = json!({"a": {"x": "y".repeat(100)}});
        let bomb: Vec<Value> = (0..60)
            .map(|at| json!({"op": "copy", "from": "/a", "path": format!("/a/{at}")}))
            .collect();
        let error = apply(&mut target, &json!(bomb)).unwrap_err();
        assert_eq!((error.code, error.reason), (422, "Invalid"));
        assert!(error.message.contains("may add 3145728"), "{error}");
        assert!(json_bytes(&target) < 2 * COPIED_BYTES_MAX);
    }

    #[test]
    fn operations_are_counted() {
        let many = vec![json!({"op": "test", "path": "/a", "value": 1}); OPERATIONS_MAX + 1];
        assert_eq!(apply(&mut json!({"a": 1}), &json!(many)).unwrap_err().code, 413);
    }

    #[test]
    fn replacing_a_missing_field_adds_it() {
        let mut target = json!({"a": {"list": [1]}});
        apply(&mut target, &json!([{"op": "replace", "path": "/a/b", "value": 2}])).unwrap();
        assert_eq!(target["a"]["b"], 2);
        assert!(
            apply(
                &mut target,
                &json!([{"op": "replace", "path": "/a/list/7", "value": 2}])
            )
            .is_err()
        );
        assert!(apply(&mut target, &json!([{"op": "replace", "path": "/none/b", "value": 2}])).is_err());
    }

    #[test]
    fn what_is_no_patch_is_refused() {
        assert_eq!(apply(&mut json!({}), &json!({"op": "add"})).unwrap_err().code, 400);
        assert_eq!(
            apply(&mut json!({}), &json!([{"op": "twist", "path": "/a"}]))
                .unwrap_err()
                .code,
            422
        );
        assert_eq!(
            apply(&mut json!({"a": 1}), &json!([{"op": "test", "path": "/a", "value": 2}]))
                .unwrap_err()
                .code,
            422
        );
    }
}
