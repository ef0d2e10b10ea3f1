//! The CustomResourceDefinitions of all kinds. Pure: callers print and write them.

use kube::CustomResourceExt;
use serde_json::{Map, Value};

use super::schema::nested;
use super::{BindRequest, Config, PodGroup, Queue, SchedulingShard, Topology};

/// The definitions of all kinds, by name. Their keys are sorted, so that the output is deterministic.
pub fn crds() -> Vec<Value> {
    // Only topologies require a spec.
    vec![
        definition::<BindRequest>(Spec::Optional),
        definition::<Config>(Spec::Optional),
        definition::<PodGroup>(Spec::Optional),
        definition::<Queue>(Spec::Optional),
        definition::<SchedulingShard>(Spec::Optional),
        definition::<Topology>(Spec::Required),
    ]
}

/// A definition as a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// `<group>_<plural>.yaml`.
    pub file_name: String,
    /// One YAML document.
    pub yaml: String,
}

/// The definitions of all kinds as files.
pub fn manifests() -> Vec<Manifest> {
    let manifest = |crd: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let spec = &crd["spec"];
        Manifest {
            file_name: format!("{}_{}.yaml", text(&spec["group"]), text(&spec["names"]["plural"])),
            yaml: serde_saphyr::to_string(crd).expect("whatever is JSON can be written as YAML"),
        }
    };
    crds().iter().map(manifest).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Spec {
    Optional,
    Required,
}

fn definition<K: CustomResourceExt>(spec: Spec) -> Value {
    let mut definition = serde_json::to_value(K::crd()).expect("a definition has string keys only");
    let names = &mut definition["spec"]["names"];
    names["listKind"] = format!("{}List", names["kind"].as_str().unwrap_or_default()).into();
    let versions = definition["spec"]["versions"].as_array_mut();
    for version in versions.into_iter().flatten() {
        let schema = &mut version["schema"]["openAPIV3Schema"];
        if let Some(schema) = schema.as_object_mut() {
            schema.remove("title");
            if spec == Spec::Optional {
                schema.remove("required");
            }
        }
        drop_defaults(schema);
    }
    sorted(definition)
}

/// Removes defaults from the schema. The readers of an object apply defaults, as in KAI; from the schema the API server would store them in
/// every object, and a new release could not change them.
fn drop_defaults(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    schema.remove("default");
    nested(schema).for_each(drop_defaults);
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(String, Value)> = map.into_iter().collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            let sorted = entries.into_iter().map(|(key, value)| (key, sorted(value)));
            Value::Object(sorted.collect::<Map<String, Value>>())
        }
        Value::Array(list) => Value::Array(list.into_iter().map(sorted).collect()),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => other,
    }
}
