//! Scalars of the API's types: decoding from JSON, canonical form and error messages, as in Go.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::quantity;

const WORDS: &[&str] = &[
    "bool",
    "bytes",
    "duration",
    "float64",
    "int",
    "int32",
    "int64",
    "intstr",
    "microtime",
    "quantity",
    "raw",
    "schema-or-bool",
    "schema-or-list",
    "schema-or-strings",
    "string",
    "strings",
    "time",
];

/// The error of a value that does not fit its type.
#[derive(Debug, PartialEq)]
pub(super) enum Mismatch {
    /// The JSON type that was found, as Go names it.
    Type(String),
    /// The message of the type's own decoder.
    Text(String),
}

/// Whether this type of the table is a scalar.
pub(super) fn is_scalar(word: &str) -> bool {
    WORDS.binary_search(&word).is_ok()
}

/// The scalar as Go writes it.
pub(super) fn read(word: &str, value: Value) -> Result<Value, Mismatch> {
    match (word, value) {
        ("bool", Value::Bool(truth)) => Ok(Value::Bool(truth)),
        ("string", Value::String(text)) => Ok(Value::String(text)),
        ("int" | "int64", Value::Number(number)) => whole(number, i64::MIN, i64::MAX),
        ("int32", Value::Number(number)) => whole(number, i32::MIN.into(), i32::MAX.into()),
        ("float64", Value::Number(number)) => Ok(Value::Number(number)),
        ("bytes", Value::String(text)) => match STANDARD.decode(text.replace(['\r', '\n'], "")) {
            Ok(bytes) => Ok(json!(STANDARD.encode(bytes))),
            Err(_) => Err(Mismatch::Text(format!(
                "illegal base64 data at input byte {}",
                first_bad_byte(&text)
            ))),
        },
        ("quantity", Value::String(text)) => canonical(text.trim()),
        ("quantity", other) => canonical(&other.to_string()),
        ("time", Value::String(text)) => moment(&text).map(|moment| json!(seconds_text(moment))),
        ("microtime", Value::String(text)) => {
            let micros = |moment: Timestamp| moment.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
            moment(&text).map(|moment| json!(micros(moment)))
        }
        ("intstr", Value::String(text)) => Ok(Value::String(text)),
        ("intstr", Value::Number(number)) => whole(number, i32::MIN.into(), i32::MAX.into()),
        ("duration", Value::String(text)) => Ok(Value::String(text)),
        ("strings", Value::Array(items)) if items.iter().all(Value::is_string) => Ok(Value::Array(items)),
        ("raw" | "schema-or-bool" | "schema-or-list" | "schema-or-strings", value) => Ok(value),
        (_, other) => Err(Mismatch::Type(kind_of(&other).to_owned())),
    }
}

/// Whether Go omits the value as empty.
pub(in crate::server) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(truth) => !truth,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// Go's name of a JSON type.
pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// A time as objects have it: whole seconds.
fn seconds_text(moment: Timestamp) -> String {
    Timestamp::from_second(moment.as_second()).unwrap_or(moment).to_string()
}

fn moment(text: &str) -> Result<Timestamp, Mismatch> {
    let layout = "2006-01-02T15:04:05Z07:00";
    text.parse().map_err(|_| {
        let why = format!("parsing time {text:?} as {layout:?}: cannot parse {text:?} as \"2006\"");
        Mismatch::Text(why)
    })
}

fn whole(number: serde_json::Number, min: i64, max: i64) -> Result<Value, Mismatch> {
    match number.as_i64().filter(|n| (min..=max).contains(n)) {
        Some(whole) => Ok(json!(whole)),
        None => Err(Mismatch::Type(format!("number {number}"))),
    }
}

fn canonical(text: &str) -> Result<Value, Mismatch> {
    quantity::canonical(text)
        .map(Value::String)
        .map_err(|error| Mismatch::Text(error.to_string()))
}

fn first_bad_byte(text: &str) -> usize {
    let good = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let bytes = text.as_bytes();
    let end = bytes.iter().position(|byte| !good(byte)).unwrap_or(bytes.len());
    // Padding is valid where it completes a group of four. A truncated text is invalid from its last group on.
    if bytes.get(end) == Some(&b'=') || end == bytes.len() {
        return end - end % 4;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_sorted() {
        assert!(WORDS.is_sorted());
    }

    #[test]
    fn numbers_have_their_width() {
        assert_eq!(read("int32", json!(7)), Ok(json!(7)));
        assert_eq!(
            read("int32", json!(4_294_967_296_i64)),
            Err(Mismatch::Type("number 4294967296".into()))
        );
        assert_eq!(read("int64", json!(1.5)), Err(Mismatch::Type("number 1.5".into())));
        assert_eq!(read("int64", json!("7")), Err(Mismatch::Type("string".into())));
    }

    #[test]
    fn times_are_whole_seconds_of_utc() {
        assert_eq!(
            read("time", json!("2026-01-01T01:00:00.7+01:00")),
            Ok(json!("2026-01-01T00:00:00Z"))
        );
        assert_eq!(
            read("microtime", json!("2026-01-01T00:00:00.5Z")),
            Ok(json!("2026-01-01T00:00:00.500000Z"))
        );
        assert!(
            matches!(read("time", json!("soon")), Err(Mismatch::Text(why)) if why.contains("parsing time \"soon\""))
        );
    }

    #[test]
    fn bytes_are_base64() {
        assert_eq!(read("bytes", json!("dmFsdWU=")), Ok(json!("dmFsdWU=")));
        assert!(matches!(read("bytes", json!("no!")), Err(Mismatch::Text(why)) if why.ends_with("byte 2")));
    }
}
