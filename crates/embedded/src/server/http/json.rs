//! Parses JSON bodies and collects duplicate fields. As in Kubernetes the last value counts. Pure.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A parsed body.
#[derive(Debug, PartialEq)]
pub(super) struct Parsed {
    pub(super) value: Value,
    /// Paths of duplicate fields.
    pub(super) duplicates: Vec<String>,
}

pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, serde_json::Error> {
    let mut reader = Reader::default();
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = reader.value().deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(Parsed {
        value,
        duplicates: reader.duplicates,
    })
}

#[derive(Default)]
struct Reader {
    path: String,
    duplicates: Vec<String>,
}

/// Reads one value.
struct Seed<'a>(&'a mut Reader);

impl Reader {
    fn value(&mut self) -> Seed<'_> {
        Seed(self)
    }

    /// Runs `work` with the path one step deeper.
    fn within<T>(&mut self, step: fmt::Arguments<'_>, work: impl FnOnce(&mut Self) -> T) -> T {
        let len = self.path.len();
        self.path.push_str(&step.to_string());
        let done = work(self);
        self.path.truncate(len);
        done
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(Value::Bool(truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::from(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::from(number))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Value, E> {
        let finite = Number::from_f64(number).ok_or_else(|| E::custom("number out of range"))?;
        Ok(Value::Number(finite))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::from(text))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let step = format_args!("[{}]", list.len());
            let Some(item) = self.0.within(step, |reader| items.next_element_seed(reader.value()))? else {
                return Ok(Value::Array(list));
            };
            list.push(item);
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            let dot = if self.0.path.is_empty() { "" } else { "." };
            let known = map.contains_key(&name);
            let value = self.0.within(format_args!("{dot}{name}"), |reader| {
                if known {
                    reader.duplicates.push(reader.path.clone());
                }
                entries.next_value_seed(reader.value())
            });
            map.insert(name, value.map_err(A::Error::custom)?);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_as_serde_does_and_names_what_occurs_twice() {
        let text = r#"{"a": 1, "b": [{"c": 1.5, "c": null}, true], "a": {"d": "e", "d": -2}}"#;
        let parsed = parse(text.as_bytes()).unwrap();
        assert_eq!(parsed.value, json!({"a": {"d": -2}, "b": [{"c": null}, true]}));
        assert_eq!(parsed.duplicates, ["b[0].c", "a", "a.d"]);
        assert!(parse(b"{} {}").is_err());
        assert!(parse(b"{\"a\": ").is_err());
    }
}
