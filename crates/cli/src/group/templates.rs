//! Finds the templates of pods in a workload of any kind: maps with containers.

use serde_json::{Value, json};

/// Levels of an object that are looked at. No kind is deeper.
const DEPTH_MAX: usize = 32;
/// Templates of one object.
const TEMPLATES_MAX: usize = 256;

/// A template of pods.
pub(super) struct Template {
    /// Where it is in the object.
    pub(super) path: String,
    /// A pod without name.
    pub(super) pod: Value,
}

/// The templates in an object, in the order of its fields.
pub(super) fn of(object: &Value) -> Vec<Template> {
    let mut found = Vec::new();
    let default_scheduler = object.pointer("/spec/schedulerName");
    search(object, None, String::new(), 0, &mut found);
    for template in &mut found {
        // Some kinds say once for all templates which scheduler their pods have.
        let spec = &mut template.pod["spec"];
        if let (Some(name), true) = (default_scheduler, spec.get("schedulerName").is_none()) {
            spec["schedulerName"] = name.clone();
        }
    }
    found
}

fn search(value: &Value, parent: Option<&Value>, path: String, depth: usize, found: &mut Vec<Template>) {
    if depth > DEPTH_MAX || found.len() == TEMPLATES_MAX {
        return;
    }
    match value {
        Value::Object(map) => {
            if map.get("containers").is_some_and(is_containers) {
                // The metadata of the workload itself is no metadata of its pods.
                let metadata = parent.filter(|_| depth > 1).and_then(|parent| parent.get("metadata"));
                let metadata = metadata.filter(|metadata| metadata.is_object()).cloned();
                let place = path.strip_suffix(".spec").filter(|_| depth > 1).unwrap_or(&path);
                found.push(Template {
                    path: place.to_owned(),
                    pod: json!({ "metadata": metadata.unwrap_or_else(|| json!({})), "spec": value }),
                });
                return;
            }
            for (key, child) in map {
                let path = match path.as_str() {
                    "" => key.clone(),
                    path => format!("{path}.{key}"),
                };
                search(child, Some(value), path, depth + 1, found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                search(item, Some(value), format!("{path}[{index}]"), depth + 1, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn is_containers(value: &Value) -> bool {
    let Value::Array(items) = value else { return false };
    !items.is_empty()
        && items
            .iter()
            .all(|item| item.get("name").is_some() || item.get("image").is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_found_in_any_kind() {
        let container = json!([{ "name": "main", "image": "x" }]);
        let object = json!({
            "metadata": { "name": "w", "labels": { "own": "x" } },
            "spec": {
                "schedulerName": "kai-scheduler",
                "tasks": [
                    { "template": { "metadata": { "labels": { "a": "b" } }, "spec": { "containers": container } } },
                    { "template": { "spec": { "schedulerName": "other", "containers": container } } },
                ],
                "cliques": [{ "name": "c", "spec": { "podSpec": { "containers": container } } }],
                "nothing": { "containers": [] },
            },
        });
        let found = of(&object);
        let places: Vec<(&str, &str)> = found
            .iter()
            .map(|template| {
                (
                    template.path.as_str(),
                    template.pod["spec"]["schedulerName"].as_str().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            places,
            [
                ("spec.cliques[0].spec.podSpec", "kai-scheduler"),
                ("spec.tasks[0].template", "kai-scheduler"),
                ("spec.tasks[1].template", "other"),
            ]
        );
        assert_eq!(found[1].pod["metadata"], json!({ "labels": { "a": "b" } }));
        // A kind whose spec is that of its pod.
        let object =
            json!({ "metadata": { "name": "n", "labels": { "own": "x" } }, "spec": { "containers": container } });
        assert_eq!(of(&object)[0].pod["metadata"], json!({}));
        assert_eq!(of(&object)[0].path, "spec");
    }
}
