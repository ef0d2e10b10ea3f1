//! A stored object: immutable, cheap to clone, serialized at most once for all clients. Also the accessors of metadata that all
//! modules of the server use.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::{Map, Value};

/// A stored object. Dereferences to its JSON value.
#[derive(Clone)]
pub struct Object(Arc<Inner>);

struct Inner {
    value: Value,
    json: OnceLock<Bytes>,
}

impl Object {
    pub(crate) fn new(value: Value) -> Self {
        Self(Arc::new(Inner {
            value,
            json: OnceLock::new(),
        }))
    }

    /// The object as JSON text.
    pub fn json(&self) -> Bytes {
        self.0
            .json
            .get_or_init(|| Bytes::from(self.0.value.to_string()))
            .clone()
    }

    /// A copy of the JSON value, to change and write back.
    pub fn to_value(&self) -> Value {
        self.0.value.clone()
    }

    /// `metadata.name`.
    pub fn name(&self) -> &str {
        meta_text(self, "name")
    }

    /// `metadata.namespace`; empty for cluster-wide objects.
    pub fn namespace(&self) -> &str {
        meta_text(self, "namespace")
    }

    /// `metadata.uid`.
    pub fn uid(&self) -> &str {
        meta_text(self, "uid")
    }

    /// `metadata.resourceVersion` as a number.
    pub fn revision(&self) -> u64 {
        meta_text(self, "resourceVersion").parse().unwrap_or(0)
    }
}

impl Deref for Object {
    type Target = Value;
    fn deref(&self) -> &Value {
        &self.0.value
    }
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.value)
    }
}

/// Namespace and name of an object within its resource. Ordered as lists: by namespace, then name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Empty for cluster-wide objects.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

impl Key {
    /// The key of a namespaced object, or of a cluster-wide one if `namespace` is empty.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    pub(crate) fn of(value: &Value) -> Self {
        Self::new(meta_text(value, "namespace"), meta_text(value, "name"))
    }
}

pub(crate) fn meta_text<'a>(value: &'a Value, field: &str) -> &'a str {
    value["metadata"][field].as_str().unwrap_or("")
}

/// The object's `metadata`; created if it is missing or no JSON object.
pub(crate) fn metadata_mut(value: &mut Value) -> &mut Map<String, Value> {
    field_mut(value, "metadata")
}

/// A field as a JSON object; created if it is missing or no JSON object.
pub(crate) fn field_mut<'a>(value: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    map_mut(map_mut(value).entry(field).or_insert(Value::Null))
}

/// The items of a list field. Unlike indexing, this does not create a missing field.
pub(crate) fn items_mut<'a>(value: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    let list = value.get_mut(field).and_then(Value::as_array_mut);
    list.into_iter().flatten()
}

/// The value as a JSON object; replaced by an empty one if it is no JSON object.
pub(crate) fn map_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("made an object above")
}

/// The approximate length of a value as JSON: without the bytes of escapes.
pub(crate) fn json_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 5,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| json_bytes(item) + 1).sum::<usize>() + 2,
        Value::Object(fields) => {
            fields
                .iter()
                .map(|(name, v)| name.len() + json_bytes(v) + 4)
                .sum::<usize>()
                + 2
        }
    }
}
