//! Request paths. Tenants can choose names, namespaces, API groups and versions (in an owner reference, an annotation), so only this
//! file builds paths, and each of these values becomes exactly one segment. No value can address another object or add a query.

use std::borrow::Cow;
use std::fmt::Write as _;

use kai_api::{Resource, Scope};
use kube::core::Request;
use kube::core::request::Error;

use crate::Target;

/// Kubernetes allows names of at most 253 characters.
const SEGMENT_BYTES_MAX: usize = 253;
/// Characters of a tenant's text that an error shows.
const PRINTED_CHARS_MAX: usize = 64;

/// The path of a resource's collection.
pub(crate) fn collection(resource: &Resource, namespace: &str) -> Result<String, Error> {
    let (version, plural) = (segment(&resource.version)?, segment(&resource.plural)?);
    let root = match &*resource.group {
        "" => format!("/api/{version}"),
        group => format!("/apis/{}/{version}", segment(group)?),
    };
    match resource.scope {
        Scope::Namespaced if !namespace.is_empty() => Ok(format!("{root}/namespaces/{}/{plural}", segment(namespace)?)),
        Scope::Namespaced | Scope::Cluster => Ok(format!("{root}/{plural}")),
    }
}

/// Requests to a resource's collection.
pub(crate) fn requests(resource: &Resource, namespace: &str) -> Result<Request, Error> {
    collection(resource, namespace).map(Request::new)
}

/// Requests to an object: those of its collection, and the last segment of its path.
pub(crate) fn object<'a>(target: Target<'a>) -> Result<(Request, Cow<'a, str>), Error> {
    Ok((requests(target.resource, target.namespace)?, segment(target.name)?))
}

/// One segment of a path. API servers decode `%2F` to a slash and `%2E%2E` to the parent segment, so escaping does not make these
/// harmless. Kubernetes allows neither slashes nor percent signs in names, nor the names `.` and `..`: all of them are errors here.
/// Other special characters are escaped.
pub(crate) fn segment(text: &str) -> Result<Cow<'_, str>, Error> {
    let is_name = !text.is_empty()
        && text.len() <= SEGMENT_BYTES_MAX
        && text != "."
        && text != ".."
        && !text.contains(['/', '%', '\\'])
        && !text.chars().any(char::is_control);
    if !is_name {
        let start: String = text.chars().take(PRINTED_CHARS_MAX).collect();
        return Err(Error::Validation(format!("Kubernetes allows no such name: {start:?}")));
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte);
    if text.bytes().all(is_plain) {
        return Ok(text.into());
    }
    Ok(escaped(text, is_plain).into())
}

/// The path with a query. Names and values may have any characters.
pub(crate) fn with_query(path: &str, query: &[(&str, &str)]) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let pairs = query
        .iter()
        .map(|(name, value)| format!("{}={}", escaped(name, is_plain), escaped(value, is_plain)));
    let pairs: Vec<String> = pairs.collect();
    match pairs.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{}", pairs.join("&")),
    }
}

fn escaped(text: &str, is_plain: impl Fn(u8) -> bool) -> String {
    let mut escaped = String::with_capacity(text.len() * 3);
    for byte in text.bytes() {
        match is_plain(byte) {
            true => escaped.push(byte.into()),
            false => write!(escaped, "%{byte:02X}").expect("writing to a string can't fail"),
        }
    }
    escaped
}

/// Whether this is a legal name of an API group: a DNS subdomain in lower case.
pub(crate) fn is_group(text: &str) -> bool {
    text.len() <= SEGMENT_BYTES_MAX && text.split('.').all(is_label)
}

/// Whether this is a legal API version: one DNS label.
pub(crate) fn is_version(text: &str) -> bool {
    is_label(text)
}

fn is_label(text: &str) -> bool {
    const LABEL_BYTES_MAX: usize = 63;
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let edges = [text.bytes().next(), text.bytes().last()];
    text.len() <= LABEL_BYTES_MAX
        && edges.iter().all(|edge| edge.is_some_and(is_letter))
        && text.bytes().all(|byte| is_letter(byte) || byte == b'-')
}

