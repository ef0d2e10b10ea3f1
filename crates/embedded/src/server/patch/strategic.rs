//! Strategic merge patch: a merge patch that knows how lists merge, with its directives.

use serde_json::{Map, Value};

use super::shape::{ListShape, Shape};
use crate::server::status_error::StatusError;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ORDER_PREFIX: &str = "$setElementOrder/";
const DELETE_PREFIX: &str = "$deleteFromPrimitiveList/";

/// Applies the patch to `target`.
pub(crate) fn merge(target: &mut Value, patch: &Value, shape: Shape<'_>) -> Result<(), StatusError> {
    let Value::Object(patch) = patch else {
        return Err(StatusError::bad_request("a strategic merge patch must be an object"));
    };
    if patch.get(DIRECTIVE).and_then(Value::as_str) == Some("replace") {
        let kept = patch
            .iter()
            .filter(|(k, _)| *k != DIRECTIVE)
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        *target = Value::Object(kept);
        return Ok(());
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let fields = target.as_object_mut().expect("made an object above");
    if let Some(retained) = patch.get(RETAIN_KEYS).and_then(Value::as_array) {
        fields.retain(|name, _| retained.iter().any(|r| r == name));
    }
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix(DELETE_PREFIX) {
            delete_primitives(fields.get_mut(list), value);
        } else if !name.starts_with('$') {
            merge_field(fields, name, value, shape.child(name))?;
        }
    }
    for (name, order) in patch {
        if let Some(list) = name.strip_prefix(ORDER_PREFIX) {
            reorder(fields.get_mut(list), order, shape.child(list));
        }
    }
    Ok(())
}

fn merge_field(
    fields: &mut Map<String, Value>,
    name: &str,
    value: &Value,
    shape: Shape<'_>,
) -> Result<(), StatusError> {
    match value {
        Value::Null => {
            fields.remove(name);
        }
        Value::Object(patch) if patch.get(DIRECTIVE).and_then(Value::as_str) == Some("delete") => {
            fields.remove(name);
        }
        Value::Object(_) => merge(fields.entry(name).or_insert(Value::Null), value, shape)?,
        Value::Array(items) => merge_list(fields.entry(name).or_insert(Value::Null), items, shape)?,
        scalar => {
            fields.insert(name.to_owned(), scalar.clone());
        }
    }
    Ok(())
}

fn merge_list(target: &mut Value, items: &[Value], shape: Shape<'_>) -> Result<(), StatusError> {
    let replaces = |item: &Value| item[DIRECTIVE] == "replace" && item.as_object().is_some_and(|o| o.len() == 1);
    let list_shape = shape.list();
    if list_shape == ListShape::Atomic || items.iter().any(replaces) || !target.is_array() {
        let kept = items.iter().filter(|i| i[DIRECTIVE].is_null());
        *target = kept.cloned().collect();
        return Ok(());
    }
    let list = target.as_array_mut().expect("checked above");
    let before = list.clone();
    for item in items {
        let at = match &list_shape {
            ListShape::Atomic => None,
            ListShape::Set => list.iter().position(|old| old == item),
            ListShape::Map(keys) => {
                // Only the first key: strategic merge has one merge key per list.
                let key = keys.first().copied().unwrap_or_default();
                if item[key].is_null() {
                    let message = format!("map: {item} does not contain declared merge key: {key}");
                    return Err(StatusError::without_reason(500, message));
                }
                list.iter().position(|old| old[key] == item[key])
            }
        };
        match (at, item[DIRECTIVE].as_str(), &list_shape) {
            (Some(at), Some("delete"), _) => {
                list.remove(at);
            }
            (None, Some("delete"), _) | (Some(_), _, ListShape::Set | ListShape::Atomic) => {}
            (Some(at), _, ListShape::Map(_)) => merge(&mut list[at], item, shape.item())?,
            (None, _, ListShape::Map(_)) => {
                let mut made = Value::Null;
                merge(&mut made, item, shape.item())?;
                list.push(made);
            }
            (None, _, ListShape::Set | ListShape::Atomic) => list.push(item.clone()),
        }
    }
    if let ListShape::Map(keys) = &list_shape {
        let key = keys.first().copied().unwrap_or_default();
        *list = interleaved(std::mem::take(list), items, &before, key);
    }
    Ok(())
}

