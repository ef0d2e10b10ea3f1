//! Schema parts that several kinds share, and the post-processing of generated schemas.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value};

/// The API server's pattern of quantities.
const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// An RFC 1123 label: names of subgroups.
pub(super) const LABEL_PATTERN: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// A qualified name: an optional DNS prefix, a slash, a name.
pub(super) const QUALIFIED_NAME_PATTERN: &str =
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";

/// One quantity.
pub(super) fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-int-or-string": true, "pattern": QUANTITY_PATTERN })
}

/// Quantities by resource name.
pub(super) fn resource_list(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": quantity(generator) })
}

/// A point in time.
pub(super) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// The standard conditions of Kubernetes.
pub(super) fn conditions(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": time(generator),
                "message": { "type": "string", "maxLength": 32768 },
                "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0 },
                "reason": {
                    "type": "string",
                    "maxLength": 1024,
                    "minLength": 1,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
                },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
                "type": { "type": "string", "maxLength": 316, "pattern": QUALIFIED_NAME_PATTERN }
            }
        }
    })
}

/// A type of Kubernetes without its descriptions: they would be most of the file, and `kubectl explain` has them at their own kind.
pub(super) fn embedded<T: JsonSchema>(_: &mut SchemaGenerator) -> Schema {
    let mut settings = SchemaSettings::openapi3();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let mut value = settings.into_generator().into_root_schema_for::<T>().to_value();
    tidy(&mut value);
    Schema::try_from(value).expect("a schema without its descriptions is a schema")
}

fn tidy(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    schema.remove("description");
    schema.remove("title");
    // No embedded type has a port or percentage, so every `int-or-string` is a quantity.
    if schema.contains_key("x-kubernetes-int-or-string") {
        schema.insert("pattern".to_owned(), QUANTITY_PATTERN.into());
    }
    // Without this, the API server would drop the parameters of device drivers.
    let is_object = schema.get("type").is_some_and(|kind| kind == "object");
    if is_object && !schema.contains_key("properties") && !schema.contains_key("additionalProperties") {
        schema.insert("x-kubernetes-preserve-unknown-fields".to_owned(), true.into());
    }
    nested(schema).for_each(tidy);
}

/// The nested schemas of a schema: fields, list entries and map values.
pub(super) fn nested(schema: &mut Map<String, Value>) -> impl Iterator<Item = &mut Value> {
    schema.iter_mut().flat_map(|(key, value)| match (key.as_str(), value) {
        ("properties", Value::Object(fields)) => fields.values_mut().collect::<Vec<_>>(),
        ("items" | "additionalProperties", schema) => vec![schema],
        _ => Vec::new(),
    })
}
