//! OpenAPI schemas of custom resources: pruning of unknown fields, defaulting, validation, CEL rules.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use regex::Regex;
use serde_json::{Value, json};

use crate::server::expressions;
use crate::server::object::map_mut;
use crate::server::status_error::Cause;

/// Drops unknown fields and adds their paths to `pruned`. `apiVersion`, `kind` and `metadata` of the object are always known.
pub(super) fn prune(object: &mut Value, schema: &Value, pruned: &mut Vec<String>) {
    prune_at(object, schema, "", pruned);
}

fn prune_at(value: &mut Value, schema: &Value, path: &str, pruned: &mut Vec<String>) {
    if schema["x-kubernetes-embedded-resource"] == true {
        return;
    }
    let root = path.is_empty();
    match value {
        Value::Object(fields) => {
            let properties = &schema["properties"];
            let rest = schema.get("additionalProperties").filter(|a| a.is_object());
            let keep_all =
                schema["x-kubernetes-preserve-unknown-fields"] == true || schema["additionalProperties"] == true;
            let identity = |name: &str| root && matches!(name, "apiVersion" | "kind" | "metadata");
            fields.retain(|name, _| {
                let kept = keep_all || rest.is_some() || identity(name) || properties.get(name).is_some();
                if !kept {
                    pruned.push(join(path, name));
                }
                kept
            });
            for (name, child) in fields.iter_mut().filter(|(name, _)| !identity(name)) {
                if let Some(schema) = properties.get(name).or(rest) {
                    prune_at(child, schema, &join(path, name), pruned);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for (at, item) in items.iter_mut().enumerate() {
                    prune_at(item, schema, &format!("{path}[{at}]"), pruned);
                }
            }
        }
        _ => {}
    }
}

/// Sets the schema's defaults, and drops nulls where null is not allowed.
pub(super) fn fill_defaults(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(fields) => {
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                if fields.get(name).is_some_and(Value::is_null) && property["nullable"] != true {
                    fields.remove(name);
                }
                if let Some(default) = property.get("default").filter(|_| !fields.contains_key(name)) {
                    fields.insert(name.clone(), default.clone());
                }
                if let Some(child) = fields.get_mut(name) {
                    fill_defaults(child, property);
                }
            }
            if let Some(rest) = schema.get("additionalProperties").filter(|a| a.is_object()) {
                fields.values_mut().for_each(|child| fill_defaults(child, rest));
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                items.iter_mut().for_each(|item| fill_defaults(item, schema));
            }
        }
        _ => {}
    }
}

/// Validates an object. `old` is the object before an update, for rules with `oldSelf`.
pub(super) fn check(new: &Value, old: Option<&Value>, schema: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    // `rules::metadata` validates metadata.
    let mut shown = new.clone();
    map_mut(&mut shown).remove("metadata");
    let mut bare = schema.clone();
    if let Some(properties) = bare["properties"].as_object_mut() {
        properties.remove("metadata");
    }
    check_value(&shown, &bare, "", &mut causes);
    // As in Kubernetes, CEL rules run only if all errors so far are of `FieldValueInvalid`.
    let blocking = causes.iter().any(|cause| cause.reason != "FieldValueInvalid");
    if !blocking {
        check_rules(new, old, schema, "", &mut causes);
    } else if has_rules(schema) {
        let why = "some validation rules were not checked because the object was invalid; correct the existing errors to \
                   complete validation";
        causes.push(Cause::invalid("<nil>", &Value::Null, why));
    }
    causes
}

/// Whether a schema has CEL rules at any depth.
fn has_rules(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.contains_key("x-kubernetes-validations") || fields.values().any(has_rules),
        Value::Array(items) => items.iter().any(has_rules),
        _ => false,
    }
}

fn check_value(value: &Value, schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    if value.is_null() && schema["nullable"] == true {
        return;
    }
    if !has_type(value, schema) {
        let expect = schema["type"].as_str().unwrap_or("integer or string");
        let message = format!(
            "Invalid value: {:?}: {} in body must be of type {expect}: {:?}",
            type_name(value),
            named(path),
            type_name(value)
        );
        causes.push(Cause {
            reason: "FieldValueTypeInvalid",
            message,
            field: named(path),
        });
        return;
    }
    if let Some(allowed) = schema["enum"].as_array().filter(|allowed| !allowed.contains(value)) {
        let list: Vec<String> = allowed.iter().map(Value::to_string).collect();
        let message = format!("Unsupported value: {value}: supported values: {}", list.join(", "));
        causes.push(Cause {
            reason: "FieldValueNotSupported",
            message,
            field: named(path),
        });
    }
    match value {
        Value::Object(fields) => check_object(fields, schema, path, causes),
        Value::Array(items) => {
            check_count(items.len(), schema, ["minItems", "maxItems"], path, causes);
            for (at, item) in items.iter().enumerate() {
                if let Some(schema) = schema.get("items") {
                    check_value(item, schema, &format!("{path}[{at}]"), causes);
                }
            }
        }
        Value::String(text) => {
            check_count(text.chars().count(), schema, ["minLength", "maxLength"], path, causes);
            check_pattern(text, schema, path, causes);
        }
        Value::Number(number) => check_number(number.as_f64().unwrap_or(0.0), value, schema, path, causes),
        Value::Null | Value::Bool(_) => {}
    }
    check_alternatives(value, schema, path, causes);
}

