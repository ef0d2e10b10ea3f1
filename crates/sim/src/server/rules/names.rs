//! What names and labels may look like. Pure.

use serde_json::{Value, json};

use crate::server::kinds::Kind;
use crate::server::refusal::{Cause, Refusal};

const SUBDOMAIN_LEN_MAX: usize = 253;
const LABEL_LEN_MAX: usize = 63;

/// Refuses a name that this kind may not have.
pub(crate) fn check(kind: &Kind, name: &str) -> Result<(), Refusal> {
    let why = match (kind.group.as_str(), kind.plural.as_str()) {
        // Names of roles and the like only have to fit a path.
        ("rbac.authorization.k8s.io", _) => {
            let bad = name == "." || name == ".." || name.contains(['/', '%']);
            bad.then_some("may not be '.', '..' or contain '/' or '%'")
        }
        ("", "namespaces" | "services") => (!is_label(name)).then_some(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end \
             with an alphanumeric character",
        ),
        _ => (!is_subdomain(name)).then_some(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start \
             and end with an alphanumeric character",
        ),
    };
    let Some(why) = why else { return Ok(()) };
    Err(Refusal::invalid(
        &kind.kind,
        &kind.group,
        name,
        &[Cause::invalid("metadata.name", &json!(name), why)],
    ))
}

/// What is wrong with an object's labels.
pub(super) fn check_labels(object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for field in ["labels", "annotations"] {
        let map = &object["metadata"][field];
        for (key, value) in map.as_object().into_iter().flatten() {
            let path = format!("metadata.{field}");
            if !is_qualified(key) {
                causes.push(Cause::invalid(
                    &*path,
                    &json!(key),
                    "name part must consist of alphanumeric characters, '-', '_' or '.'",
                ));
            }
            match value.as_str() {
                None => causes.push(Cause::invalid(&*path, value, "must be a string")),
                Some(text) if field == "labels" && !is_label_value(text) => {
                    let why =
                        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.'";
                    causes.push(Cause::invalid(&*path, value, why));
                }
                Some(_) => {}
            }
        }
    }
    causes
}

fn is_subdomain(name: &str) -> bool {
    !name.is_empty() && name.len() <= SUBDOMAIN_LEN_MAX && name.split('.').all(is_dns_word)
}

fn is_label(name: &str) -> bool {
    name.len() <= LABEL_LEN_MAX && is_dns_word(name)
}

fn is_dns_word(word: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = word.as_bytes();
    let ends = bytes.first().is_some_and(|b| plain(*b)) && bytes.last().is_some_and(|b| plain(*b));
    ends && bytes.iter().all(|b| plain(*b) || *b == b'-')
}

fn is_qualified(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && !name.is_empty() && is_label_value(name),
        None => !key.is_empty() && is_label_value(key),
    }
}

fn is_label_value(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = |b: Option<&u8>| b.is_none_or(u8::is_ascii_alphanumeric);
    text.len() <= LABEL_LEN_MAX
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, good) in [
            ("a", true),
            ("a-1.b", true),
            ("A", false),
            ("-a", false),
            ("a..b", false),
            ("", false),
            ("a_b", false),
        ] {
            assert_eq!(is_subdomain(name), good, "{name}");
        }
        assert!(!is_label("a.b"));
        assert!(!is_subdomain(&"a".repeat(254)));
    }

    #[test]
    fn labels() {
        let causes = |labels: Value| check_labels(&json!({"metadata": {"labels": labels}})).len();
        assert_eq!(causes(json!({"kai.scheduler/queue": "a", "x": ""})), 0);
        assert_eq!(causes(json!({"x": "a b"})), 1);
        assert_eq!(causes(json!({"x": 1})), 1);
        assert_eq!(causes(json!({"a/b/c": "1"})), 1);
    }
}
