//! Sets of fields in the form of `managedFields`: a tree whose keys are `f:name`, `k:{...}` and `v:...`. Pure.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::shape::{ListShape, Shape};

/// A set of fields. A leaf is a field in the set.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct FieldSet {
    /// Whether this field itself is in the set (`.`), beside its children.
    itself: bool,
    children: BTreeMap<String, FieldSet>,
}

/// The difference between two objects.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    /// New fields, and fields with a new value.
    pub(crate) written: FieldSet,
    /// Removed fields.
    pub(crate) removed: FieldSet,
}

impl FieldSet {
    fn leaf() -> Self {
        Self {
            itself: true,
            children: BTreeMap::new(),
        }
    }

    /// All fields of a value.
    pub(crate) fn of(value: &Value, shape: Shape<'_>) -> Self {
        match value {
            Value::Object(fields) if !fields.is_empty() && !shape.atomic_map() => {
                let children = fields
                    .iter()
                    .map(|(name, v)| (format!("f:{name}"), Self::of(v, shape.child(name))));
                Self {
                    itself: false,
                    children: children.collect(),
                }
            }
            Value::Array(items) if !items.is_empty() => match shape.list() {
                ListShape::Atomic => Self::leaf(),
                ListShape::Set => Self {
                    itself: false,
                    children: items.iter().map(|item| (format!("v:{item}"), Self::leaf())).collect(),
                },
                ListShape::Map(keys) => {
                    let item_set = |item: &Value| Self {
                        itself: true,
                        ..Self::of(item, shape.item())
                    };
                    let children = items.iter().map(|item| (item_key(item, &keys), item_set(item)));
                    Self {
                        itself: false,
                        children: children.collect(),
                    }
                }
            },
            _ => Self::leaf(),
        }
    }

    /// The fields of an object that a manager can own: without apiVersion, kind, name and the metadata that the server sets.
    pub(crate) fn of_object(object: &Value, shape: Shape<'_>) -> Self {
        let mut set = Self::of(object, shape);
        set.strip();
        set
    }

    fn strip(&mut self) {
        self.children.remove("f:apiVersion");
        self.children.remove("f:kind");
        if let Some(metadata) = self.children.get_mut("f:metadata") {
            for field in [
                "name",
                "namespace",
                "uid",
                "creationTimestamp",
                "generation",
                "managedFields",
                "resourceVersion",
                "selfLink",
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
            ] {
                metadata.children.remove(&format!("f:{field}"));
            }
            if metadata.children.is_empty() {
                self.children.remove("f:metadata");
            }
        }
        self.itself = false;
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.itself && self.children.is_empty()
    }

    pub(crate) fn from_json(value: &Value) -> Self {
        let Some(fields) = value.as_object() else {
            return Self::default();
        };
        if fields.is_empty() {
            return Self::leaf();
        }
        let mut set = Self::default();
        for (name, child) in fields {
            if name == "." {
                set.itself = true;
            } else {
                set.children.insert(name.clone(), Self::from_json(child));
            }
        }
        set
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut fields = Map::new();
        if self.itself && !self.children.is_empty() {
            fields.insert(".".to_owned(), json!({}));
        }
        for (name, child) in &self.children {
            fields.insert(name.clone(), child.to_json());
        }
        Value::Object(fields)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.itself |= other.itself;
        for (name, child) in &other.children {
            self.children.entry(name.clone()).or_default().add(child);
        }
    }

    /// Removes the fields of `other`, and all fields below a leaf of `other`.
    pub(crate) fn subtract(&mut self, other: &Self) {
        if other.itself {
            self.itself = false;
        }
        for (name, gone) in &other.children {
            if let Some(child) = self.children.get_mut(name) {
                if gone.children.is_empty() && gone.itself && !name.starts_with("k:") {
                    self.children.remove(name);
                    continue;
                }
                child.subtract(gone);
                if child.is_empty() {
                    self.children.remove(name);
                }
            }
        }
    }

