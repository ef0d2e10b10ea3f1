//! Server-side apply and `managedFields`. Pure.

use serde_json::{Value, json};

use super::fields::{FieldSet, difference, item_key, path_text, value_at};
use super::shape::{ListShape, Shape};
use crate::server::object::metadata_mut;
use crate::server::status_error::{Cause, StatusError};

/// The longest manager name, as in Kubernetes.
pub(crate) const MANAGER_LEN_MAX: usize = 128;

/// The field manager of a write.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FieldManager<'a> {
    pub(crate) name: &'a str,
    pub(crate) api_version: String,
    /// Empty for the main resource.
    pub(crate) subresource: &'a str,
    pub(crate) now: &'a str,
}

#[derive(Debug, Clone, PartialEq)]
struct ManagedFieldsEntry {
    manager: String,
    operation: String,
    api_version: String,
    subresource: String,
    time: Value,
    fields: FieldSet,
}

/// Applies a manager's configuration to the live object.
pub(crate) fn apply(
    live: &Value,
    config: &Value,
    force: bool,
    manager: &FieldManager<'_>,
    shape: Shape<'_>,
) -> Result<Value, StatusError> {
    check_manager(manager.name)?;
    if config["metadata"]
        .get("managedFields")
        .is_some_and(|m| !m.is_null() && *m != json!([]))
    {
        return Err(StatusError::bad_request("metadata.managedFields must be nil"));
    }
    let wanted = FieldSet::of_object(config, shape);
    let mut entries = entries_of(live);
    let own = entries.iter().position(|e| e.is_by(manager, "Apply"));
    let before = own.map(|at| entries.remove(at));

    let conflicts = conflicts(live, config, &wanted, &entries, shape);
    if !conflicts.is_empty() && !force {
        return Err(conflict_error(&entries, &conflicts));
    }
    for (at, path) in &conflicts {
        entries[*at].fields.subtract(&FieldSet::of_path(path));
    }
    entries.retain(|e| !e.fields.is_empty());

    let mut new = merged(live, config, shape);
    if let Some(before) = &before {
        let mut gone = before.fields.clone();
        gone.subtract(&wanted);
        let mut kept = wanted.clone();
        entries.iter().for_each(|e| kept.add(&e.fields));
        gone.remove_from(&mut new, &kept, shape);
    }
    let unchanged = before.as_ref().is_some_and(|b| b.fields == wanted) && same_without_managed_fields(live, &new);
    if unchanged {
        return Ok(live.clone());
    }
    entries.push(ManagedFieldsEntry::by(manager, "Apply", wanted));
    set_entries(&mut new, &entries);
    Ok(new)
}

/// Sets `managedFields` after a write that was no apply: the manager becomes the only owner of the changed fields.
pub(crate) fn track_update(old: &Value, new: &mut Value, manager: &FieldManager<'_>, shape: Shape<'_>) {
    let cleared = new["metadata"]
        .get("managedFields")
        .is_some_and(|m| *m == json!([]) || *m == json!([{}]));
    if cleared {
        metadata_mut(new).remove("managedFields");
        return;
    }
    let mut entries = entries_of(old);
    let difference = difference(old, new, shape);
    if difference.is_empty() {
        match old["metadata"].get("managedFields") {
            Some(managed_fields) => metadata_mut(new).insert("managedFields".to_owned(), managed_fields.clone()),
            None => metadata_mut(new).remove("managedFields"),
        };
        return;
    }
    for entry in &mut entries {
        entry.fields.subtract(&difference.written);
        entry.fields.subtract(&difference.removed);
    }
    if !difference.written.is_empty() {
        match entries
            .iter_mut()
            .find(|e| e.is_by(manager, "Update") && e.api_version == manager.api_version)
        {
            Some(entry) => {
                entry.fields.add(&difference.written);
                entry.time = json!(manager.now);
            }
            None => entries.push(ManagedFieldsEntry::by(manager, "Update", difference.written)),
        }
    }
    entries.retain(|e| !e.fields.is_empty());
    set_entries(new, &entries);
}

