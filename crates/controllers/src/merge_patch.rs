//! The JSON merge patch (RFC 7386) from one value to another. Pure.

use serde_json::{Map, Value};

/// The patch from `from` to `to`; `None` if they are equal. Keys that `to` lacks are set to null, which removes them.
pub(crate) fn difference(from: &Value, to: &Value) -> Option<Value> {
    let (Value::Object(from_map), Value::Object(to_map)) = (from, to) else {
        return (from != to).then(|| to.clone());
    };
    let mut patch = Map::new();
    for (key, value) in to_map {
        let before = from_map.get(key).unwrap_or(&Value::Null);
        if let Some(change) = difference(before, value) {
            patch.insert(key.clone(), change);
        }
    }
    let removed = from_map.keys().filter(|key| !to_map.contains_key(*key));
    patch.extend(removed.map(|key| (key.clone(), Value::Null)));
    (!patch.is_empty()).then_some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(from: Value, to: Value, expect: Option<Value>) {
        assert_eq!(difference(&from, &to), expect, "{from} -> {to}");
    }

    #[test]
    fn only_what_differs_is_written() {
        check(json!({"a": 1}), json!({"a": 1}), None);
        check(
            json!({"a": 1}),
            json!({"a": 2, "b": {"c": 3}}),
            Some(json!({"a": 2, "b": {"c": 3}})),
        );
        check(
            json!({"a": {"b": 1, "c": 2}}),
            json!({"a": {"b": 1}}),
            Some(json!({"a": {"c": null}})),
        );
        check(json!({"a": {"b": 1}}), json!({}), Some(json!({"a": null})));
        check(json!({"a": [1, 2]}), json!({"a": [2]}), Some(json!({"a": [2]})));
        check(json!({}), json!({"a": {}}), Some(json!({"a": {}})));
    }
}