    /// Fields in both sets, as paths.
    pub(crate) fn common_paths(&self, other: &Self) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        self.collect_common(other, &mut Vec::new(), &mut found);
        found
    }

    fn collect_common(&self, other: &Self, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
        if self.itself && other.itself && self.children.is_empty() && other.children.is_empty() {
            found.push(path.clone());
        }
        for (name, child) in &self.children {
            if let Some(others) = other.children.get(name) {
                path.push(name.clone());
                child.collect_common(others, path, found);
                path.pop();
            }
        }
    }

    /// The set of the one field at a path.
    pub(crate) fn of_path(path: &[String]) -> Self {
        path.iter().rev().fold(Self::leaf(), |set, name| Self {
            itself: false,
            children: [(name.clone(), set)].into(),
        })
    }

    /// Removes from `value` the fields of this set that are not in `kept`.
    pub(crate) fn remove_from(&self, value: &mut Value, kept: &Self, shape: Shape<'_>) {
        for (name, gone) in &self.children {
            let kept_child = kept.children.get(name);
            let whole = gone.itself && kept_child.is_none();
            match value {
                Value::Object(fields) => {
                    let Some(field) = name.strip_prefix("f:") else { continue };
                    if whole {
                        fields.remove(field);
                        continue;
                    }
                    let Some(child) = fields.get_mut(field) else { continue };
                    gone.remove_from(child, kept_child.unwrap_or(&Self::default()), shape.child(field));
                    if kept_child.is_none() && is_empty_container(child) {
                        fields.remove(field);
                    }
                }
                Value::Array(items) => {
                    let ListShape::Map(keys) = shape.list() else {
                        items.retain(|item| !whole || format!("v:{item}") != *name);
                        continue;
                    };
                    let Some(at) = items.iter().position(|item| item_key(item, &keys) == *name) else {
                        continue;
                    };
                    if whole {
                        items.remove(at);
                    } else {
                        gone.remove_from(&mut items[at], kept_child.unwrap_or(&Self::default()), shape.item());
                    }
                }
                _ => {}
            }
        }
    }
}

/// The difference between two objects.
pub(crate) fn difference(old: &Value, new: &Value, shape: Shape<'_>) -> Difference {
    let mut difference = differ(Some(old), Some(new), shape);
    difference.written.strip();
    difference.removed.strip();
    difference
}

fn differ(old: Option<&Value>, new: Option<&Value>, shape: Shape<'_>) -> Difference {
    let (old, new) = match (old, new) {
        (None, None) => return Difference::default(),
        (None, Some(new)) => {
            return Difference {
                written: FieldSet::of(new, shape),
                removed: FieldSet::default(),
            };
        }
        (Some(old), None) => {
            return Difference {
                written: FieldSet::default(),
                removed: FieldSet::of(old, shape),
            };
        }
        (Some(old), Some(new)) => (old, new),
    };
    if old == new {
        return Difference::default();
    }
    let mut difference = Difference::default();
    match (old, new) {
        (Value::Object(a), Value::Object(b)) if !shape.atomic_map() && !b.is_empty() => {
            let gone = a.keys().filter(|name| !b.contains_key(*name));
            for name in b.keys().chain(gone) {
                difference.put(format!("f:{name}"), differ(a.get(name), b.get(name), shape.child(name)));
            }
        }
        (Value::Array(a), Value::Array(b)) if shape.list() != ListShape::Atomic && !b.is_empty() => {
            let key = |item: &Value| match shape.list() {
                ListShape::Map(keys) => item_key(item, &keys),
                ListShape::Set | ListShape::Atomic => format!("v:{item}"),
            };
            let olds: BTreeMap<String, &Value> = a.iter().map(|item| (key(item), item)).collect();
            let news: BTreeMap<String, &Value> = b.iter().map(|item| (key(item), item)).collect();
            for name in news.keys().chain(olds.keys().filter(|k| !news.contains_key(*k))) {
                let (before, after) = (olds.get(name).copied(), news.get(name).copied());
                let mut inner = differ(before, after, shape.item());
                if name.starts_with("k:") {
                    inner.written.itself |= before.is_none();
                    inner.removed.itself |= after.is_none();
                }
                difference.put(name.clone(), inner);
            }
        }
        _ => {
            difference.written = FieldSet::of(new, shape);
            difference.removed = FieldSet::of(old, shape);
            difference.removed.subtract(&difference.written);
        }
    }
    difference
}

