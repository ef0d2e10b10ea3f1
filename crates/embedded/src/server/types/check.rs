//! Checks the types of an object's fields as the API server does, without decoding the object: for manifests that `kai simulate` reads.
//! Built-in kinds follow the Go types, custom resources the schemas of their definitions. Pure.
//!
//! The text of quantities, times and the like is not checked here: the readers of the objects do so, and say what to write instead.

use std::sync::OnceLock;

use serde::de::Unexpected;
use serde_json::Value;

use super::scalar::{self, Mismatch};
use super::{FieldType, Form, OBJECT_META, types};

const INT32: &str = "a whole number from -2147483648 to 2147483647";
const FIELDS: &str = "fields with values";

/// A field whose value has the wrong type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongType {
    /// The path of the field, with list indices. Empty for the object itself.
    pub field: String,
    /// The value, as in ``integer `3` ``.
    pub found: String,
    /// The type that the field has.
    pub expected: &'static str,
}

/// The first field of an object that has the wrong type. `None` for a kind that is not known, too.
pub fn wrong_type(group: &str, kind: &str, object: &Value) -> Option<WrongType> {
    let mut checker = Checker { path: String::new() };
    let Value::Object(fields) = object else {
        return checker.mismatch(object, FIELDS);
    };
    for name in ["apiVersion", "kind"] {
        if let Some(value) = fields.get(name).filter(|value| !value.is_null() && !value.is_string()) {
            return checker.within(name, |checker| checker.mismatch(value, "a string"));
        }
    }
    let version = match group {
        "" => "v1".to_owned(),
        group => format!("{group}/v1"),
    };
    if let Some(type_name) = types().of_kind(&version, kind) {
        return checker.message(type_name, object);
    }
    let schema = schemas()
        .iter()
        .find(|schema| schema.group == group && schema.kind == kind)?;
    let of_metadata = fields.get("metadata").filter(|value| !value.is_null());
    let wrong = of_metadata.and_then(|value| checker.within("metadata", |checker| checker.message(OBJECT_META, value)));
    wrong.or_else(|| checker.by_schema(object, &schema.schema))
}

/// The schema of a custom resource.
struct CustomSchema {
    group: String,
    kind: String,
    schema: Value,
}

fn schemas() -> &'static [CustomSchema] {
    static SCHEMAS: OnceLock<Vec<CustomSchema>> = OnceLock::new();
    SCHEMAS.get_or_init(|| {
        let schema_of = |mut definition: Value| {
            let spec = &mut definition["spec"];
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let mut schema = spec["versions"][0]["schema"]["openAPIV3Schema"].take();
            // The table has the fields of metadata.
            if let Some(properties) = schema["properties"].as_object_mut() {
                properties.remove("metadata");
            }
            CustomSchema {
                group: text(&spec["group"]),
                kind: text(&spec["names"]["kind"]),
                schema,
            }
        };
        kai_api::crd::crds().into_iter().map(schema_of).collect()
    })
}

struct Checker {
    path: String,
}

impl Checker {
    fn message(&mut self, type_name: &str, value: &Value) -> Option<WrongType> {
        let Value::Object(fields) = value else {
            return self.mismatch(value, FIELDS);
        };
        let of_type = types().get(type_name)?;
        let mut given = fields.iter().filter(|(_, value)| !value.is_null());
        given.find_map(|(name, value)| {
            let field = types().field(of_type, name)?;
            self.within(name, |checker| checker.value(field.of, value))
        })
    }

    fn value(&mut self, of: FieldType, value: &Value) -> Option<WrongType> {
        match (of.form, value) {
            (Form::One, value) => self.item(of, value),
            (Form::List, Value::Array(items)) => self.items(items, |checker, item| checker.item(of.item(), item)),
            (Form::Map, Value::Object(entries)) => {
                let mut entries = entries.iter();
                entries.find_map(|(key, value)| self.within(key, |checker| checker.item(of.item(), value)))
            }
            (Form::List, other) => self.mismatch(other, "a list"),
            (Form::Map, other) => self.mismatch(other, FIELDS),
        }
    }

