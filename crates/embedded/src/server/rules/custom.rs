//! CustomResourceDefinitions: defaulting, validation, and the kinds that they define. Pure.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::server::kinds::{Custom, Kind, Scale, Scope};
use crate::server::object::{field_mut, meta_text};
use crate::server::status_error::Cause;

pub(super) fn default_definition(definition: &mut Value) {
    let names = &mut definition["spec"]["names"];
    let kind = names["kind"].as_str().unwrap_or("").to_owned();
    if let Some(names) = names.as_object_mut() {
        names.entry("singular").or_insert(json!(kind.to_lowercase()));
        names.entry("listKind").or_insert(json!(format!("{kind}List")));
    }
    field_mut(definition, "spec")
        .entry("conversion")
        .or_insert(json!({"strategy": "None"}));
}

pub(super) fn check_definition(definition: &Value) -> Vec<Cause> {
    let spec = &definition["spec"];
    let mut causes = Vec::new();
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let (plural, group) = (text(&spec["names"]["plural"]), text(&spec["group"]));
    let name = meta_text(definition, "name");
    if name != format!("{plural}.{group}") {
        causes.push(Cause::invalid(
            "metadata.name",
            &json!(name),
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
    if text(&spec["names"]["kind"]).is_empty() {
        causes.push(Cause::required("spec.names.kind", ""));
    }
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    if versions.iter().filter(|v| v["storage"] == true).count() != 1 {
        let why = "must have exactly one version marked as storage version";
        causes.push(Cause::invalid("spec.versions", &spec["versions"], why));
    }
    for (at, version) in versions.iter().enumerate() {
        if !version["schema"]["openAPIV3Schema"].is_object() {
            let field = format!("spec.versions[{at}].schema.openAPIV3Schema");
            causes.push(Cause::required(field, ""));
        }
    }
    causes
}

/// Sets the conditions `NamesAccepted` and `Established`.
pub(super) fn establish(definition: &mut Value, now: &str) {
    let condition = |kind: &str, reason: &str, message: &str| json!({"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now});
    let names = definition["spec"]["names"].clone();
    let versions = definition["spec"]["versions"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let stored: Value = versions
        .iter()
        .filter(|v| v["storage"] == true)
        .map(|v| v["name"].clone())
        .collect();
    definition["status"] = json!({
        "acceptedNames": names,
        "storedVersions": stored,
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
    });
}

/// The kinds of a definition, one per served version.
pub(crate) fn kinds_of(definition: &Value) -> Vec<Kind> {
    let spec = &definition["spec"];
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let storage = versions
        .iter()
        .find(|v| v["storage"] == true)
        .and_then(|v| v["name"].as_str())
        .unwrap_or("");
    versions
        .iter()
        .filter(|v| v["served"] == true)
        .map(|version| kind_of(spec, version, storage))
        .collect()
}

fn kind_of(spec: &Value, version: &Value, storage: &str) -> Kind {
    let names = &spec["names"];
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let texts = |value: &Value| -> Vec<String> {
        value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|v| v.as_str().map(str::to_owned))
            .collect()
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let scale = &version["subresources"]["scale"];
    let schema = &version["schema"]["openAPIV3Schema"];
    Kind {
        group: text(&spec["group"]),
        version: text(&version["name"]),
        plural: text(&names["plural"]),
        singular: text(&names["singular"]),
        kind: text(&names["kind"]),
        list_kind: text(&names["listKind"]),
        short_names: texts(&names["shortNames"]),
        categories: texts(&names["categories"]),
        scope: if spec["scope"] == "Cluster" {
            Scope::Cluster
        } else {
            Scope::Namespaced
        },
        status: version["subresources"]["status"].is_object(),
        scale: scale.is_object().then(|| Scale {
            spec_replicas: text(&scale["specReplicasPath"]),
            status_replicas: text(&scale["statusReplicasPath"]),
            selector: scale["labelSelectorPath"].as_str().map(str::to_owned),
        }),
        custom: Some(Custom {
            schema: schema.is_object().then(|| Arc::new(schema.clone())),
            columns: list(&version["additionalPrinterColumns"]),
            selectable: list(&version["selectableFields"])
                .iter()
                .map(|f| text(&f["jsonPath"]))
                .collect(),
        }),
        storage_version: storage.to_owned(),
        table: 0,
    }
}
