//! Decodes JSON values by the Go types of the API. As in Go, decoding drops unknown fields, nulls and empty values with `omitempty`,
//! and rejects values of the wrong type with Go's message. Pure.

use serde_json::{Map, Value};

use super::scalar::{self, Mismatch};
use super::{Field, FieldType, Form, types};

/// A decoded value.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) value: Value,
    /// Paths of unknown fields, with list indices.
    pub(crate) unknown: Vec<String>,
}

impl Decoded {
    /// A value without unknown fields.
    pub(crate) fn whole(value: Value) -> Self {
        Self {
            value,
            unknown: Vec::new(),
        }
    }
}

/// Decodes one field of an object.
pub(crate) fn decode_at(field: &str, type_name: &str, value: Value) -> Result<Decoded, String> {
    let value = if value.is_null() {
        Value::Object(Map::new())
    } else {
        value
    };
    let mut decoder = Decoder {
        path: field.to_owned(),
        ..Decoder::default()
    };
    let value = decoder.message(type_name, "", value, false);
    decoder.done(value)
}

/// Decodes an object, or returns Go's error message. With `root` the object may have `apiVersion` and `kind`.
pub(crate) fn decode(type_name: &str, value: Value, root: bool) -> Result<Decoded, String> {
    let mut decoder = Decoder::default();
    let value = decoder.message(type_name, "", value, root);
    decoder.done(value)
}

#[derive(Default)]
struct Decoder {
    /// Field names from the root, without indices, as in Go's messages.
    fields: Vec<String>,
    /// The path from the root, with indices.
    path: String,
    unknown: Vec<String>,
    /// The first error. Go also decodes on and reports the first error at the end.
    problem: Option<String>,
}

impl Decoder {
    fn done(self, value: Value) -> Result<Decoded, String> {
        match self.problem {
            Some(problem) => Err(problem),
            None => Ok(Decoded {
                value,
                unknown: self.unknown,
            }),
        }
    }

    /// `parent` is the struct with the field of this value.
    fn message(&mut self, type_name: &str, parent: &str, value: Value, root: bool) -> Value {
        let Value::Object(given) = value else {
            let of = FieldType::parse_name(type_name);
            self.mismatch(Mismatch::Type(scalar::kind_of(&value).to_owned()), parent, of);
            return Value::Object(Map::new());
        };
        let Some(of_type) = types().get(type_name) else {
            return Value::Object(given);
        };
        let short_name = type_name.rsplit('.').next().unwrap_or(type_name);
        let mut made = Map::new();
        for (name, value) in given {
            if root && matches!(name.as_str(), "apiVersion" | "kind") {
                made.insert(name, value);
                continue;
            }
            let Some(field) = types().field(of_type, &name) else {
                self.unknown.push(joined(&self.path, &name));
                continue;
            };
            if let Some(value) = self.within(&name, |decoder| decoder.field(field, short_name, value)) {
                made.insert(name, value);
            }
        }
        Value::Object(made)
    }

    /// The field's value as Go writes it; `None` if Go omits it.
    fn field(&mut self, field: Field, parent: &str, value: Value) -> Option<Value> {
        if value.is_null() {
            // Go writes an unset time as null.
            let time = matches!(field.of.base, "time" | "microtime") && field.of.form == Form::One;
            return (field.always_written && time).then_some(Value::Null);
        }
        let value = self.value(field.of, parent, value);
        let kept = field.of.pointer || field.always_written || !scalar::is_empty(&value);
        kept.then_some(value)
    }

    fn value(&mut self, of: FieldType, parent: &str, value: Value) -> Value {
        match (of.form, value) {
            (Form::List, Value::Array(items)) => {
                let items = items.into_iter().enumerate().map(|(at, item)| {
                    let len = self.path.len();
                    self.path.push_str(&format!("[{at}]"));
                    let item = self.item(of.item(), parent, item);
                    self.path.truncate(len);
                    item
                });
                Value::Array(items.collect())
            }
            (Form::Map, Value::Object(entries)) => {
                let mut made = Map::new();
                for (key, value) in entries {
                    let len = self.path.len();
                    self.path = joined(&self.path, &key);
                    let value = self.item(of.item(), parent, value);
                    self.path.truncate(len);
                    made.insert(key, value);
                }
                Value::Object(made)
            }
            (Form::List | Form::Map, other) => {
                self.mismatch(Mismatch::Type(scalar::kind_of(&other).to_owned()), parent, of);
                Value::Null
            }
            (Form::One, value) => self.item(of, parent, value),
        }
    }

    fn item(&mut self, of: FieldType, parent: &str, value: Value) -> Value {
        if !scalar::is_scalar(of.base) {
            // A null item is an empty struct.
            let value = if value.is_null() {
                Value::Object(Map::new())
            } else {
                value
            };
            return self.message(of.base, parent, value, false);
        }
        if value.is_null() {
            return empty_scalar(of.base);
        }
        scalar::read(of.base, value).unwrap_or_else(|mismatch| {
            self.mismatch(mismatch, parent, of);
            Value::Null
        })
    }

