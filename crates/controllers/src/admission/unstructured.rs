//! Looks into objects as they come: any field may be absent or of another shape than the API says. Reading only, and never a panic.
//! Each look counts as a step of work (`kai_engine::steps`).

use std::borrow::Cow;

use kai_engine::steps;
use serde_json::Value;

/// The lists of containers that a pod can have, in the order in which a container is searched by name.
pub(crate) const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// A text below the object; `None` if it is absent, empty or no text.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    steps::count(1);
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
}

/// Labels or annotations. A value that is no text is shown as its JSON, so that whoever parses it refuses it.
pub(crate) fn entries<'a>(object: &'a Value, map: MetadataMap) -> impl Iterator<Item = (&'a str, Cow<'a, str>)> {
    let map = object.pointer(map.pointer()).and_then(Value::as_object);
    map.into_iter()
        .flatten()
        .inspect(|_| steps::count(1))
        .map(|(key, value)| (key.as_str(), shown(value)))
}

/// One label or annotation. Present and empty differs from absent.
pub(crate) fn entry<'a>(object: &'a Value, map: MetadataMap, key: &str) -> Option<Cow<'a, str>> {
    steps::count(1);
    object.pointer(map.pointer())?.get(key).map(shown)
}

/// The elements of a list below the value; none if it is no list.
pub(crate) fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    let list = object
        .pointer(pointer)
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    // Whoever asks for a list walks over it.
    steps::count(1 + list.len());
    list
}

/// Where a key stands.
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

    /// As people write it.
    pub(crate) fn path(self) -> &'static str {
        match self {
            MetadataMap::Labels => "metadata.labels",
            MetadataMap::Annotations => "metadata.annotations",
        }
    }
}

fn shown(value: &Value) -> Cow<'_, str> {
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