    fn item(&mut self, of: FieldType, value: &Value) -> Option<WrongType> {
        // Go reads a null as the empty value.
        if value.is_null() {
            return None;
        }
        if !scalar::is_scalar(of.base) {
            return self.message(of.base, value);
        }
        if of.base == "quantity" && !value.is_string() && !value.is_number() {
            return self.mismatch(value, "a quantity");
        }
        match scalar::read(of.base, value.clone()) {
            Err(Mismatch::Type(_)) => self.mismatch(value, expected(of.base)),
            Ok(_) | Err(Mismatch::Text(_)) => None,
        }
    }

    fn by_schema(&mut self, value: &Value, schema: &Value) -> Option<WrongType> {
        if schema["x-kubernetes-int-or-string"] == true {
            let fits = value.is_string() || value.is_number();
            return if fits { None } else { self.mismatch(value, "a quantity") };
        }
        match (schema["type"].as_str().unwrap_or_default(), value) {
            ("object", Value::Object(fields)) => {
                let mut given = fields.iter().filter(|(_, value)| !value.is_null());
                given.find_map(|(name, value)| {
                    let others = schema.get("additionalProperties").filter(|others| others.is_object());
                    let schema = schema["properties"].get(name).or(others)?;
                    self.within(name, |checker| checker.by_schema(value, schema))
                })
            }
            ("array", Value::Array(items)) => {
                let schema = schema.get("items")?;
                self.items(items, |checker, item| checker.by_schema(item, schema))
            }
            ("integer", Value::Number(number)) if schema["format"] == "int32" => {
                let fits = number.as_i64().is_some_and(|number| i32::try_from(number).is_ok());
                if fits { None } else { self.mismatch(value, INT32) }
            }
            ("integer", Value::Number(number)) if number.is_i64() => None,
            ("number", Value::Number(_)) | ("string", Value::String(_)) | ("boolean", Value::Bool(_)) => None,
            ("object", other) => self.mismatch(other, FIELDS),
            ("array", other) => self.mismatch(other, "a list"),
            ("integer", other) => self.mismatch(other, expected("int64")),
            ("number", other) => self.mismatch(other, expected("float64")),
            ("string", other) => self.mismatch(other, expected("string")),
            ("boolean", other) => self.mismatch(other, expected("bool")),
            _ => None,
        }
    }

    fn items(
        &mut self,
        items: &[Value],
        mut check: impl FnMut(&mut Self, &Value) -> Option<WrongType>,
    ) -> Option<WrongType> {
        items.iter().enumerate().find_map(|(at, item)| {
            let len = self.path.len();
            self.path.push_str(&format!("[{at}]"));
            let wrong = check(self, item);
            self.path.truncate(len);
            wrong
        })
    }

    fn within(&mut self, name: &str, check: impl FnOnce(&mut Self) -> Option<WrongType>) -> Option<WrongType> {
        let len = self.path.len();
        if len > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        let wrong = check(self);
        self.path.truncate(len);
        wrong
    }

    fn mismatch(&self, value: &Value, expected: &'static str) -> Option<WrongType> {
        Some(WrongType {
            field: self.path.clone(),
            found: found(value),
            expected,
        })
    }
}

/// The type of a scalar of the table, in words.
fn expected(word: &str) -> &'static str {
    match word {
        "bool" => "true or false",
        "int" | "int64" => "a whole number",
        "int32" => INT32,
        "float64" => "a number",
        "intstr" => "a whole number or a string",
        "strings" => "a list of strings",
        _ => "a string",
    }
}

