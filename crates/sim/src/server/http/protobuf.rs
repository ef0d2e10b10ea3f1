//! Request bodies in Kubernetes' protobuf form, into JSON: `kubectl create` and `kubectl drain` send nothing else. Driven
//! by a table of the API types that stock tools write. Answers are always JSON, which the same tools read.

use std::collections::HashMap;
use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::server::refusal::Refusal;

/// Four bytes before every message.
const MAGIC: &[u8] = b"k8s\0";
/// Written by a program from Kubernetes' API types; its first lines say what the lines mean.
const TABLE: &str = include_str!("protobuf.txt");
/// Messages within messages; JSON schemas in definitions are the deepest and stay far below.
const DEPTH_MAX: usize = 64;

struct Types {
    /// Message by `apiVersion` and `kind`.
    kinds: HashMap<(&'static str, &'static str), &'static str>,
    messages: HashMap<&'static str, HashMap<u64, Field>>,
}

#[derive(Clone, Copy)]
struct Field {
    /// `=` if its fields belong to the message around it.
    name: &'static str,
    of_type: &'static str,
}

/// One field of a message as it is on the wire.
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The object in a request body.
pub(super) fn decode(body: &[u8]) -> Result<Value, Refusal> {
    let bad = || Refusal::bad_request("the body of the request is not a protobuf message that this server can read");
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
        Refusal::of_code(
            415,
            format!("this server reads {api_version} {kind} as JSON and YAML only"),
        )
    };
    // Options of a deletion come in the version of whatever is deleted.
    let known = types().kinds.get(&(&*api_version, &*kind)).copied();
    let message = known
        .or_else(|| (kind == "DeleteOptions").then_some("meta.v1.DeleteOptions"))
        .ok_or_else(unknown)?;
    let mut object = Map::new();
    read_message(raw, message, &mut object, 0).ok_or_else(bad)?;
    object.insert("apiVersion".to_owned(), json!(api_version));
    object.insert("kind".to_owned(), json!(kind));
    Ok(Value::Object(object))
}

fn types() -> &'static Types {
    static TYPES: OnceLock<Types> = OnceLock::new();
    TYPES.get_or_init(|| {
        let mut types = Types {
            kinds: HashMap::new(),
            messages: HashMap::new(),
        };
        let mut message = "";
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            match line.split(' ').collect::<Vec<_>>().as_slice() {
                [":", api_version, kind, message] => {
                    types.kinds.insert((api_version, kind), message);
                }
                [number, name, of_type] => {
                    let number = number.parse().expect("the table's numbers are numbers");
                    types
                        .messages
                        .entry(message)
                        .or_default()
                        .insert(number, Field { name, of_type });
                }
                [name] => {
                    message = name;
                    types.messages.entry(name).or_default();
                }
                _ => unreachable!("the table has lines of one, three and four words"),
            }
        }
        types
    })
}

fn read_message(bytes: &[u8], message: &str, object: &mut Map<String, Value>, depth: usize) -> Option<()> {
    if depth > DEPTH_MAX {
        return None;
    }
    let known = types().messages.get(message)?;
    for (number, wire) in fields(bytes)? {
        let Some(field) = known.get(&number) else { continue };
        if field.name == "=" {
            let Wire::Bytes(bytes) = wire else { return None };
            read_message(bytes, field.of_type.trim_start_matches('*'), object, depth + 1)?;
        } else if let Some(item) = field.of_type.strip_prefix("[]") {
            let value = read_value(&wire, item.trim_start_matches('*'), depth)?;
            if let Value::Array(list) = object.entry(field.name).or_insert(json!([])) {
                list.push(value);
            }
        } else if let Some(item) = field.of_type.strip_prefix("{}") {
            let Wire::Bytes(entry) = wire else { return None };
            let (key, value) = read_entry(entry, item, depth)?;
            if let Value::Object(map) = object.entry(field.name).or_insert(json!({})) {
                map.insert(key, value);
            }
        } else {
            let (pointer, of_type) = match field.of_type.strip_prefix('*') {
                Some(of_type) => (true, of_type),
                None => (false, field.of_type),
            };
            let value = read_value(&wire, of_type, depth)?;
            if pointer || !is_zero(&value) {
                object.insert(field.name.to_owned(), value);
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
        // Negative numbers are sent as their two's complement.
        ("int", Wire::Number(number)) => Some(json!(*number as i64)),
        ("float", Wire::Number(bits)) => Some(json!(f64::from_bits(*bits))),
        ("string", Wire::Bytes(bytes)) => Some(json!(String::from_utf8_lossy(bytes))),
        ("bytes", Wire::Bytes(bytes)) => Some(json!(STANDARD.encode(bytes))),
        ("time", Wire::Bytes(bytes)) => Some(read_time(bytes)?),
        ("quantity", Wire::Bytes(bytes)) => Some(first_text(bytes)?),
        ("intstr", Wire::Bytes(bytes)) => read_int_or_string(bytes),
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

fn first_text(bytes: &[u8]) -> Option<Value> {
    let found = fields(bytes)?.into_iter().find_map(|(_, wire)| match wire {
        Wire::Bytes(text) => Some(json!(String::from_utf8_lossy(text))),
        Wire::Number(_) => None,
    });
    Some(found.unwrap_or_else(|| json!("")))
}

/// What Go leaves out of JSON.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(truth) => !truth,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// The fields of a message; `None` if it is cut off or uses a form that Kubernetes does not.
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
    fn every_type_in_the_table_is_known() {
        let simple = [
            "string", "bool", "int", "float", "bytes", "time", "quantity", "intstr", "raw",
        ];
        for (message, fields) in &types().messages {
            for field in fields.values() {
                let of_type = field.of_type.trim_start_matches(['[', ']', '{', '}', '*']);
                assert!(
                    simple.contains(&of_type) || types().messages.contains_key(of_type),
                    "{message}: {of_type}"
                );
            }
        }
        assert!(
            types()
                .kinds
                .values()
                .all(|message| types().messages.contains_key(message))
        );
    }
}
