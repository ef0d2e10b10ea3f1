//! Parses JSON and YAML to values, and reads them as typed objects with the path of a wrong field.
//!
//! Used where speed does not matter: for manifests, YAML, and JSON cases that failed on the fast path.

use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use kai_yaml::nearest;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::sources::{Format, format_of_text};
use crate::Error;

/// The longest excerpt of a file in a message.
const EXCERPT_MAX: usize = 120;

/// A value that keeps NaN and infinities as text: serde_json would silently turn them into null.
struct Tree(Value);

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree(Value::Bool(value)))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree(Value::from(value)))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree(Value::from(value)))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        let number = serde_json::Number::from_f64(value).map(Value::Number);
        Ok(Tree(number.unwrap_or_else(|| Value::String(value.to_string()))))
    }
    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree(Value::String(value.to_owned())))
    }
    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree(Value::Null))
    }
    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree(Value::Null))
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Tree, A::Error> {
        let mut values = Vec::new();
        while let Some(Tree(value)) = seq.next_element()? {
            values.push(value);
        }
        Ok(Tree(Value::Array(values)))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut values = Map::new();
        while let Some((key, Tree(value))) = map.next_entry::<String, Tree>()? {
            values.insert(key, value);
        }
        Ok(Tree(Value::Object(values)))
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tree, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

/// All documents of a file; a JSON file is one.
pub(super) fn documents(path: &Path, text: &str) -> Result<Vec<Value>, Error> {
    let format = format_of_text(path, text);
    let parsed = match format {
        Format::Json => parse_json(text)
            .map(|value| vec![value])
            .map_err(|error| ("JSON", error.to_string())),
        Format::Yaml => parse_yaml(text).map_err(|problem| ("YAML", problem)),
    };
    let parsed = parsed.map_err(|(format, problem)| Error::Syntax {
        path: path.to_owned(),
        format,
        problem,
    })?;
    Ok(parsed.into_iter().filter(|value| !value.is_null()).collect())
}

/// Parses JSON. If that fails, bare `NaN` and `Infinity`, which some programs write, become text, so that the error can name the field.
fn parse_json(text: &str) -> Result<Value, serde_json::Error> {
    let first = serde_json::from_str(text);
    match first {
        Ok(value) => Ok(value),
        Err(error) => match quote_non_numbers(text) {
            Some(quoted) => serde_json::from_str(&quoted).map_err(|_| error),
            None => Err(error),
        },
    }
}

/// `None` if there is nothing to quote.
fn quote_non_numbers(text: &str) -> Option<String> {
    let mut quoted = String::with_capacity(text.len() + 16);
    let (mut rest, mut in_string, mut changed) = (text, false, false);
    'text: while let Some(letter) = rest.chars().next() {
        if !in_string {
            for word in ["NaN", "-Infinity", "Infinity"] {
                if let Some(after) = rest.strip_prefix(word) {
                    quoted.extend(['"']);
                    quoted.push_str(word);
                    quoted.extend(['"']);
                    (rest, changed) = (after, true);
                    continue 'text;
                }
            }
        }
        let mut end = letter.len_utf8();
        match letter {
            '"' => in_string = !in_string,
            '\\' if in_string => end += rest[end..].chars().next().map_or(0, char::len_utf8),
            _ => {}
        }
        quoted.push_str(&rest[..end]);
        rest = &rest[end..];
    }
    changed.then_some(quoted)
}

fn parse_yaml(text: &str) -> Result<Vec<Value>, String> {
    let parsed: Result<Vec<Tree>, _> = serde_saphyr::from_multiple_with_options(text, yaml_options(text.len()));
    match parsed {
        Ok(trees) => Ok(trees.into_iter().map(|Tree(value)| value).collect()),
        Err(error) => Err(kai_yaml::problem(&error)),
    }
}

/// Bounds in proportion to the file: they stop aliases that multiply, but no large cluster.
fn yaml_options(bytes: usize) -> serde_saphyr::Options {
    let room = bytes.saturating_add(10_000);
    serde_saphyr::options! {
        // A node may be named `n`, and a rack `no`.
        strict_booleans: true,
        non_finite_float_policy: serde_saphyr::options::NonFiniteFloatPolicy::AsString,
        budget: serde_saphyr::budget! {
            max_reader_input_bytes: None,
            max_events: room,
            max_nodes: room,
            max_documents: room,
            max_total_scalar_bytes: room.saturating_mul(4),
            max_aliases: room,
            max_anchors: room,
            max_merge_keys: room,
            // A template of a case may be used any number of times. Events and nodes are bounded, with aliases written out.
            enforce_alias_anchor_ratio: false,
        },
    }
}