/// A tenant's text for logs and messages. A legal name stays as it is; other texts are quoted, escaped and truncated.
pub fn printable(text: &str) -> Cow<'_, str> {
    if segment(text).is_ok_and(|segment| segment == text) {
        return text.into();
    }
    match text.char_indices().nth(PRINTED_CHARS_MAX) {
        Some((end, _)) => format!("{:?}...", &text[..end]).into(),
        None => format!("{text:?}").into(),
    }
}

#[cfg(test)]
mod tests {
    use kai_api::Object;

    use super::*;

    #[test]
    fn paths_follow_group_and_scope() {
        let path = |resource: &Resource, namespace: &str| collection(resource, namespace).unwrap();
        assert_eq!(path(&kai_api::Pod::RESOURCE, "a"), "/api/v1/namespaces/a/pods");
        assert_eq!(path(&kai_api::Pod::RESOURCE, ""), "/api/v1/pods");
        assert_eq!(path(&kai_api::Node::RESOURCE, ""), "/api/v1/nodes");
        assert_eq!(path(&kai_api::Queue::RESOURCE, ""), "/apis/scheduling.run.ai/v2/queues");
    }

    #[test]
    fn no_words_leave_their_segment() {
        let long = "a".repeat(10_000);
        for bad in [
            "", ".", "..", "a/b", "../x", "%2e%2e", "a%2Fb", "a\\b", "a\nb", "a\0", &long,
        ] {
            assert!(segment(bad).is_err(), "{bad:?}");
        }
        for (text, expect) in [
            ("gpu-reservation-0a", "gpu-reservation-0a"),
            ("system:node:a", "system:node:a"),
            ("?x=", "%3Fx%3D"),
            ("a#b&c d", "a%23b%26c%20d"),
            ("ä", "%C3%A4"),
        ] {
            assert_eq!(segment(text).unwrap(), expect);
        }
    }

    #[test]
    fn every_part_of_a_path_is_checked() {
        let resource = |group: &str, version: &str, plural: &str| Resource {
            group: group.to_owned().into(),
            version: version.to_owned().into(),
            kind: "Kind".into(),
            plural: plural.to_owned().into(),
            scope: Scope::Namespaced,
        };
        let good = resource("g.io", "v1", "kinds");
        assert!(collection(&good, "a").is_ok());
        for (bad, namespace) in [
            (resource("..", "v1", "kinds"), "a"),
            (resource("g.io", "../../api/v1", "kinds"), "a"),
            (resource("g.io", "v1", "../secrets"), "a"),
            (good.clone(), "a/secrets/b"),
        ] {
            assert!(collection(&bad, namespace).is_err(), "{bad:?} {namespace}");
        }
        let target = |name: &'static str| Target {
            resource: const { &kai_api::Pod::RESOURCE },
            namespace: "a",
            name,
        };
        assert!(object(target("../../kube-system/pods/x")).is_err());
        assert_eq!(object(target("x?y")).unwrap().1, "x%3Fy");
    }

    #[test]
    fn groups_and_versions_are_dns_names() {
        assert!(is_group("kubeflow.org") && is_group("apps") && is_version("v1beta1"));
        let long = "v".repeat(10_000);
        for bad in [
            "", ".", "..", "a..b", "a/b", "?x=", "%2e%2e", "V1", "-v1", "v1-", "v 1", &long,
        ] {
            assert!(!is_group(bad) && !is_version(bad), "{bad:?}");
        }
    }

    #[test]
    fn words_are_shown_short_and_harmless() {
        assert_eq!(printable("llm-0"), "llm-0");
        assert_eq!(printable("a\u{1b}[31m\n"), r#""a\u{1b}[31m\n""#);
        assert!(printable(&"x".repeat(10_000)).len() < 100);
    }
}
