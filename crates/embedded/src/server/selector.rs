//! Label and field selectors: parsed from query parameters or from objects, matched against objects. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use super::kinds::Kind;
use super::object::{Object, meta_text};
use super::status_error::StatusError;

/// A label and field selector.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Debug, Clone, PartialEq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq)]
enum Test {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    Absent,
    Greater(i64),
    Less(i64),
}

#[derive(Debug, Clone, PartialEq)]
struct FieldRequirement {
    path: String,
    equal: bool,
    value: String,
}

impl Selector {
    /// The selector of all objects.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Parses the query parameters `labelSelector` and `fieldSelector`.
    pub fn parse(kind: &Kind, labels: &str, fields: &str) -> Result<Self, StatusError> {
        Ok(Self {
            labels: parse_labels(labels)?,
            fields: parse_fields(kind, fields)?,
        })
    }

    /// Parses a label selector.
    pub fn labels(text: &str) -> Result<Self, StatusError> {
        Ok(Self {
            labels: parse_labels(text)?,
            fields: Vec::new(),
        })
    }

    /// Reads a `LabelSelector` object; `None` if it is malformed.
    pub fn of_object(selector: &Value) -> Option<Self> {
        let mut labels = Vec::new();
        for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
            labels.push(Requirement {
                key: key.clone(),
                test: Test::In([value.as_str()?.to_owned()].into()),
            });
        }
        for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
            let values = || {
                let list = expression["values"].as_array().map(Vec::as_slice).unwrap_or_default();
                list.iter()
                    .filter_map(|v| v.as_str().map(str::to_owned))
                    .collect::<BTreeSet<_>>()
            };
            let test = match expression["operator"].as_str()? {
                "In" => Test::In(values()),
                "NotIn" => Test::NotIn(values()),
                "Exists" => Test::Exists,
                "DoesNotExist" => Test::Absent,
                _ => return None,
            };
            labels.push(Requirement {
                key: expression["key"].as_str()?.to_owned(),
                test,
            });
        }
        Some(Self {
            labels,
            fields: Vec::new(),
        })
    }

    /// Whether the selector selects all objects.
    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether the selector selects the object.
    pub fn matches(&self, object: &Object) -> bool {
        self.matches_value(object)
    }

    pub(crate) fn matches_value(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.labels.iter().all(|r| r.test.passes(labels[&r.key].as_str()))
            && self
                .fields
                .iter()
                .all(|f| (field(object, &f.path) == f.value) == f.equal)
    }

    /// Whether the selector selects these labels.
    pub(crate) fn matches_labels(&self, labels: &Value) -> bool {
        self.labels.iter().all(|r| r.test.passes(labels[&r.key].as_str()))
    }
}

impl Test {
    fn passes(&self, value: Option<&str>) -> bool {
        match self {
            Self::In(values) => value.is_some_and(|v| values.contains(v)),
            Self::NotIn(values) => value.is_none_or(|v| !values.contains(v)),
            Self::Exists => value.is_some(),
            Self::Absent => value.is_none(),
            Self::Greater(bound) => value.and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v > *bound),
            Self::Less(bound) => value.and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v < *bound),
        }
    }
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, StatusError> {
    let parts = split_outside_parentheses(text);
    parts.into_iter().map(|part| parse_requirement(part.trim())).collect()
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_i32, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.retain(|p| !p.trim().is_empty());
    parts
}

fn parse_requirement(text: &str) -> Result<Requirement, StatusError> {
    let bad = || StatusError::bad_request(format!("unable to parse requirement: {text:?}"));
    let made = |key: &str, test| {
        let key = key.trim();
        if key.is_empty() || key.contains(char::is_whitespace) {
            return Err(bad());
        }
        Ok(Requirement {
            key: key.to_owned(),
            test,
        })
    };
    let value_of = |value: &str| {
        let value = value.trim();
        if value.starts_with('=') {
            let message = "unable to parse requirement: found '=', expected: identifier";
            return Err(StatusError::bad_request(message));
        }
        if let Some((_, rest)) = value.split_once(char::is_whitespace) {
            let message = format!("found '{}', expected: ',' or 'end of string'", rest.trim());
            return Err(StatusError::bad_request(message));
        }
        Ok(BTreeSet::from([value.to_owned()]))
    };
    if let Some(open) = text.find('(') {
        let list = text[open + 1..].strip_suffix(')').ok_or_else(bad)?;
        let values = list.split(',').map(|v| v.trim().to_owned()).collect();
        let mut words = text[..open].split_whitespace();
        let (Some(key), Some(operator), None) = (words.next(), words.next(), words.next()) else {
            return Err(bad());
        };
        return match operator {
            "in" => made(key, Test::In(values)),
            "notin" => made(key, Test::NotIn(values)),
            _ => Err(bad()),
        };
    }
    if let Some((key, value)) = text.split_once("!=") {
        return made(key, Test::NotIn(value_of(value)?));
    }
    if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return made(key, Test::In(value_of(value)?));
    }
    if let Some((key, value)) = text.split_once('>') {
        return made(key, Test::Greater(value.trim().parse().map_err(|_| bad())?));
    }
    if let Some((key, value)) = text.split_once('<') {
        return made(key, Test::Less(value.trim().parse().map_err(|_| bad())?));
    }
    match text.strip_prefix('!') {
        Some(key) => made(key, Test::Absent),
        None => made(text, Test::Exists),
    }
}

