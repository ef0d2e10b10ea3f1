//! Validates objects against the schemas of our kinds, as an API server with strict field validation does. It supports the parts of OpenAPI
//! that our schemas use and fails on any other. Tests of the API server cover the CEL rules.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

/// Built once, since the schemas are large.
static CRDS: LazyLock<Vec<Value>> = LazyLock::new(kai_api::crd::crds);

/// All errors of an object of one of our kinds.
pub(crate) fn problems(object: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let crd = CRDS
        .iter()
        .find(|crd| text(&crd["spec"]["names"]["kind"]) == kind)
        .unwrap_or_else(|| panic!("{kind:?} is no kind of ours"));
    let version = &crd["spec"]["versions"][0];
    let group_version = format!("{}/{}", text(&crd["spec"]["group"]), text(&version["name"]));
    assert_eq!(api_version, group_version, "{kind}");
    let mut found = Vec::new();
    let mut rest = object.as_object().expect("an object").clone();
    for every_kind_has in ["apiVersion", "kind", "metadata"] {
        rest.remove(every_kind_has);
    }
    check(
        &Value::Object(rest),
        &version["schema"]["openAPIV3Schema"],
        "",
        &mut found,
    );
    found
}

fn check(value: &Value, schema: &Value, path: &str, found: &mut Vec<String>) {
    let mut wrong = |what: String| found.push(format!("{path}: {what}"));
    if value.is_null() {
        if schema["nullable"] != true {
            wrong("null".to_owned());
        }
        return;
    }
    let int_or_string = schema["x-kubernetes-int-or-string"] == true;
    let fits = match schema["type"].as_str() {
        None => int_or_string && (value.is_i64() || value.is_string()),
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64(),
        Some("number") => value.is_number(),
        Some(other) => panic!("{path}: the checker does not know type {other}"),
    };
    if !fits {
        wrong(format!("{value} is not {}", schema["type"]));
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        wrong(format!("{value} is not one of {allowed:?}"));
    }
    match value {
        Value::String(text) => check_text(text, schema, &mut wrong),
        Value::Number(number) => check_number(number.as_f64().expect("finite"), schema, &mut wrong),
        Value::Array(list) => {
            bounds(list.len(), schema, "Items", &mut wrong);
            for (at, entry) in list.iter().enumerate() {
                check(entry, &schema["items"], &format!("{path}[{at}]"), found);
            }
        }
        Value::Object(map) => check_fields(map, schema, path, found),
        Value::Null | Value::Bool(_) => {}
    }
}

fn check_text(text: &str, schema: &Value, wrong: &mut impl FnMut(String)) {
    bounds(text.chars().count(), schema, "Length", wrong);
    if let Some(pattern) = schema["pattern"].as_str()
        && !Regex::new(pattern).expect("a pattern").is_match(text)
    {
        wrong(format!("{text:?} does not match"));
    }
}

fn check_number(number: f64, schema: &Value, wrong: &mut impl FnMut(String)) {
    if let Some(minimum) = schema["minimum"].as_f64()
        && (number < minimum || (schema["exclusiveMinimum"] == true && number == minimum))
    {
        wrong(format!("{number} is too small"));
    }
    if schema["maximum"].as_f64().is_some_and(|maximum| number > maximum) {
        wrong(format!("{number} is too large"));
    }
}

fn bounds(count: usize, schema: &Value, of: &str, wrong: &mut impl FnMut(String)) {
    let bound = |side: &str| schema[format!("{side}{of}")].as_u64();
    if bound("min").is_some_and(|min| (count as u64) < min) || bound("max").is_some_and(|max| count as u64 > max) {
        wrong(format!("{of} of {count} is out of bounds"));
    }
}

fn check_fields(map: &serde_json::Map<String, Value>, schema: &Value, path: &str, found: &mut Vec<String>) {
    for required in schema["required"].as_array().into_iter().flatten() {
        let name = required.as_str().expect("a name");
        if !map.contains_key(name) {
            found.push(format!("{path}: {name} is missing"));
        }
    }
    for (name, value) in map {
        let path = format!("{path}.{name}");
        match (&schema["properties"][name], &schema["additionalProperties"]) {
            (Value::Object(field), _) => check(value, &Value::Object(field.clone()), &path, found),
            (_, entry @ Value::Object(_)) => check(value, entry, &path, found),
            _ if schema["x-kubernetes-preserve-unknown-fields"] == true => {}
            _ => found.push(format!("{path}: unknown field")),
        }
    }
}
