//! How objects go out: as they are, as metadata only, or as tables; in the version that was asked for. Pure.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::table;
use crate::server::kinds::Kind;
use crate::server::object::Object;
use crate::server::rules::events;
use crate::server::store::Page;

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Whole objects.
    Object,
    /// `PartialObjectMetadata`.
    Metadata,
    /// `Table`.
    Table,
}

impl Format {
    /// The first form of an `Accept` header that we can make.
    pub(super) fn of_accept(accept: &str) -> Self {
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            if !matches!(parts.next(), Some("application/json" | "*/*" | "application/*")) {
                continue;
            }
            match parts.find_map(|p| p.strip_prefix("as=")) {
                None => return Self::Object,
                Some("Table") => return Self::Table,
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") => return Self::Metadata,
                Some(_) => {}
            }
        }
        Self::Object
    }
}

/// An object in the version that was asked for.
pub(super) fn in_version(kind: &Kind, object: &Object) -> Bytes {
    let asked = kind.api_version();
    if object["apiVersion"] == *asked {
        return object.json();
    }
    Bytes::from(converted(kind, object).to_string())
}

fn converted(kind: &Kind, object: &Value) -> Value {
    if kind.is("events.k8s.io", "events") {
        return events::from_core(object);
    }
    let mut value = object.clone();
    value["apiVersion"] = json!(kind.api_version());
    value
}

/// One object.
pub(super) fn one(kind: &Kind, object: &Object, format: Format, now: jiff::Timestamp) -> Bytes {
    match format {
        Format::Object => in_version(kind, object),
        Format::Metadata => Bytes::from(metadata_only(object).to_string()),
        Format::Table => {
            let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
            Bytes::from(table::table(kind, std::slice::from_ref(object), metadata, true, now).to_string())
        }
    }
}

/// A list.
pub(super) fn list(kind: &Kind, page: &Page, format: Format, now: jiff::Timestamp) -> Bytes {
    let metadata = list_metadata(page);
    match format {
        Format::Table => Bytes::from(table::table(kind, &page.objects, metadata, true, now).to_string()),
        Format::Metadata => {
            let items: Value = page.objects.iter().map(|o| metadata_only(o)).collect();
            let list = json!({
                "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items
            });
            Bytes::from(list.to_string())
        }
        Format::Object => {
            let head = format!(
                "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[",
                kind.list_kind,
                kind.api_version()
            );
            let mut text = Vec::from(head);
            for (at, object) in page.objects.iter().enumerate() {
                if at > 0 {
                    text.push(b',');
                }
                text.extend_from_slice(&in_version(kind, object));
            }
            text.extend_from_slice(b"]}");
            Bytes::from(text)
        }
    }
}

fn list_metadata(page: &Page) -> Value {
    let mut metadata = Map::new();
    metadata.insert("resourceVersion".to_owned(), json!(page.revision.to_string()));
    if let Some(next) = &page.next {
        metadata.insert("continue".to_owned(), json!(super::resources::continue_text(next)));
        metadata.insert("remainingItemCount".to_owned(), json!(page.remaining));
    }
    Value::Object(metadata)
}

/// An object without all but its metadata.
pub(super) fn metadata_only(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(Format::of_accept(table), Format::Table);
        assert_eq!(Format::of_accept("application/json"), Format::Object);
        assert_eq!(Format::of_accept(""), Format::Object);
        let metadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        assert_eq!(Format::of_accept(metadata), Format::Metadata);
        assert_eq!(
            Format::of_accept("application/vnd.kubernetes.protobuf, application/json;as=Table"),
            Format::Table
        );
    }
}