fn parse_fields(kind: &Kind, text: &str) -> Result<Vec<FieldRequirement>, StatusError> {
    let mut fields = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (path, value, equal) = if let Some((path, value)) = part.split_once("!=") {
            (path, value, false)
        } else if let Some((path, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
            (path, value, true)
        } else {
            return Err(StatusError::bad_request(format!(
                "invalid selector: '{part}'; can't understand '{part}'"
            )));
        };
        let path = path.trim();
        if !selectable(kind, path) {
            // Kubernetes' message differs for kinds with selectable fields of their own.
            let message = if kind.is("", "pods") || kind.custom.is_some() {
                format!("field label not supported: {path}")
            } else {
                format!("{path:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
            };
            return Err(StatusError::bad_request(message));
        }
        fields.push(FieldRequirement {
            path: path.to_owned(),
            equal,
            value: unescape(value.trim()),
        });
    }
    Ok(fields)
}

fn unescape(value: &str) -> String {
    value.replace("\\,", ",").replace("\\=", "=").replace("\\\\", "\\")
}

fn selectable(kind: &Kind, path: &str) -> bool {
    if path == "metadata.name" || path == "metadata.namespace" {
        return true;
    }
    if let Some(custom) = &kind.custom {
        return custom.selectable.iter().any(|f| f.trim_start_matches('.') == path);
    }
    match (kind.group.as_str(), kind.plural.as_str()) {
        ("", "pods") => matches!(
            path,
            "spec.nodeName"
                | "spec.schedulerName"
                | "spec.serviceAccountName"
                | "spec.hostNetwork"
                | "spec.restartPolicy"
                | "status.phase"
                | "status.podIP"
                | "status.nominatedNodeName"
        ),
        ("" | "events.k8s.io", "events") => {
            let of_object = path
                .strip_prefix("involvedObject.")
                .or_else(|| path.strip_prefix("regarding."));
            of_object.is_some()
                || matches!(
                    path,
                    "reason" | "type" | "source" | "reportingComponent" | "reportingController"
                )
        }
        ("", "nodes") => path == "spec.unschedulable",
        ("", "namespaces") => path == "status.phase",
        ("", "secrets") => path == "type",
        ("batch", "jobs") => path == "status.successful",
        ("apps", "replicasets") => path == "status.replicas",
        ("resource.k8s.io", "resourceslices") => matches!(path, "spec.nodeName" | "spec.driver"),
        _ => false,
    }
}

fn field(object: &Value, path: &str) -> String {
    // Events are stored in the core form.
    if let Some(rest) = path.strip_prefix("regarding.") {
        return field(object, &format!("involvedObject.{rest}"));
    }
    match path {
        "source" if object["source"].is_object() => return text_of(&object["source"]["component"]),
        "metadata.name" => return meta_text(object, "name").to_owned(),
        _ => {}
    }
    let value = path.split('.').fold(object, |value, name| &value[name]);
    match (path, value) {
        ("spec.unschedulable" | "spec.hostNetwork", Value::Null) => "false".to_owned(),
        _ => text_of(value),
    }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::kinds::Kinds;
    use serde_json::json;

    fn labelled(selector: &str) -> bool {
        let pod = json!({"metadata": {"labels": {"app": "web", "tier": "front", "rank": "3"}}});
        Selector::labels(selector).unwrap().matches_value(&pod)
    }

    #[test]
    fn every_label_operator() {
        for (selector, expect) in [
            ("", true),
            ("app=web", true),
            ("app==web,tier!=back", true),
            ("app = api", false),
            ("app in (web, api),tier", true),
            ("app notin (web)", false),
            ("other notin (x)", true),
            ("!other", true),
            ("!app", false),
            ("other", false),
            ("rank>2,rank<4", true),
            ("rank>3", false),
            ("other!=x", true),
        ] {
            assert_eq!(labelled(selector), expect, "{selector}");
        }
        assert!(Selector::labels("a b").is_err());
        assert!(Selector::labels("a in (b").is_err());
    }

    #[test]
    fn fields_by_kind() {
        let kinds = Kinds::built_in();
        let pods = kinds.get("", "v1", "pods").unwrap();
        let pod = json!({"metadata": {"name": "a", "namespace": "n"}, "spec": {"nodeName": "x"}, "status": {"phase": "Running"}});
        let check = |fields: &str| Selector::parse(&pods, "", fields).map(|s| s.matches_value(&pod));
        assert_eq!(check("spec.nodeName=x,status.phase!=Failed,metadata.name=a"), Ok(true));
        assert_eq!(check("spec.nodeName="), Ok(false));
        assert_eq!(check("spec.foo=1").unwrap_err().code, 400);
    }

    #[test]
    fn selectors_of_objects() {
        let selector =
            json!({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]});
        let selector = Selector::of_object(&selector).unwrap();
        assert!(selector.matches_labels(&json!({"a": "1"})));
        assert!(!selector.matches_labels(&json!({"a": "1", "b": ""})));
        assert!(Selector::of_object(&json!({"matchExpressions": [{"key": "b", "operator": "Like"}]})).is_none());
    }
}
