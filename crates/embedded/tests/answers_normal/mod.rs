//! Normalizes responses: removes what differs between runs and servers, such as versions, uids, times and addresses.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value, json};

static VOLATILE: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    [
        (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uid>"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "<time>"),
        (r"made-[a-z0-9]{5}", "made-<word>"),
        (r"current: \d+", "current: <version>"),
        (r"\b10\.96\.\d+\.\d+", "<address>"),
        (r"x{100,}", "<fill>"),
        (r#"resourceVersion: "\d+""#, "resourceVersion: <version>"),
        (r"a{200,}", "<long>"),
        // The prefix of storage errors of a real server.
        (r"StorageError: .* AdditionalErrorMsg: ", ""),
        // Servers format a patch and its result differently.
        (r#"(?s)Invalid value: "(\{|map\[|\[).*": "#, "Invalid value: <patch>: "),
    ]
    .into_iter()
    .map(|(pattern, word)| (Regex::new(pattern).unwrap(), word))
    .collect()
});
static AGE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\d+[smhdy](\d+[smhdy])?$").unwrap());

/// The response in the compared form.
pub(crate) fn normal(code: u16, warnings: &[String], text: &str, managers: bool) -> Value {
    let body = match serde_json::from_str::<Value>(text) {
        Ok(value) => of_value(value, managers),
        // A watch has one value per line.
        Err(_) if text.starts_with("{\"type\"") => text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .map(|event| of_event(&event))
            .collect(),
        Err(_) => json!(of_text(text.trim_end())),
    };
    let mut answer = json!({"code": code, "body": body});
    if !warnings.is_empty() {
        answer["warnings"] = json!(warnings);
    }
    answer
}

fn of_value(mut value: Value, managers: bool) -> Value {
    let kind = value["kind"].as_str().unwrap_or("").to_owned();
    let event = value.get("type").is_some_and(Value::is_string) && value.get("object").is_some() && kind.is_empty();
    if event {
        return json!([of_event(&value)]);
    }
    if kind == "Table" {
        of_table(&mut value);
    } else if kind == "APIResourceList" {
        for resource in value["resources"].as_array_mut().into_iter().flatten() {
            resource.as_object_mut().unwrap().remove("storageVersionHash");
        }
        let list = value["resources"].as_array_mut().unwrap();
        list.sort_by_key(|resource| resource["name"].to_string());
    } else if let Some(items) = value.get_mut("items").and_then(Value::as_array_mut) {
        *items = items
            .iter()
            .map(|item| json!(of_text(item["metadata"]["name"].as_str().unwrap_or(""))))
            .collect();
    }
    clean(&mut value, managers);
    // A real server validates some fields twice and lists both causes.
    if let Some(causes) = value.pointer_mut("/details/causes").and_then(Value::as_array_mut) {
        causes.dedup();
    }
    value
}

fn of_table(table: &mut Value) {
    for column in table["columnDefinitions"].as_array_mut().into_iter().flatten() {
        column.as_object_mut().unwrap().remove("description");
    }
    for row in table["rows"].as_array_mut().into_iter().flatten() {
        for cell in row["cells"].as_array_mut().into_iter().flatten() {
            if cell.as_str().is_some_and(|text| AGE.is_match(text)) {
                *cell = json!("<age>");
            }
        }
        // Only the type of the object: other requests compare the whole object.
        let object = &row["object"];
        let keys: Vec<&String> = object.as_object().into_iter().flat_map(Map::keys).collect();
        row["object"] = json!({"kind": object["kind"], "apiVersion": object["apiVersion"], "has": keys});
    }
}

fn of_event(event: &Value) -> Value {
    let object = &event["object"];
    let shown = match object["kind"].as_str() {
        Some("Status") => of_value(object.clone(), false),
        Some("Table") => {
            let columns = object["columnDefinitions"].as_array().map_or(0, Vec::len);
            json!({"columns": columns, "rows": object["rows"].as_array().map_or(0, Vec::len)})
        }
        _ => json!([
            object["kind"],
            object["metadata"]["name"],
            object["metadata"]["annotations"]
        ]),
    };
    json!([event["type"], shown])
}

fn clean(value: &mut Value, managers: bool) {
    match value {
        Value::Object(fields) => {
            of_controllers(fields);
            if !managers {
                fields.remove("managedFields");
            }
            if let Some(Value::Array(entries)) = fields.get_mut("managedFields") {
                entries.retain(|entry| entry["manager"] != "kube-controller-manager");
            }
            // The real server of the tests runs without the ServiceAccount admission plugin.
            fields.retain(|name, value| !(name.starts_with("serviceAccount") && value == "default"));
            // Lists of custom resources have an empty `continue`.
            fields.retain(|name, value| !(name == "continue" && value == ""));
            for (name, child) in fields.iter_mut() {
                match name.as_str() {
                    "resourceVersion" | "continue" if child.is_string() => *child = json!("<version>"),
                    "serverAddressByClientCIDRs" => *child = json!([]),
                    _ => clean(child, managers),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| clean(item, managers)),
        Value::String(text) => *text = of_text(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Removes fields that controllers write at any time.
fn of_controllers(object: &mut Map<String, Value>) {
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or("");
    if matches!(kind, "Deployment" | "ReplicaSet" | "Job" | "CustomResourceDefinition") {
        object.remove("status");
        let annotations = object.get_mut("metadata").and_then(|m| m.get_mut("annotations"));
        if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
            annotations.remove("deployment.kubernetes.io/revision");
        }
    }
}

fn of_text(text: &str) -> String {
    VOLATILE.iter().fold(text.to_owned(), |text, (pattern, word)| {
        pattern.replace_all(&text, *word).into_owned()
    })
}