fn check_object(fields: &serde_json::Map<String, Value>, schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    for name in schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        if !fields.contains_key(name) {
            causes.push(Cause::required(join(path, name), ""));
        }
    }
    check_count(fields.len(), schema, ["minProperties", "maxProperties"], path, causes);
    for (name, child) in fields {
        let known = schema["properties"].get(name);
        let schema = known.or_else(|| schema.get("additionalProperties").filter(|a| a.is_object()));
        if let Some(schema) = schema {
            check_value(child, schema, &join(path, name), causes);
        }
    }
}

fn check_count(count: usize, schema: &Value, [min, max]: [&str; 2], path: &str, causes: &mut Vec<Cause>) {
    if let Some(bound) = schema[min].as_u64().filter(|bound| (count as u64) < *bound) {
        causes.push(Cause::invalid(named(path), &json!(count), format!("{min} is {bound}")));
    }
    if let Some(bound) = schema[max].as_u64().filter(|bound| count as u64 > *bound) {
        causes.push(match max {
            "maxLength" => Cause::too_long(named(path), bound as usize),
            _ => Cause::too_many(named(path), count, bound),
        });
    }
}

fn check_number(number: f64, value: &Value, schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    let (min, max) = (schema["minimum"].as_f64(), schema["maximum"].as_f64());
    let too_low = min.is_some_and(|min| number < min || (schema["exclusiveMinimum"] == true && number == min));
    let too_high = max.is_some_and(|max| number > max || (schema["exclusiveMaximum"] == true && number == max));
    let mut fail = |bound: &str, limit: &Value| {
        let why = format!("{} in body should be {bound} than or equal to {limit}", named(path));
        causes.push(Cause::invalid(named(path), value, why));
    };
    if too_low {
        fail("greater", &schema["minimum"]);
    }
    if too_high {
        fail("less", &schema["maximum"]);
    }
}

fn check_pattern(text: &str, schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    let Some(pattern) = schema["pattern"].as_str() else {
        return;
    };
    // A pattern that the regex crate can't parse is not checked.
    let matches = compiled(pattern).is_none_or(|regex| regex.is_match(text));
    if !matches {
        let why = format!("{} in body should match '{pattern}'", named(path));
        causes.push(Cause::invalid(named(path), &json!(text), why));
    }
}

/// Compiled patterns in the cache. All schemas of an installation have fewer; compiling one costs more than all other checks.
const PATTERNS_MAX: usize = 256;

fn compiled(pattern: &str) -> Option<Regex> {
    static KEPT: Mutex<BTreeMap<String, Option<Regex>>> = Mutex::new(BTreeMap::new());
    let mut kept = KEPT.lock();
    if let Some(found) = kept.get(pattern) {
        return found.clone();
    }
    let regex = Regex::new(pattern).ok();
    if kept.len() < PATTERNS_MAX {
        kept.insert(pattern.to_owned(), regex.clone());
    }
    regex
}

fn check_alternatives(value: &Value, schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    let passes = |schema: &Value| {
        let mut found = Vec::new();
        check_value(value, schema, path, &mut found);
        found.is_empty()
    };
    let list = |field: &str| schema[field].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut fail = |why: &str| causes.push(Cause::invalid(named(path), value, why));
    if !list("anyOf").is_empty() && !list("anyOf").iter().any(passes) {
        fail("must validate at least one schema (anyOf)");
    }
    if !list("oneOf").is_empty() && list("oneOf").iter().filter(|s| passes(s)).count() != 1 {
        fail("must validate one and only one schema (oneOf)");
    }
    if !list("allOf").iter().all(passes) {
        fail("must validate all the schemas (allOf)");
    }
    if schema.get("not").is_some_and(passes) {
        fail("must not validate the schema (not)");
    }
}

