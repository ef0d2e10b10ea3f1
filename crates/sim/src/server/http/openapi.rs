//! Just enough OpenAPI for stock clients: which kinds there are and that writes take `fieldValidation`. Their schemas are
//! open, so that no client refuses an object before the server has seen it.

use serde_json::{Map, Value, json};

use crate::server::kinds::{Kind, Kinds, api_version};
use crate::server::refusal::Refusal;

pub(super) fn version2() -> Value {
    json!({"swagger": "2.0", "info": {"title": "Kubernetes", "version": "embedded"}, "paths": {}, "definitions": {}})
}

/// The index, or the document of one group and version.
pub(super) fn version3(kinds: &Kinds, path: &str) -> Result<Value, Refusal> {
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
    let (group, version) = found.ok_or_else(Refusal::no_such_path)?;
    let of_group = kinds.iter().filter(|k| k.group == group && k.version == version);
    let (mut paths, mut schemas) = (Map::new(), Map::new());
    for kind in of_group {
        let name = schema_name(kind);
        schemas.insert(name.clone(), schema(kind));
        paths.extend(kind_paths(kind, &name));
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

fn schema(kind: &Kind) -> Value {
    let custom = kind.custom.as_ref().and_then(|c| c.schema.as_deref().cloned());
    let mut schema = custom.unwrap_or_else(|| {
        let text = json!({"type": "string"});
        json!({"type": "object", "properties": {"apiVersion": text, "kind": text, "metadata": {"type": "object"}}})
    });
    schema["x-kubernetes-group-version-kind"] = json!([group_version_kind(kind)]);
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