    fn within<T>(&mut self, name: &str, work: impl FnOnce(&mut Self) -> T) -> T {
        let len = self.path.len();
        self.path = joined(&self.path, name);
        self.fields.push(name.to_owned());
        let done = work(self);
        self.fields.pop();
        self.path.truncate(len);
        done
    }

    fn mismatch(&mut self, mismatch: Mismatch, parent: &str, of: FieldType) {
        if self.problem.is_some() {
            return;
        }
        self.problem = Some(match mismatch {
            Mismatch::Text(text) => text,
            Mismatch::Type(found) if parent.is_empty() => {
                format!("json: cannot unmarshal {found} into Go value of type {}", of.go_name())
            }
            Mismatch::Type(found) => format!(
                "json: cannot unmarshal {found} into Go struct field {parent}.{} of type {}",
                self.fields.join("."),
                of.go_name()
            ),
        });
    }
}

/// Adds the empty fields that Go writes, at every depth.
pub(crate) fn complete(type_name: &str, object: &mut Value) {
    let (Some(of_type), Value::Object(fields)) = (types().get(type_name), object) else {
        return;
    };
    for field in types().always_written(of_type) {
        if field.of.form == Form::One && !field.of.pointer && !fields.contains_key(field.name) {
            let empty = if scalar::is_scalar(field.of.base) {
                empty_scalar(field.of.base)
            } else {
                Value::Object(Map::new())
            };
            fields.insert(field.name.to_owned(), empty);
        }
    }
    for (name, value) in fields.iter_mut() {
        let Some(of) = types().field(of_type, name).map(|field| field.of) else {
            continue;
        };
        if scalar::is_scalar(of.base) {
            continue;
        }
        match (of.form, value) {
            (Form::List, Value::Array(items)) => items.iter_mut().for_each(|item| complete(of.base, item)),
            (Form::Map, Value::Object(entries)) => entries.values_mut().for_each(|entry| complete(of.base, entry)),
            (_, value) => complete(of.base, value),
        }
    }
}

fn empty_scalar(word: &str) -> Value {
    match word {
        "string" | "bytes" => Value::String(String::new()),
        "quantity" => Value::String("0".to_owned()),
        "bool" => Value::Bool(false),
        "int" | "int32" | "int64" | "float64" | "intstr" => Value::from(0),
        _ => Value::Null,
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: Value) -> Result<Decoded, String> {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec});
        decode("core.v1.Pod", pod, true)
    }

    #[test]
    fn unknown_fields_are_named_with_their_place() {
        let decoded = pod(json!({"containers": [{"name": "a", "imagee": "x"}], "nodeNam": "n"})).unwrap();
        assert_eq!(decoded.unknown, ["spec.containers[0].imagee", "spec.nodeNam"]);
        assert_eq!(decoded.value["spec"], json!({"containers": [{"name": "a"}]}));
    }

    #[test]
    fn wrong_types_are_named_as_go_names_them() {
        let problem = |spec: Value| pod(spec).unwrap_err();
        assert_eq!(
            problem(json!({"priority": "high"})),
            "json: cannot unmarshal string into Go struct field PodSpec.spec.priority of type int32"
        );
        assert_eq!(
            problem(json!({"containers": [{"ports": [{"containerPort": "http"}]}]})),
            "json: cannot unmarshal string into Go struct field ContainerPort.spec.containers.ports.containerPort of type int32"
        );
        assert_eq!(
            problem(json!({"containers": {"name": "a"}})),
            "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container"
        );
        assert_eq!(
            problem(json!({"containers": ["a"]})),
            "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type v1.Container"
        );
        let quantity = problem(json!({"containers": [{"resources": {"limits": {"cpu": "lots"}}}]}));
        assert!(quantity.starts_with("quantities must match"), "{quantity}");
    }

    #[test]
    fn nulls_and_what_go_leaves_out_are_dropped() {
        let spec = json!({
            "containers": [{"name": "a", "command": null, "stdin": false, "resources": {"limits": {"cpu": 2, "memory": "1024Mi"}}}],
            "nodeName": "", "hostNetwork": false, "terminationGracePeriodSeconds": 0, "affinity": null,
        });
        let expect = json!({
            "containers": [{"name": "a", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}],
            "terminationGracePeriodSeconds": 0,
        });
        assert_eq!(pod(spec).unwrap().value["spec"], expect);
        let labels =
            json!({"metadata": {"name": "a", "annotations": null, "labels": {"x": "y"}, "ownerReferences": []}});
        let mut event = json!({"involvedObject": {"name": "a"}});
        complete("core.v1.Event", &mut event);
        assert_eq!(event["eventTime"], Value::Null);
        assert_eq!(event["reportingComponent"], "");
        let metadata = decode("core.v1.Pod", labels, true).unwrap().value["metadata"].clone();
        assert_eq!(metadata, json!({"name": "a", "labels": {"x": "y"}}));
    }
}