/// The live object merged with the configuration; the configuration wins.
pub(crate) fn merged(live: &Value, config: &Value, shape: Shape<'_>) -> Value {
    match (live, config) {
        (Value::Object(a), Value::Object(b)) if !shape.atomic_map() => {
            let mut fields = a.clone();
            for (name, value) in b {
                let value = match a.get(name) {
                    Some(old) => merged(old, value, shape.child(name)),
                    None => value.clone(),
                };
                fields.insert(name.clone(), value);
            }
            Value::Object(fields)
        }
        (Value::Array(a), Value::Array(b)) => match shape.list() {
            ListShape::Atomic => config.clone(),
            ListShape::Set => {
                let new = b.iter().filter(|item| !a.contains(item));
                a.iter().chain(new).cloned().collect()
            }
            ListShape::Map(keys) => {
                let mut items = a.clone();
                for item in b {
                    let key = item_key(item, &keys);
                    match items.iter_mut().find(|old| item_key(old, &keys) == key) {
                        Some(old) => *old = merged(old, item, shape.item()),
                        None => items.push(item.clone()),
                    }
                }
                Value::Array(items)
            }
        },
        _ => config.clone(),
    }
}

/// Rejects manager names that Kubernetes rejects.
fn check_manager(manager: &str) -> Result<(), StatusError> {
    let cause = if manager.is_empty() {
        Cause::required("fieldManager", "is required for apply patch")
    } else if manager.len() > MANAGER_LEN_MAX {
        Cause::too_long("fieldManager", MANAGER_LEN_MAX)
    } else {
        return Ok(());
    };
    Err(StatusError::invalid("PatchOptions", "meta.k8s.io", "", &[cause]))
}

fn conflicts(
    live: &Value,
    config: &Value,
    wanted: &FieldSet,
    entries: &[ManagedFieldsEntry],
    shape: Shape<'_>,
) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        for path in entry.fields.common_paths(wanted) {
            if value_at(live, &path, shape) != value_at(config, &path, shape) {
                found.push((at, path));
            }
        }
    }
    found
}

fn conflict_error(entries: &[ManagedFieldsEntry], conflicts: &[(usize, Vec<String>)]) -> StatusError {
    let cause = |(at, path): &(usize, Vec<String>)| {
        let entry = &entries[*at];
        let using = if entry.operation == "Update" {
            format!(" using {}", entry.api_version)
        } else {
            String::new()
        };
        Cause {
            reason: "FieldManagerConflict",
            message: format!("conflict with {:?}{using}", entry.manager),
            field: path_text(path),
        }
    };
    let causes: Vec<Cause> = conflicts.iter().map(cause).collect();
    let noun = if causes.len() == 1 { "conflict" } else { "conflicts" };
    let lines: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.message, c.field)).collect();
    let message = format!("Apply failed with {} {noun}: {}", causes.len(), lines.join("\n"));
    StatusError::of_code(409, message).with_causes(&causes)
}

fn same_without_managed_fields(a: &Value, b: &Value) -> bool {
    let without = |value: &Value| {
        let mut value = value.clone();
        metadata_mut(&mut value).remove("managedFields");
        value
    };
    without(a) == without(b)
}