impl Difference {
    fn put(&mut self, name: String, inner: Self) {
        if !inner.written.is_empty() {
            self.written.children.insert(name.clone(), inner.written);
        }
        if !inner.removed.is_empty() {
            self.removed.children.insert(name, inner.removed);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.written.is_empty() && self.removed.is_empty()
    }
}

/// The key of a list item: its key fields as JSON.
pub(crate) fn item_key(item: &Value, keys: &[&str]) -> String {
    let mut fields = Map::new();
    for &key in keys {
        match &item[key] {
            // The only key field with a default.
            Value::Null if key == "protocol" => fields.insert(key.to_owned(), json!("TCP")),
            Value::Null => continue,
            value => fields.insert(key.to_owned(), value.clone()),
        };
    }
    format!("k:{}", Value::Object(fields))
}

/// The value at a path, if there is one.
pub(crate) fn value_at<'v>(value: &'v Value, path: &[String], shape: Shape<'_>) -> Option<&'v Value> {
    let Some((first, rest)) = path.split_first() else {
        return Some(value);
    };
    if let Some(field) = first.strip_prefix("f:") {
        return value_at(value.get(field)?, rest, shape.child(field));
    }
    let item = match shape.list() {
        ListShape::Map(keys) => value.as_array()?.iter().find(|item| item_key(item, &keys) == *first)?,
        ListShape::Set | ListShape::Atomic => value.as_array()?.iter().find(|item| format!("v:{item}") == *first)?,
    };
    value_at(item, rest, shape.item())
}

/// A path as people read it: `.spec.containers[name="a"].image`.
pub(crate) fn path_text(path: &[String]) -> String {
    let mut text = String::new();
    for name in path {
        if let Some(field) = name.strip_prefix("f:") {
            text.push('.');
            text.push_str(field);
        } else if let Some(keys) = name.strip_prefix("k:") {
            let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let parts: Vec<String> = keys.iter().map(|(k, v)| format!("{k}={v}")).collect();
            text.push_str(&format!("[{}]", parts.join(",")));
        } else if let Some(value) = name.strip_prefix("v:") {
            text.push_str(&format!("[={value}]"));
        }
    }
    text
}

fn is_empty_container(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_look_like_managed_fields() {
        let pod = json!({"metadata": {"name": "a", "labels": {"x": "1"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let set = FieldSet::of_object(&pod, Shape::BUILT_IN);
        let expect = json!({
            "f:metadata": {"f:labels": {"f:x": {}}},
            "f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:name": {}, "f:image": {}}}}
        });
        assert_eq!(set.to_json(), expect);
        assert_eq!(FieldSet::from_json(&expect), set);
    }

    #[test]
    fn differences() {
        let old = json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"replicas": 1}});
        let new = json!({"metadata": {"labels": {"a": "1", "c": "3"}}, "spec": {"replicas": 2}});
        let difference = difference(&old, &new, Shape::BUILT_IN);
        let written = json!({"f:metadata": {"f:labels": {"f:c": {}}}, "f:spec": {"f:replicas": {}}});
        assert_eq!(difference.written.to_json(), written);
        assert_eq!(
            difference.removed.to_json(),
            json!({"f:metadata": {"f:labels": {"f:b": {}}}})
        );
    }
}
