//! OpenAPI documents for stock clients: the kinds, the parameter `fieldValidation` of writes, and the schemas for `kubectl explain`.
//! Version 2 has no schemas, so that no old client rejects an object before the server sees it.

use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Map, Value, json};

use super::schemas::Schemas;
use super::{Body, json_response, value_response};
use crate::server::kinds::{Kind, Kinds, api_version};
use crate::server::object::field_mut;
use crate::server::status_error::StatusError;

/// The media type of version 2 that kubectl requests when version 3 has no schema of a kind.
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// Version 2, in the media type that the client accepts.
pub(super) fn version2(accept: &str) -> Response<Body> {
    if !accept.contains("proto-openapi") {
        return value_response(&json!({
            "swagger": "2.0", "info": {"title": "Kubernetes", "version": "embedded"}, "paths": {}, "definitions": {}
        }));
    }
    // The document as a protobuf message: field 1 is the version, field 2 has title and version.
    let field = |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8], bytes].concat();
    let info = [field(1, b"Kubernetes"), field(2, b"embedded")].concat();
    let mut response = json_response(StatusCode::OK, [field(1, b"2.0"), field(2, &info)].concat());
    let content_type = HeaderValue::from_static(PROTOBUF);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

/// The index, or the document of one group and version.
pub(super) fn version3(kinds: &Kinds, path: &str) -> Result<Value, StatusError> {
    let groups = || {
        let mut all: Vec<(String, String)> = kinds.iter().map(|k| (k.group.clone(), k.version.clone())).collect();
        all.dedup();
        all
    };
    if path.is_empty() {
        let entry = |(group, version): (String, String)| {
            let path = group_path(&group, &version);
            (
                path.clone(),
                json!({"serverRelativeURL": format!("/openapi/v3/{path}")}),
            )
        };
        let paths: Map<String, Value> = groups().into_iter().map(entry).collect();
        return Ok(json!({"paths": paths}));
    }
    let found = groups()
        .into_iter()
        .find(|(group, version)| group_path(group, version) == path);
    let (group, version) = found.ok_or_else(StatusError::no_such_path)?;
    let of_group = kinds.iter().filter(|k| k.group == group && k.version == version);
    let (mut paths, mut schemas, mut customs) = (Map::new(), Schemas::new(), Map::new());
    let mut named = Vec::new();
    for kind in of_group {
        let name = schemas.add(kind).unwrap_or_else(|| {
            let name = schema_name(kind);
            let metadata = schemas.add_metadata();
            customs.insert(name.clone(), custom_schema(kind, &metadata));
            name
        });
        paths.extend(kind_paths(kind, &name));
        named.push((name, group_version_kind(kind)));
    }
    let mut schemas = schemas.done();
    schemas.append(&mut customs);
    for (name, kind) in named {
        if let Some(schema) = schemas.get_mut(&name) {
            schema["x-kubernetes-group-version-kind"] = json!([kind]);
        }
    }
    Ok(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "embedded"},
        "paths": paths,
        "components": {"schemas": schemas},
    }))
}

fn group_path(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("api/{version}")
    } else {
        format!("apis/{group}/{version}")
    }
}

fn schema_name(kind: &Kind) -> String {
    let group = if kind.group.is_empty() { "core" } else { &kind.group };
    format!("{group}.{}.{}", kind.version, kind.kind)
}

fn group_version_kind(kind: &Kind) -> Value {
    json!({"group": kind.group, "version": kind.version, "kind": kind.kind})
}

fn custom_schema(kind: &Kind, metadata: &str) -> Value {
    let schema = kind.custom.as_ref().and_then(|custom| custom.schema.as_deref());
    let mut schema = schema.cloned().unwrap_or_else(|| json!({"type": "object"}));
    let text = |description: &str| json!({"type": "string", "description": description});
    let properties = field_mut(&mut schema, "properties");
    properties.insert(
        "apiVersion".to_owned(),
        text("The group and version of the object's schema."),
    );
    properties.insert("kind".to_owned(), text("The kind of the object."));
    let metadata = json!({"allOf": [{"$ref": format!("#/components/schemas/{metadata}")}]});
    properties.insert("metadata".to_owned(), metadata);
    schema
}

fn kind_paths(kind: &Kind, schema_name: &str) -> [(String, Value); 2] {
    let base = if kind.group.is_empty() { "/api" } else { "/apis" };
    let within = if kind.namespaced() {
        "namespaces/{namespace}/"
    } else {
        ""
    };
    let all = format!(
        "{base}/{}/{within}{}",
        api_version(&kind.group, &kind.version),
        kind.plural
    );
    let operation = |action: &str, content: &str| {
        let parameter = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string"}});
        json!({
            "parameters": [parameter("dryRun"), parameter("fieldManager"), parameter("fieldValidation")],
            "requestBody": {"content": {content: {"schema": {"$ref": format!("#/components/schemas/{schema_name}")}}}},
            "responses": {},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": group_version_kind(kind),
        })
    };
    let one = json!({
        "put": operation("put", "application/json"),
        "patch": operation("patch", "application/apply-patch+yaml"),
    });
    [
        (format!("{all}/{{name}}"), one),
        (all, json!({"post": operation("post", "application/json")})),
    ]
}