fn found(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(truth) => Unexpected::Bool(*truth).to_string(),
        Value::Number(number) if number.is_f64() => Unexpected::Float(number.as_f64().unwrap_or_default()).to_string(),
        Value::Number(number) => format!("integer `{number}`"),
        Value::String(text) => Unexpected::Str(text).to_string(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => FIELDS.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(group: &str, kind: &str, object: Value, expect: &str) {
        let wrong = wrong_type(group, kind, &object);
        let told = wrong.map(|wrong| format!("{}: {}, expected {}", wrong.field, wrong.found, wrong.expected));
        assert_eq!(told.unwrap_or_default(), expect);
    }

    #[test]
    fn fields_of_built_in_kinds_have_the_types_of_the_api() {
        let deployment = |spec: Value, expect: &str| check("apps", "Deployment", json!({ "spec": spec }), expect);
        deployment(json!({"replicas": 2, "template": {"spec": {"containers": []}}}), "");
        deployment(json!({"replicas": null, "template": null}), "");
        deployment(json!([]), "spec: a list, expected fields with values");
        deployment(
            json!({"replicas": "3"}),
            "spec.replicas: string \"3\", expected a whole number from -2147483648 to 2147483647",
        );
        deployment(
            json!({"replicas": 2.5}),
            "spec.replicas: floating point `2.5`, expected a whole number from -2147483648 to 2147483647",
        );
        deployment(
            json!({"template": "foo"}),
            "spec.template: string \"foo\", expected fields with values",
        );
        deployment(
            json!({"template": {"spec": {"containers": ["x"]}}}),
            "spec.template.spec.containers[0]: string \"x\", expected fields with values",
        );
        deployment(
            json!({"template": {"metadata": {"labels": {"a": 1}}}}),
            "spec.template.metadata.labels.a: integer `1`, expected a string",
        );
        deployment(
            json!({"selector": {"matchLabels": ["a"]}}),
            "spec.selector.matchLabels: a list, expected fields with values",
        );
        let affinity = json!({"spec": {"affinity": {"nodeAffinity": []}}});
        check(
            "",
            "Pod",
            affinity,
            "spec.affinity.nodeAffinity: a list, expected fields with values",
        );
        let amounts = json!({"status": {"allocatable": {"cpu": 8, "memory": "x", "pods": [1]}}});
        check(
            "",
            "Node",
            amounts,
            "status.allocatable.pods: a list, expected a quantity",
        );
        check(
            "",
            "Node",
            json!({"apiVersion": 1}),
            "apiVersion: integer `1`, expected a string",
        );
        check("example.com", "Widget", json!({"spec": []}), "");
    }

    #[test]
    fn fields_of_custom_resources_have_the_types_of_their_schema() {
        let queue = |object: Value, expect: &str| check("scheduling.run.ai", "Queue", object, expect);
        queue(json!({"spec": {"resources": {"gpu": {"quota": 2.5}}}}), "");
        queue(
            json!({"spec": {"resources": [{"gpu": {"quota": 2}}]}}),
            "spec.resources: a list, expected fields with values",
        );
        queue(
            json!({"spec": {"resources": {"gpu": [1, 2]}}}),
            "spec.resources.gpu: a list, expected fields with values",
        );
        queue(json!({"spec": ["parent"]}), "spec: a list, expected fields with values");
        queue(
            json!({"metadata": {"labels": ["a"]}}),
            "metadata.labels: a list, expected fields with values",
        );
        queue(
            json!({"spec": {"resources": {"gpu": {"quota": "many"}}}}),
            "spec.resources.gpu.quota: string \"many\", expected a number",
        );
        check(
            "scheduling.run.ai",
            "PodGroup",
            json!({"spec": {"minMember": 2_147_483_648_i64}}),
            "spec.minMember: integer `2147483648`, expected a whole number from -2147483648 to 2147483647",
        );
        for kind in ["Queue", "PodGroup", "BindRequest"] {
            assert!(
                wrong_type("scheduling.run.ai", kind, &json!({"spec": 1})).is_some(),
                "{kind}"
            );
        }
        assert!(wrong_type("kai.scheduler", "Topology", &json!({"spec": 1})).is_some());
    }
}
