//! Conversion of events between the API groups core and `events.k8s.io`. Events are stored in the core form. Pure.

use serde_json::{Value, json};

use crate::server::object::map_mut;

/// Field names in `events.k8s.io` and in the core group.
const RENAMED: [(&str, &str); 6] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// Converts an event to the core form. An event in the core form stays as it is.
pub(crate) fn to_core(event: &mut Value) {
    let fields = map_mut(event);
    for (new, core) in RENAMED {
        if let Some(value) = fields.remove(new) {
            fields.insert(core.to_owned(), value);
        }
    }
    if let Some(source) = fields.remove("deprecatedSource") {
        fields.insert("source".to_owned(), source);
    }
    fields.entry("involvedObject").or_insert_with(|| json!({}));
}

/// Converts a stored event to the form of `events.k8s.io`.
pub(crate) fn from_core(event: &Value) -> Value {
    let mut event = event.clone();
    let fields = map_mut(&mut event);
    for (new, core) in RENAMED {
        if let Some(value) = fields.remove(core) {
            fields.insert(new.to_owned(), value);
        }
    }
    if let Some(source) = fields.remove("source") {
        fields.insert("deprecatedSource".to_owned(), source);
    }
    fields.retain(|name, value| !(name.starts_with("reporting") && value == ""));
    fields.insert("apiVersion".to_owned(), json!("events.k8s.io/v1"));
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let new =
            json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "regarding": {"name": "a"}, "note": "hello"});
        let mut stored = new.clone();
        to_core(&mut stored);
        assert_eq!(stored["involvedObject"]["name"], "a");
        assert_eq!(from_core(&stored), new);
    }
}
