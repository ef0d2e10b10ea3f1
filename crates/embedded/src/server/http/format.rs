//! The forms of objects in responses: whole objects, metadata only, or tables, in the requested version. Pure.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::table;
use crate::server::kinds::Kind;
use crate::server::object::Object;
use crate::server::rules::events;
use crate::server::status_error::StatusError;
use crate::server::store::Page;

/// The form of objects in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Whole objects.
    Object,
    /// `PartialObjectMetadata`.
    Metadata,
    /// `Table`.
    Table(Rows),
}

/// Options of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rows {
    /// Whether the table has column definitions.
    pub(super) with_columns: bool,
    pub(super) object: RowObject,
}

/// The part of the object in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowObject {
    /// Nothing.
    None,
    /// `PartialObjectMetadata`.
    Metadata,
    /// The whole object.
    Whole,
}

impl Rows {
    pub(super) fn with_columns(self, with_columns: bool) -> Self {
        Self { with_columns, ..self }
    }
}

impl Format {
    /// The first supported form of an `Accept` header.
    pub(super) fn of_request(accept: &str, include_object: &str) -> Result<Self, StatusError> {
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or("");
            // Responses are JSON; clients that accept only YAML or protobuf read JSON too.
            let read = ["", "*/*", "application/*", "application/json", "application/yaml"];
            if !read.contains(&media) && !media.starts_with("application/vnd.kubernetes.protobuf") {
                continue;
            }
            match parts.find_map(|p| p.strip_prefix("as=")) {
                None if media.contains("protobuf") && accept.contains("json") => {}
                None => return Ok(Self::Object),
                Some("Table") => return RowObject::of_query(include_object).map(Self::table),
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") => return Ok(Self::Metadata),
                Some(_) => {}
            }
        }
        let message = "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, \
                       application/vnd.kubernetes.protobuf";
        Err(StatusError::of_code(406, message).with_empty_details())
    }

    fn table(object: RowObject) -> Self {
        Self::Table(Rows {
            with_columns: true,
            object,
        })
    }
}

impl RowObject {
    fn of_query(include_object: &str) -> Result<Self, StatusError> {
        match include_object {
            "None" => Ok(Self::None),
            "" | "Metadata" => Ok(Self::Metadata),
            "Object" => Ok(Self::Whole),
            other => Err(StatusError::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', \
                 'Object', 'None', or empty"
            ))),
        }
    }
}

/// An object in the requested version.
pub(super) fn in_version(kind: &Kind, object: &Object) -> Bytes {
    let asked = kind.api_version();
    if object["apiVersion"] == *asked {
        return object.json();
    }
    Bytes::from(converted(kind, object).to_string())
}

pub(super) fn converted(kind: &Kind, object: &Value) -> Value {
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
        Format::Table(rows) => {
            let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
            Bytes::from(table::table(kind, std::slice::from_ref(object), metadata, rows, now).to_string())
        }
    }
}

/// A list.
pub(super) fn list(kind: &Kind, page: &Page, format: Format, now: jiff::Timestamp) -> Bytes {
    let metadata = list_metadata(page);
    match format {
        Format::Table(rows) => Bytes::from(table::table(kind, &page.objects, metadata, rows, now).to_string()),
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
        metadata.insert("continue".to_owned(), json!(super::resources::encode_continue(next)));
        metadata.insert("remainingItemCount".to_owned(), json!(page.remaining));
    }
    Value::Object(metadata)
}

/// The `PartialObjectMetadata` of an object.
pub(super) fn metadata_only(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts() {
        let of = |accept: &str| Format::of_request(accept, "").unwrap();
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(of(table), Format::table(RowObject::Metadata));
        assert_eq!(of("application/json"), Format::Object);
        assert_eq!(of(""), Format::Object);
        assert_eq!(of("application/vnd.kubernetes.protobuf"), Format::Object);
        let metadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        assert_eq!(of(metadata), Format::Metadata);
        assert_eq!(
            of("application/vnd.kubernetes.protobuf, application/json;as=Table"),
            Format::table(RowObject::Metadata)
        );
        assert_eq!(Format::of_request("text/csv", "").unwrap_err().code, 406);
    }

    #[test]
    fn rows_carry_what_include_object_says() {
        let of = |include: &str| Format::of_request("application/json;as=Table", include);
        assert_eq!(of("Object").unwrap(), Format::table(RowObject::Whole));
        assert_eq!(of("None").unwrap(), Format::table(RowObject::None));
        assert_eq!(of("Half").unwrap_err().code, 400);
    }
}