/// Checks the CEL rules of a schema, at every depth.
fn check_rules(new: &Value, old: Option<&Value>, schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let Some(text) = rule["rule"].as_str() else { continue };
        // A transition rule does not apply to a new value.
        if text.contains("oldSelf") && old.is_none() {
            continue;
        }
        let mut variables = vec![("self", new)];
        variables.extend(old.map(|old| ("oldSelf", old)));
        let problem = match expressions::truth(text, &variables) {
            Ok(true) => continue,
            Ok(false) => rule_message(rule, text, &variables),
            Err(error) => format!("rule evaluation error: {error}"),
        };
        // Kubernetes shows the value only if it is a scalar.
        causes.push(if new.is_object() || new.is_array() {
            Cause {
                reason: "FieldValueInvalid",
                message: format!("Invalid value: {problem}"),
                field: named(path),
            }
        } else {
            Cause::invalid(named(path), new, problem)
        });
    }
    match new {
        Value::Object(fields) => {
            for (name, child) in fields {
                let known = schema["properties"].get(name);
                if let Some(schema) = known.or_else(|| schema.get("additionalProperties").filter(|a| a.is_object())) {
                    check_rules(child, old.and_then(|o| o.get(name)), schema, &join(path, name), causes);
                }
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                if let Some(schema) = schema.get("items") {
                    // Items of lists without keys have no old item to compare with; transition rules of items are not supported.
                    check_rules(item, None, schema, &format!("{path}[{at}]"), causes);
                }
            }
        }
        _ => {}
    }
}

fn rule_message(rule: &Value, text: &str, variables: &[(&str, &Value)]) -> String {
    let computed = rule["messageExpression"]
        .as_str()
        .and_then(|e| expressions::text(e, variables).ok());
    let fixed = || rule["message"].as_str().map(str::to_owned);
    computed
        .or_else(fixed)
        .unwrap_or_else(|| format!("failed rule: {text}"))
}

fn has_type(value: &Value, schema: &Value) -> bool {
    if schema["x-kubernetes-int-or-string"] == true {
        return value.is_string() || value.is_i64() || value.is_u64();
    }
    match schema["type"].as_str() {
        None => true,
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|f| f.fract() == 0.0),
        Some("number") => value.is_number(),
        Some(_) => true,
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

fn named(path: &str) -> String {
    if path.is_empty() {
        "<nil>".to_owned()
    } else {
        path.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "required": ["spec"], "properties": {"spec": {
        "type": "object",
        "required": ["size"],
        "x-kubernetes-validations": [
            {"rule": "self.size <= 5 || has(self.mode)", "message": "large ones need a mode"},
            {"rule": "self.size >= oldSelf.size", "messageExpression": "'was ' + string(oldSelf.size)"}],
        "properties": {
            "size": {"type": "integer", "minimum": 1, "maximum": 9},
            "mode": {"type": "string", "enum": ["a", "b"]},
            "name": {"type": "string", "pattern": "^[a-z]+$", "default": "x"},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "amount": {"x-kubernetes-int-or-string": true},
        }}}})
    }

    fn problems(spec: Value, old: Option<Value>) -> Vec<String> {
        let old = old.map(|spec| json!({"spec": spec}));
        check(&json!({"spec": spec}), old.as_ref(), &schema())
            .iter()
            .map(|c| format!("{}: {}", c.field, c.message))
            .collect()
    }

    #[test]
    fn unknown_fields_go_and_defaults_come() {
        let mut object = json!({"apiVersion": "v", "metadata": {"name": "a"}, "bad": 1, "spec": {"size": 1, "no": 2, "free": {"any": 1}}});
        let mut pruned = Vec::new();
        prune(&mut object, &schema(), &mut pruned);
        assert_eq!(pruned, ["bad", "spec.no"]);
        fill_defaults(&mut object, &schema());
        let expect =
            json!({"apiVersion": "v", "metadata": {"name": "a"}, "spec": {"size": 1, "name": "x", "free": {"any": 1}}});
        assert_eq!(object, expect);
    }

    #[test]
    fn types_bounds_and_words() {
        assert!(problems(json!({"size": 3, "mode": "a", "amount": "1Gi"}), None).is_empty());
        let missing = problems(json!({}), None);
        assert_eq!(missing[0], "spec.size: Required value");
        assert!(
            missing[1].contains("some validation rules were not checked"),
            "{missing:?}"
        );
        assert!(problems(json!({"size": "3"}), None)[0].contains("must be of type integer"));
        assert!(problems(json!({"size": 0}), None)[0].contains("greater than or equal to 1"));
        assert!(problems(json!({"size": 1, "mode": "c"}), None)[0].contains("supported values: \"a\", \"b\""));
        assert!(problems(json!({"size": 1, "name": "X"}), None)[0].contains("should match"));
    }

    #[test]
    fn rules_in_cel() {
        assert!(problems(json!({"size": 6}), None)[0].ends_with("large ones need a mode"));
        assert!(problems(json!({"size": 6, "mode": "a"}), None).is_empty());
        assert!(problems(json!({"size": 1}), Some(json!({"size": 2})))[0].ends_with("was 2"));
    }
}
