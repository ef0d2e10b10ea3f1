//! Read access to untyped JSON objects, like Kubernetes' `unstructured`: any field may be absent or of another type than the API says,
//! and reading it never panics. Each read counts as a step of work (`kai_engine::steps`).

use std::borrow::Cow;

use kai_engine::steps;
use serde_json::Value;

/// The container lists of a pod, in the order in which a container is searched by name.
pub(crate) const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The string at the pointer; `None` if it is absent, empty or of another type.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    steps::count(1);
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
}

/// All labels or annotations. A value that is no string is returned as its JSON, so that the parser denies it.
pub(crate) fn entries<'a>(object: &'a Value, map: MetadataMap) -> impl Iterator<Item = (&'a str, Cow<'a, str>)> {
    let map = object.pointer(map.pointer()).and_then(Value::as_object);
    map.into_iter()
        .flatten()
        .inspect(|_| steps::count(1))
        .map(|(key, value)| (key.as_str(), as_text(value)))
}

/// One label or annotation. An empty value differs from an absent one.
pub(crate) fn entry<'a>(object: &'a Value, map: MetadataMap, key: &str) -> Option<Cow<'a, str>> {
    steps::count(1);
    object.pointer(map.pointer())?.get(key).map(as_text)
}

/// The elements of the list at the pointer; none if there is no list.
pub(crate) fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    let list = object
        .pointer(pointer)
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    // Callers walk over the list.
    steps::count(1 + list.len());
    list
}

/// The two maps of an object's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetadataMap {
    /// `metadata.labels`.
    Labels,
    /// `metadata.annotations`.
    Annotations,
}

impl MetadataMap {
    fn pointer(self) -> &'static str {
        match self {
            MetadataMap::Labels => "/metadata/labels",
            MetadataMap::Annotations => "/metadata/annotations",
        }
    }

    /// The path for messages.
    pub(crate) fn path(self) -> &'static str {
        match self {
            MetadataMap::Labels => "metadata.labels",
            MetadataMap::Annotations => "metadata.annotations",
        }
    }
}

fn as_text(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn any_shape_can_be_looked_at() {
        for object in [
            json!(null),
            json!([]),
            json!({"metadata": 3}),
            json!({"metadata": {"labels": []}}),
        ] {
            assert_eq!(text(&object, "/metadata/name"), None);
            assert_eq!(entries(&object, MetadataMap::Labels).count(), 0);
            assert_eq!(entry(&object, MetadataMap::Annotations, "a"), None);
            assert!(list(&object, "/metadata").is_empty());
        }
        let odd = json!({"metadata": {"annotations": {"gpu-fraction": 0.5}}});
        assert_eq!(
            entry(&odd, MetadataMap::Annotations, "gpu-fraction").as_deref(),
            Some("0.5")
        );
    }
}
