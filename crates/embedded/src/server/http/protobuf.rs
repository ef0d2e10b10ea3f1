//! Decodes request bodies in Kubernetes' protobuf form to JSON, by the table of the API's types: `kubectl create` and `kubectl drain`
//! send protobuf only. Responses are always JSON, which these commands accept.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::server::status_error::StatusError;
use crate::server::types::{Form, is_empty, types};

/// The prefix of every message.
const MAGIC: &[u8] = b"k8s\0";
/// The deepest nesting of messages. The JSON schemas of definitions are the deepest messages and stay far below.
const DEPTH_MAX: usize = 64;
const SCHEMA: &str = "apiextensions.v1.JSONSchemaProps";

/// One field of a message in wire format.
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The object in a request body.
pub(super) fn decode(body: &[u8]) -> Result<Value, StatusError> {
    let bad =
        || StatusError::bad_request("the body of the request is not a protobuf message that this server can read");
    let envelope = body.strip_prefix(MAGIC).ok_or_else(bad)?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for (number, wire) in fields(envelope).ok_or_else(bad)? {
        match (number, wire) {
            (1, Wire::Bytes(names)) => {
                for (number, wire) in fields(names).ok_or_else(bad)? {
                    if let Wire::Bytes(text) = wire {
                        let text = String::from_utf8_lossy(text).into_owned();
                        if number == 1 { api_version = text } else { kind = text }
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let unknown = || {
        StatusError::of_code(
            415,
            format!("this server reads {api_version} {kind} as JSON and YAML only"),
        )
    };
    // DeleteOptions come in the apiVersion of the deleted object.
    let message = types()
        .of_kind(&api_version, &kind)
        .or_else(|| (kind == "DeleteOptions").then_some("meta.v1.DeleteOptions"))
        .ok_or_else(unknown)?;
    let mut object = Map::new();
    read_message(raw, message, &mut object, 0).ok_or_else(bad)?;
    object.insert("apiVersion".to_owned(), json!(api_version));
    object.insert("kind".to_owned(), json!(kind));
    Ok(Value::Object(object))
}

fn read_message(bytes: &[u8], message: &str, object: &mut Map<String, Value>, depth: usize) -> Option<()> {
    if depth > DEPTH_MAX {
        return None;
    }
    let known = types().get(message)?;
    for (number, wire) in fields(bytes)? {
        let Some(field) = known.by_number(number) else { continue };
        let base = field.of.base;
        if field.name == "=" {
            let Wire::Bytes(bytes) = wire else { return None };
            read_message(bytes, base, object, depth + 1)?;
            continue;
        }
        match field.of.form {
            Form::List => {
                let value = read_value(&wire, base, depth)?;
                if let Value::Array(list) = object.entry(field.name).or_insert(json!([])) {
                    list.push(value);
                }
            }
            Form::Map => {
                let Wire::Bytes(entry) = wire else { return None };
                let (key, value) = read_entry(entry, base, depth)?;
                if let Value::Object(map) = object.entry(field.name).or_insert(json!({})) {
                    map.insert(key, value);
                }
            }
            Form::One => {
                let value = read_value(&wire, base, depth)?;
                // Go writes every field that is no pointer, even an empty one.
                if field.of.pointer || !is_empty(&value) {
                    object.insert(field.name.to_owned(), value);
                }
            }
        }
    }
    Some(())
}

fn read_entry(bytes: &[u8], of_type: &str, depth: usize) -> Option<(String, Value)> {
    let (mut key, mut value) = (String::new(), None);
    for (number, wire) in fields(bytes)? {
        match (number, &wire) {
            (1, Wire::Bytes(text)) => key = String::from_utf8_lossy(text).into_owned(),
            _ => value = Some(read_value(&wire, of_type, depth)?),
        }
    }
    Some((key, value.unwrap_or_else(|| json!(""))))
}

fn read_value(wire: &Wire<'_>, of_type: &str, depth: usize) -> Option<Value> {
    match (of_type, wire) {
        ("bool", Wire::Number(number)) => Some(json!(*number != 0)),
        // Negative numbers are in two's complement.
        ("int" | "int32" | "int64", Wire::Number(number)) => Some(json!(*number as i64)),
        ("float64", Wire::Number(bits)) => Some(json!(f64::from_bits(*bits))),
        ("string", Wire::Bytes(bytes)) => Some(json!(String::from_utf8_lossy(bytes))),
        ("bytes", Wire::Bytes(bytes)) => Some(json!(STANDARD.encode(bytes))),
        ("time" | "microtime", Wire::Bytes(bytes)) => read_time(bytes),
        ("quantity", Wire::Bytes(bytes)) => Some(first_text(bytes)?),
        ("intstr", Wire::Bytes(bytes)) => read_int_or_string(bytes),
        ("duration", Wire::Bytes(bytes)) => read_duration(bytes),
        ("strings", Wire::Bytes(bytes)) => Some(texts(bytes)?.into_iter().map(Value::String).collect()),
        ("schema-or-list" | "schema-or-bool" | "schema-or-strings", Wire::Bytes(bytes)) => {
            read_schema_or(bytes, of_type, depth)
        }
        ("raw", Wire::Bytes(bytes)) => match fields(bytes)?.first() {
            Some((_, Wire::Bytes(raw))) => Some(serde_json::from_slice(raw).unwrap_or_default()),
            _ => Some(Value::Null),
        },
        (message, Wire::Bytes(bytes)) => {
            let mut object = Map::new();
            read_message(bytes, message, &mut object, depth + 1)?;
            Some(Value::Object(object))
        }
        (_, Wire::Number(_)) => None,
    }
}

fn read_time(bytes: &[u8]) -> Option<Value> {
    let (mut seconds, mut nanos) = (0, 0);
    for (number, wire) in fields(bytes)? {
        if let Wire::Number(value) = wire {
            if number == 1 {
                seconds = value as i64
            } else {
                nanos = value as i32
            }
        }
    }
    if seconds == 0 && nanos == 0 {
        return Some(Value::Null);
    }
    Some(json!(jiff::Timestamp::new(seconds, nanos).ok()?.to_string()))
}

fn read_int_or_string(bytes: &[u8]) -> Option<Value> {
    let (mut is_text, mut number, mut text) = (false, 0, String::new());
    for (field, wire) in fields(bytes)? {
        match (field, wire) {
            (1, Wire::Number(kind)) => is_text = kind == 1,
            (2, Wire::Number(value)) => number = value as i64,
            (3, Wire::Bytes(value)) => text = String::from_utf8_lossy(value).into_owned(),
            _ => {}
        }
    }
    Some(if is_text { json!(text) } else { json!(number) })
}

/// A JSON schema, or the alternative, which has field number 2.
fn read_schema_or(bytes: &[u8], of_type: &str, depth: usize) -> Option<Value> {
    let (mut schema, mut others) = (None, Vec::new());
    let mut allows = false;
    for (number, wire) in fields(bytes)? {
        match (of_type, number, &wire) {
            ("schema-or-bool", 1, Wire::Number(number)) => allows = *number != 0,
            ("schema-or-bool", 2, wire) | ("schema-or-list" | "schema-or-strings", 1, wire) => {
                schema = Some(read_value(wire, SCHEMA, depth + 1)?);
            }
            ("schema-or-list", 2, wire) => others.push(read_value(wire, SCHEMA, depth + 1)?),
            ("schema-or-strings", 2, wire) => others.push(read_value(wire, "string", depth + 1)?),
            _ => {}
        }
    }
    Some(match (schema, of_type) {
        (Some(schema), _) => schema,
        (None, "schema-or-bool") => json!(allows),
        (None, _) => Value::Array(others),
    })
}

fn read_duration(bytes: &[u8]) -> Option<Value> {
    let nanos = fields(bytes)?.into_iter().find_map(|(_, wire)| match wire {
        Wire::Number(nanos) => Some(nanos as i64),
        Wire::Bytes(_) => None,
    });
    Some(json!(format!("{}ns", nanos.unwrap_or(0))))
}

fn texts(bytes: &[u8]) -> Option<Vec<String>> {
    let texts = fields(bytes)?.into_iter().filter_map(|(_, wire)| match wire {
        Wire::Bytes(text) => Some(String::from_utf8_lossy(text).into_owned()),
        Wire::Number(_) => None,
    });
    Some(texts.collect())
}

fn first_text(bytes: &[u8]) -> Option<Value> {
    Some(json!(texts(bytes)?.into_iter().next().unwrap_or_default()))
}

/// The fields of a message; `None` if the message is truncated or has a wire type that Kubernetes does not use.
fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Wire<'_>)>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let wire = match tag & 7 {
            0 => Wire::Number(varint(&mut bytes)?),
            1 => Wire::Number(u64::from_le_bytes(bytes.split_off(..8)?.try_into().ok()?)),
            2 => {
                let len = usize::try_from(varint(&mut bytes)?).ok()?;
                Wire::Bytes(bytes.split_off(..len)?)
            }
            5 => Wire::Number(u64::from(u32::from_le_bytes(bytes.split_off(..4)?.try_into().ok()?))),
            _ => return None,
        };
        found.push((tag >> 3, wire));
    }
    Some(found)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
        out.extend_from_slice(bytes);
        out
    }

    fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let names = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [MAGIC, &field(1, &names), &field(2, raw)].concat()
    }

    #[test]
    fn a_config_map() {
        let metadata = [field(1, b"name"), field(3, b"")].concat();
        let entry = [field(1, b"key"), field(2, b"value")].concat();
        let raw = [field(1, &metadata), field(2, &entry)].concat();
        let expect =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "name"}, "data": {"key": "value"}});
        assert_eq!(decode(&envelope("v1", "ConfigMap", &raw)).unwrap(), expect);
    }

    #[test]
    fn bad_bodies_are_refused() {
        assert_eq!(decode(b"nonsense").unwrap_err().code, 400);
        assert_eq!(decode(&envelope("v9", "Thing", b"")).unwrap_err().code, 415);
        assert_eq!(
            decode(&envelope("v1", "ConfigMap", &[0x0a, 0x7f])).unwrap_err().code,
            400
        );
    }

    #[test]
    fn a_definition_with_its_schemas() {
        // spec.versions[0].schema.openAPIV3Schema: {additionalProperties: {type: string}, items: [{type: integer}]}
        let text = field(5, b"string");
        let rest = [vec![0x08, 1], field(2, &text)].concat();
        let items = field(2, &field(5, b"integer"));
        // Numbers above 15 have tags of two bytes.
        let schema = [
            vec![0xf2, 0x01, rest.len() as u8],
            rest,
            vec![0xc2, 0x01, items.len() as u8],
            items,
        ]
        .concat();
        let version = field(4, &field(1, &schema));
        let raw = field(2, &field(7, &version));
        let read = decode(&envelope("apiextensions.k8s.io/v1", "CustomResourceDefinition", &raw)).unwrap();
        let schema = &read["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let expect = json!({"additionalProperties": {"type": "string"}, "items": [{"type": "integer"}]});
        assert_eq!(*schema, expect);
    }
}