/// The item order of Kubernetes. Items of the patch keep the patch's order, other items keep the old order. Another item comes before
/// an item of the patch only if both are old and the other one was first.
fn interleaved(list: Vec<Value>, patch: &[Value], before: &[Value], key: &str) -> Vec<Value> {
    let rank = |items: &[Value], item: &Value| items.iter().position(|other| other[key] == item[key]);
    let (mut patched, mut others): (Vec<Value>, Vec<Value>) =
        list.into_iter().partition(|item| rank(patch, item).is_some());
    patched.sort_by_key(|item| rank(patch, item));
    others.reverse();
    let mut ordered = Vec::new();
    for item in patched {
        while let Some(other) = others.last() {
            match (rank(before, other), rank(before, &item)) {
                (Some(other), Some(item)) if other < item => {}
                _ => break,
            }
            ordered.extend(others.pop());
        }
        ordered.push(item);
    }
    others.reverse();
    ordered.extend(others);
    ordered
}

fn delete_primitives(list: Option<&mut Value>, gone: &Value) {
    if let (Some(Value::Array(list)), Value::Array(gone)) = (list, gone) {
        list.retain(|item| !gone.contains(item));
    }
}

fn reorder(list: Option<&mut Value>, order: &Value, shape: Shape<'_>) {
    let (Some(Value::Array(list)), Value::Array(order)) = (list, order) else {
        return;
    };
    let ListShape::Map(keys) = shape.list() else { return };
    let key = keys.first().copied().unwrap_or_default();
    let rank = |item: &Value| order.iter().position(|o| o[key] == item[key]).unwrap_or(order.len());
    list.sort_by_key(rank);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(target: Value, patch: Value, expect: Value) {
        let mut merged = target;
        merge(&mut merged, &patch, Shape::BUILT_IN).unwrap();
        assert_eq!(merged, expect, "{patch}");
    }

    #[test]
    fn lists_merge_by_key() {
        let containers = json!({"spec": {"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]}});
        check(
            containers.clone(),
            json!({"spec": {"containers": [{"name": "a", "image": "2", "env": [{"name": "Y", "value": "2"}]}]}}),
            json!({"spec": {"containers": [
                {"name": "a", "image": "2", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}]}, {"name": "b"}]}}),
        );
        check(
            containers.clone(),
            json!({"spec": {"containers": [{"$patch": "delete", "name": "a"}]}}),
            json!({"spec": {"containers": [{"name": "b"}]}}),
        );
        check(
            containers.clone(),
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "a", "env": null}]}}),
            json!({"spec": {"containers": [{"name": "b"}, {"name": "a", "image": "1"}]}}),
        );
        check(
            containers,
            json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "c"}]}}),
            json!({"spec": {"containers": [{"name": "c"}]}}),
        );
    }

    #[test]
    fn conditions_finalizers_and_tolerations() {
        check(
            json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
            json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other"}]}}),
            json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other"}]}}),
        );
        check(
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {"finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"]}}),
            json!({"metadata": {"finalizers": ["b", "c"]}}),
        );
        check(
            json!({"spec": {"tolerations": [{"key": "a"}]}}),
            json!({"spec": {"tolerations": [{"key": "b"}]}}),
            json!({"spec": {"tolerations": [{"key": "b"}]}}),
        );
    }

    #[test]
    fn whole_objects() {
        check(
            json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}),
            json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
            json!({"spec": {"strategy": {"type": "Recreate"}}}),
        );
        check(
            json!({"a": {"b": 1, "c": 2}}),
            json!({"a": {"$patch": "replace", "d": 3}}),
            json!({"a": {"d": 3}}),
        );
        check(
            json!({"a": {"b": 1}, "x": 1}),
            json!({"a": {"$patch": "delete"}}),
            json!({"x": 1}),
        );
    }

    #[test]
    fn an_item_without_its_key_is_refused() {
        let mut target = json!({"spec": {"containers": [{"name": "a"}]}});
        assert!(
            merge(
                &mut target,
                &json!({"spec": {"containers": [{"image": "x"}]}}),
                Shape::BUILT_IN
            )
            .is_err()
        );
    }
}
