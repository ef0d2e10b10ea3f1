//! Validation of metadata. Pure.

use serde_json::{Value, json};

use super::names;
use crate::server::status_error::Cause;

/// The size limit of all annotations of an object, as in Kubernetes.
const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;
/// Finalizers without a domain prefix.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

pub(super) fn check(metadata: &Value) -> Vec<Cause> {
    let mut causes = check_owners(&metadata["ownerReferences"]);
    causes.extend(check_labels(&metadata["labels"], "metadata.labels"));
    causes.extend(check_annotations(&metadata["annotations"], "metadata.annotations"));
    for (at, finalizer) in items(&metadata["finalizers"]).enumerate() {
        let name = finalizer.as_str().unwrap_or("");
        if !name.contains('/') && !STANDARD_FINALIZERS.contains(&name) {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            causes.push(Cause::invalid(format!("metadata.finalizers[{at}]"), finalizer, why));
        }
    }
    causes
}

/// Checks labels, or the labels of a selector.
pub(super) fn check_labels(labels: &Value, path: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (key, value) in labels.as_object().into_iter().flatten() {
        let invalid = |value: Value| move |why: &String| Cause::invalid(path, &value, why);
        causes.extend(names::qualified(key).iter().map(invalid(json!(key))));
        let text = value.as_str().unwrap_or("");
        causes.extend(names::label_value(text).iter().map(invalid(json!(text))));
    }
    causes
}

fn check_annotations(annotations: &Value, path: &str) -> Vec<Cause> {
    let entries = || annotations.as_object().into_iter().flatten();
    let problems = |key: &String| {
        // Kubernetes allows capitals in the domain prefix of annotations.
        let found = names::qualified(&key.to_lowercase());
        found
            .into_iter()
            .map(|why| Cause::invalid(path, &json!(key), why))
            .collect::<Vec<_>>()
    };
    let mut causes: Vec<Cause> = entries().flat_map(|(key, _)| problems(key)).collect();
    let bytes: usize = entries()
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    if bytes > ANNOTATIONS_BYTES_MAX {
        causes.push(Cause::too_long(path, ANNOTATIONS_BYTES_MAX));
    }
    causes
}

fn check_owners(owners: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for owner in items(owners) {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().unwrap_or("").is_empty() {
                let why = if field == "apiVersion" {
                    "version must not be empty"
                } else {
                    "must not be empty"
                };
                causes.push(Cause::invalid(
                    format!("metadata.ownerReferences.{field}"),
                    &json!(""),
                    why,
                ));
            }
        }
    }
    let mut controllers = items(owners).filter(|owner| owner["controller"] == true);
    if let (Some(first), Some(second)) = (controllers.next(), controllers.next()) {
        let name = |owner: &Value| {
            let text = |field: &str| owner[field].as_str().unwrap_or("").to_owned();
            format!("{}/{}", text("kind"), text("name"))
        };
        let why = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {} and {}",
            name(first),
            name(second)
        );
        causes.push(Cause::invalid("metadata.ownerReferences", owners, why));
    }
    causes
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels() {
        let causes = |labels: Value| check(&json!({"labels": labels})).len();
        assert_eq!(causes(json!({"kai.scheduler/queue": "a", "x": ""})), 0);
        assert_eq!(causes(json!({"x": "a b"})), 1);
        assert_eq!(causes(json!({"a/b/c": "1"})), 1);
    }

    #[test]
    fn owners_have_all_their_fields_and_one_controls() {
        let owner = |uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": uid, "controller": true});
        assert!(check(&json!({"ownerReferences": [owner("1")]})).is_empty());
        assert_eq!(check(&json!({"ownerReferences": [owner("1"), owner("2")]})).len(), 1);
        assert_eq!(check(&json!({"ownerReferences": [{}]})).len(), 4);
    }

    #[test]
    fn annotations_are_bounded() {
        let long = "x".repeat(ANNOTATIONS_BYTES_MAX);
        assert_eq!(
            check(&json!({"annotations": {"a": long}}))[0].reason,
            "FieldValueTooLong"
        );
        assert!(check(&json!({"annotations": {"Example.com/A": "b"}})).is_empty());
    }
}