/// Reads a value as `T`; the error has the field and the problem.
pub(super) fn typed<'v, T: Deserialize<'v>>(value: &'v Value) -> Result<T, (String, String)> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let field = error.path().to_string();
        (field, with_remedy(plain(&error.into_inner().to_string())))
    })
}

/// The message about a value of the wrong type, in serde's words.
pub(super) fn invalid_type(found: &str, expected: &str) -> String {
    with_remedy(plain(&format!("invalid type: {found}, expected {expected}")))
}

fn with_remedy(problem: String) -> String {
    // As for `gpu-fraction: 0.5` without quotes.
    match problem.ends_with("`, expected a string") {
        true => format!("{problem}; put it in quotes"),
        false => problem,
    }
}

/// Reads a struct from fields only. serde's own code reads one from a list, too, and takes the values by their order.
#[derive(Debug)]
pub(super) struct Fields<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Fields<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor(PhantomData))
    }
}

struct FieldsVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for FieldsVisitor<T> {
    type Value = Fields<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fields with values")
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Fields<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Fields)
    }
}

/// serde's message without the names of Rust types.
fn plain(problem: &str) -> String {
    if let Some(unknown) = unknown_field(problem) {
        return unknown;
    }
    let (start, expected) = problem.split_once(", expected ").unwrap_or((problem, ""));
    let expected = match expected {
        "f64" => "a number",
        "u32" => "a whole number from 0 to 4294967295",
        "i32" => "a whole number from -2147483648 to 2147483647",
        "u64" | "i64" => "a whole number",
        "a map" => "fields with values",
        expected if expected.starts_with("struct ") => "fields with values",
        expected => expected,
    };
    let start = start.replace("invalid type: map", "invalid type: fields with values");
    let start = shortened(&start.replace("invalid type: sequence", "invalid type: a list"));
    match expected {
        "" => start,
        expected => format!("{start}, expected {expected}"),
    }
}

/// Rewrites serde's message about an unknown field, which lists the known names in backticks.
fn unknown_field(problem: &str) -> Option<String> {
    let (_, names) = problem.split_once("unknown field `")?;
    let (name, known) = names.split_once('`')?;
    let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    let name = shortened(name);
    Some(match nearest(&name, known.iter().copied()) {
        Some(nearest) => format!("there is no field {name:?} here; did you mean {nearest}?"),
        None => format!("there is no field {name:?} here; known are {}", known.join(", ")),
    })
}

/// Shortens a text, so that a message never shows a whole file.
fn shortened(text: &str) -> String {
    kai_yaml::shortened(text, EXCERPT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_keeps_what_json_would_lose() {
        let documents = documents(Path::new("x.yaml"), "a: .nan\nb: n\n---\n---\nc: [1, 2.5, true]\n").unwrap();
        assert_eq!(documents.len(), 2);
        assert_eq!(
            (&documents[0]["a"], &documents[0]["b"]),
            (&Value::from(".nan"), &Value::from("n"))
        );
        assert_eq!(documents[1]["c"][1], 2.5);
    }

    #[test]
    fn bare_nan_becomes_text_outside_strings_only() {
        let value = parse_json(r#"{"a":NaN,"b":"NaN \" NaN","c":[-Infinity]}"#).unwrap();
        assert_eq!(
            (&value["a"], &value["b"]),
            (&Value::from("NaN"), &Value::from("NaN \" NaN"))
        );
        assert_eq!(value["c"][0], "-Infinity");
        assert!(parse_json(r#"{"a":"#).is_err());
    }

    #[test]
    fn aliases_that_multiply_are_stopped() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..10 {
            let before = format!("*a{}", level - 1);
            text.push_str(&format!("a{level}: &a{level} [{}]\n", [before.as_str(); 10].join(", ")));
        }
        let told = documents(Path::new("x.yaml"), &text).unwrap_err().to_string();
        assert!(told.contains("too large with all its aliases written out"), "{told}");
    }

    #[test]
    fn an_anchor_may_be_used_any_number_of_times() {
        let text = format!("a: &a {{ gpu: 1 }}\nb: [{}]\n", ["*a"; 3_000].join(", "));
        let documents = documents(Path::new("x.yaml"), &text).unwrap();
        assert_eq!(documents[0]["b"].as_array().map(Vec::len), Some(3_000));
    }

    #[test]
    fn the_field_is_named() {
        let value: Value = serde_json::json!({"metadata": {"annotations": {"gpu-fraction": 0.5}}});
        let (field, problem) = typed::<kai_api::Pod>(&value).unwrap_err();
        assert_eq!(field, "metadata.annotations.gpu-fraction");
        assert_eq!(
            problem,
            "invalid type: floating point `0.5`, expected a string; put it in quotes"
        );
    }
}
