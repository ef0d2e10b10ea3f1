//! Tables for `kubectl get`. Pure.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::server::kinds::Kind;
use crate::server::object::Object;

/// Objects as a table; with its columns if `headed`.
pub(super) fn table(kind: &Kind, objects: &[Object], metadata: Value, headed: bool, now: Timestamp) -> Value {
    let _ = kind;
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            json!({
                "cells": [object.name(), age(&object["metadata"]["creationTimestamp"], now)],
                "object": super::format::metadata_only(object),
            })
        })
        .collect();
    let column = |name: &str| json!({"name": name, "type": "string", "format": "", "description": "", "priority": 0});
    let columns = if headed {
        json!([column("Name"), column("Age")])
    } else {
        json!([])
    };
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": columns, "rows": rows
    })
}

fn age(since: &Value, now: Timestamp) -> String {
    let _ = now;
    since.as_str().unwrap_or("").to_owned()
}
