//! Validation of names, labels and keys, with Kubernetes' messages. Pure.

use serde_json::json;

use crate::server::kinds::Kind;
use crate::server::status_error::{Cause, StatusError};

const SUBDOMAIN_LEN_MAX: usize = 253;
const LABEL_LEN_MAX: usize = 63;

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
                     end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
                     '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SERVICE: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
                       character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
                       validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and \
                         must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation \
                         is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const KEY: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
                   character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                   '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
                     start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
                     for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
                          'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

/// Checks the name of an object of this kind.
pub(crate) fn check(kind: &Kind, name: &str) -> Result<(), StatusError> {
    let problems = match (kind.group.as_str(), kind.plural.as_str()) {
        // Names of RBAC objects only have to fit into a path.
        ("rbac.authorization.k8s.io", _) => {
            let bad = name == "." || name == ".." || name.contains(['/', '%']);
            let why = "may not be '.', '..' or contain '/' or '%'";
            if bad { vec![why.to_owned()] } else { Vec::new() }
        }
        ("", "namespaces") => label(name),
        ("", "services") => service(name),
        _ => subdomain(name),
    };
    if problems.is_empty() {
        return Ok(());
    }
    let causes: Vec<Cause> = problems
        .iter()
        .map(|why| Cause::invalid("metadata.name", &json!(name), why))
        .collect();
    Err(StatusError::invalid(&kind.kind, &kind.group, name, &causes))
}

/// Checks a DNS subdomain.
pub(super) fn subdomain(name: &str) -> Vec<String> {
    let mut problems = too_long(name, SUBDOMAIN_LEN_MAX);
    if !name.split('.').all(is_dns_word) {
        problems.push(SUBDOMAIN.to_owned());
    }
    problems
}

/// Checks a DNS label.
pub(super) fn label(name: &str) -> Vec<String> {
    let mut problems = too_long(name, LABEL_LEN_MAX);
    if !is_dns_word(name) {
        problems.push(LABEL.to_owned());
    }
    problems
}

fn service(name: &str) -> Vec<String> {
    let mut problems = too_long(name, LABEL_LEN_MAX);
    if !is_dns_word(name) || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        problems.push(SERVICE.to_owned());
    }
    problems
}

/// Checks the key of a label, an annotation or a resource.
pub(super) fn qualified(key: &str) -> Vec<String> {
    let (prefix, name) = match key.split_once('/') {
        None => (None, key),
        Some((_, rest)) if rest.contains('/') => {
            let why = format!(
                "a valid label key {KEY} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            );
            return vec![why];
        }
        Some((prefix, name)) => (Some(prefix), name),
    };
    let mut problems = Vec::new();
    match prefix {
        Some("") => problems.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => problems.extend(subdomain(prefix).iter().map(|why| format!("prefix part {why}"))),
        None => {}
    }
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_LEN_MAX {
        problems.push(format!("name part must be no more than {LABEL_LEN_MAX} characters"));
    }
    if name.is_empty() || !is_word(name) {
        problems.push(format!("name part {KEY}"));
    }
    problems
}

/// Checks the value of a label.
pub(super) fn label_value(text: &str) -> Vec<String> {
    let mut problems = too_long(text, LABEL_LEN_MAX);
    if !is_word(text) {
        problems.push(VALUE.to_owned());
    }
    problems
}

/// Checks the key of a label or taint.
pub(crate) fn check_label_key(key: &str) -> Result<(), String> {
    joined(&qualified(key))
}

/// Checks the value of a label or taint.
pub(crate) fn check_label_value(value: &str) -> Result<(), String> {
    joined(&label_value(value))
}

fn joined(problems: &[String]) -> Result<(), String> {
    match problems {
        [] => Ok(()),
        problems => Err(problems.join("; ")),
    }
}

/// Checks a key of a ConfigMap or Secret.
pub(super) fn config_key(key: &str) -> Vec<String> {
    let mut problems = too_long(key, SUBDOMAIN_LEN_MAX);
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if key.is_empty() || !key.chars().all(plain) {
        problems.push(CONFIG_KEY.to_owned());
    }
    problems
}

fn too_long(text: &str, max: usize) -> Vec<String> {
    if text.len() > max {
        vec![format!("must be no more than {max} characters")]
    } else {
        Vec::new()
    }
}

fn is_dns_word(word: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = word.as_bytes();
    let ends = bytes.first().is_some_and(|b| plain(*b)) && bytes.last().is_some_and(|b| plain(*b));
    ends && bytes.iter().all(|b| plain(*b) || *b == b'-')
}

fn is_word(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = |b: Option<&u8>| b.is_none_or(u8::is_ascii_alphanumeric);
    ends(bytes.first())
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
            assert_eq!(subdomain(name).is_empty(), good, "{name}");
        }
        assert!(!label("a.b").is_empty());
        assert_eq!(subdomain(&"a".repeat(254)), ["must be no more than 253 characters"]);
        assert!(!service("1a").is_empty());
    }

    #[test]
    fn keys() {
        for (key, count) in [
            ("a", 0),
            ("kai.scheduler/queue", 0),
            ("a/b/c", 1),
            ("/a", 1),
            ("", 2),
            ("a/", 2),
            ("A_/x y", 2),
        ] {
            assert_eq!(qualified(key).len(), count, "{key:?}: {:?}", qualified(key));
        }
        assert!(label_value("").is_empty());
        assert!(!label_value("a b").is_empty());
        assert!(!config_key("a b").is_empty());
    }
}