fn entries_of(object: &Value) -> Vec<ManagedFieldsEntry> {
    object["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
        .map(ManagedFieldsEntry::from_json)
        .collect()
}

fn set_entries(object: &mut Value, entries: &[ManagedFieldsEntry]) {
    let list: Value = entries.iter().map(ManagedFieldsEntry::to_json).collect();
    if list == json!([]) {
        metadata_mut(object).remove("managedFields");
    } else {
        metadata_mut(object).insert("managedFields".to_owned(), list);
    }
}

impl ManagedFieldsEntry {
    fn by(manager: &FieldManager<'_>, operation: &str, fields: FieldSet) -> Self {
        Self {
            manager: manager.name.to_owned(),
            operation: operation.to_owned(),
            api_version: manager.api_version.clone(),
            subresource: manager.subresource.to_owned(),
            time: json!(manager.now),
            fields,
        }
    }

    fn is_by(&self, manager: &FieldManager<'_>, operation: &str) -> bool {
        self.manager == manager.name && self.operation == operation && self.subresource == manager.subresource
    }

    fn from_json(value: &Value) -> Self {
        let text = |field: &str| value[field].as_str().unwrap_or("").to_owned();
        Self {
            manager: text("manager"),
            operation: text("operation"),
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time: value["time"].clone(),
            fields: FieldSet::from_json(&value["fieldsV1"]),
        }
    }

    fn to_json(&self) -> Value {
        let mut entry = json!({
            "manager": self.manager,
            "operation": self.operation,
            "apiVersion": self.api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": self.fields.to_json(),
        });
        if !self.subresource.is_empty() {
            entry["subresource"] = json!(self.subresource);
        }
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(name: &str) -> FieldManager<'_> {
        FieldManager {
            name,
            api_version: "v1".to_owned(),
            subresource: "",
            now: "2026-01-01T00:00:00Z",
        }
    }

    fn applied(live: &Value, config: Value, name: &str, force: bool) -> Result<Value, StatusError> {
        apply(live, &config, force, &manager(name), Shape::BUILT_IN)
    }

    #[test]
    fn what_is_no_longer_applied_goes() {
        let live = applied(&json!({}), json!({"data": {"a": "1", "b": "2"}}), "one", false).unwrap();
        let live = applied(&live, json!({"data": {"c": "3"}}), "two", false).unwrap();
        let live = applied(&live, json!({"data": {"a": "1"}}), "one", false).unwrap();
        assert_eq!(live["data"], json!({"a": "1", "c": "3"}));
        assert_eq!(live["metadata"]["managedFields"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn conflicts_name_manager_and_field() {
        let live = applied(&json!({}), json!({"data": {"a": "1"}}), "one", false).unwrap();
        let error = applied(&live, json!({"data": {"a": "2"}}), "two", false).unwrap_err();
        assert_eq!((error.code, error.reason), (409, "Conflict"));
        assert_eq!(error.details["causes"][0]["field"], ".data.a");
        assert_eq!(
            error.message,
            "Apply failed with 1 conflict: conflict with \"one\": .data.a"
        );
        let live = applied(&live, json!({"data": {"a": "2"}}), "two", true).unwrap();
        assert_eq!(live["data"]["a"], "2");
        assert_eq!(live["metadata"]["managedFields"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn equal_values_are_shared_and_survive_one_leaving() {
        let live = applied(&json!({}), json!({"data": {"a": "1"}}), "one", false).unwrap();
        let live = applied(&live, json!({"data": {"a": "1"}}), "two", false).unwrap();
        let live = applied(&live, json!({"data": {"z": "1"}}), "one", false).unwrap();
        assert_eq!(live["data"], json!({"a": "1", "z": "1"}));
    }

    #[test]
    fn list_items_go_by_key() {
        let config = |items: Value| json!({"spec": {"containers": items}});
        let live = applied(
            &json!({}),
            config(json!([{"name": "a", "image": "1"}, {"name": "b"}])),
            "one",
            false,
        )
        .unwrap();
        let live = applied(&live, config(json!([{"name": "c"}])), "two", false).unwrap();
        let live = applied(&live, config(json!([{"name": "a"}])), "one", false).unwrap();
        assert_eq!(live["spec"]["containers"], json!([{"name": "a"}, {"name": "c"}]));
    }

    #[test]
    fn an_update_takes_fields_over() {
        let live = applied(&json!({}), json!({"data": {"a": "1", "b": "1"}}), "one", false).unwrap();
        let mut new = live.clone();
        new["data"]["a"] = json!("2");
        track_update(&live, &mut new, &manager("editor"), Shape::BUILT_IN);
        let error = applied(&new, json!({"data": {"a": "1", "b": "1"}}), "one", false).unwrap_err();
        assert_eq!(
            error.details["causes"][0]["message"],
            "conflict with \"editor\" using v1"
        );
        let managed_fields = &new["metadata"]["managedFields"];
        assert_eq!(managed_fields[0]["fieldsV1"], json!({"f:data": {"f:b": {}}}));
        assert_eq!(managed_fields[1]["fieldsV1"], json!({"f:data": {"f:a": {}}}));
    }

    #[test]
    fn applying_the_same_again_changes_nothing() {
        let live = applied(&json!({}), json!({"data": {"a": "1"}}), "one", false).unwrap();
        let later = FieldManager {
            now: "2027-01-01T00:00:00Z",
            ..manager("one")
        };
        let again = apply(&live, &json!({"data": {"a": "1"}}), false, &later, Shape::BUILT_IN).unwrap();
        assert_eq!(again, live);
    }

    #[test]
    fn a_manager_needs_a_name() {
        assert_eq!(applied(&json!({}), json!({}), "", false).unwrap_err().code, 422);
    }
}
