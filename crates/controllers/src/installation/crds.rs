//! Applies the CustomResourceDefinitions by server-side apply. What to do about each definition is decided by a pure function of the
//! live definition and ours.
//!
//! Never a downgrade: a definition of a newer version stays as it is. A definition without our version is KAI's, or an earlier one of
//! ours; it is taken over.

use std::time::Duration;

use kai_api::{Resource, Scope, keys};
use kai_cluster::{Client, Part, Patch, Target};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Error;
use super::version::Version;

static DEFINITION: Resource = Resource::new(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    Scope::Cluster,
);
const FIELD_MANAGER: &str = "kai-crds";
/// How long the API server may take to serve a definition.
const ESTABLISHED_MAX: Duration = Duration::from_secs(60);
const ESTABLISHED_POLL: Duration = Duration::from_millis(200);
/// Fields that a message names at most.
const FIELDS_NAMED_MAX: usize = 5;

/// What happens to definitions of a newer version of kai.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewerCrds {
    /// They stay, and this version works with them: at the start of a role.
    Keep,
    /// They are an error: on the command line.
    Refuse,
    /// They are replaced by the definitions of this version.
    Replace,
}

/// What to do about one definition.
#[derive(Clone, Debug, PartialEq)]
enum Decision {
    /// Apply this definition.
    Apply {
        definition: Value,
        /// The live definition converts between versions by a webhook, which has to be removed first.
        strip_conversion: bool,
        /// Fields of the live schema that ours lacks.
        lost_fields: Vec<String>,
    },
    /// The live definition has this newer or unreadable version.
    Newer(String),
    /// The live definition is being deleted; it can be applied again afterwards.
    Terminating,
}

/// Applies all definitions and waits until the API server serves them. Returns the names of the applied definitions.
pub async fn apply(client: &Client, newer: NewerCrds) -> Result<Vec<String>, Error> {
    let definitions = kai_api::crd::crds();
    let mut live = Vec::new();
    for wanted in &definitions {
        live.push(client.get_value(target(name_of(wanted))).await?);
    }
    // All decisions before the first write, so that a refusal changes nothing.
    let mut decisions = Vec::new();
    for (wanted, live) in definitions.iter().zip(&live) {
        let decision = decide(wanted, live.as_ref(), newer);
        match &decision {
            Decision::Newer(version) if newer == NewerCrds::Refuse => {
                return Err(Error::NewerCrd {
                    name: name_of(wanted).to_owned(),
                    live: version.clone(),
                });
            }
            Decision::Terminating => return Err(Error::CrdTerminating(name_of(wanted).to_owned())),
            Decision::Newer(_) | Decision::Apply { .. } => decisions.push((name_of(wanted), decision)),
        }
    }
    let mut applied = Vec::new();
    for (name, decision) in decisions {
        if carry_out(client, name, decision).await? {
            applied.push(name.to_owned());
        }
    }
    for wanted in &definitions {
        wait_until_established(client, name_of(wanted)).await?;
    }
    Ok(applied)
}

/// Whether the definition was applied.
async fn carry_out(client: &Client, name: &str, decision: Decision) -> Result<bool, Error> {
    let (definition, strip_conversion, lost_fields) = match decision {
        Decision::Newer(version) => {
            tracing::warn!(
                definition = name,
                version,
                ours = Version::OURS,
                "a newer version of kai applied this CustomResourceDefinition; it stays as it is"
            );
            return Ok(false);
        }
        Decision::Terminating => return Err(Error::CrdTerminating(name.to_owned())),
        Decision::Apply {
            definition,
            strip_conversion,
            lost_fields,
        } => (definition, strip_conversion, lost_fields),
    };
    if !lost_fields.is_empty() {
        tracing::warn!(
            definition = name,
            fields = named(&lost_fields),
            "this version of kai does not know some fields of the CustomResourceDefinition; the API server drops them from objects that are \
             written from now on"
        );
    }
    if strip_conversion {
        // Another field manager owns the webhook, so server-side apply would leave it, and the API server would reject the result.
        let none = json!({ "spec": { "conversion": { "strategy": "None", "webhook": null } } });
        client.patch(target(name), Part::Object, Patch::Merge(none)).await?;
    }
    let patch = Patch::Apply {
        manager: FIELD_MANAGER,
        fields: definition,
    };
    client.patch(target(name), Part::Object, patch).await?;
    Ok(true)
}

fn decide(wanted: &Value, live: Option<&Value>, newer: NewerCrds) -> Decision {
    let mut definition = wanted.clone();
    definition["metadata"]["annotations"][keys::CRD_VERSION] = Version::OURS.into();
    let Some(live) = live else {
        return Decision::Apply {
            definition,
            strip_conversion: false,
            lost_fields: Vec::new(),
        };
    };
    if !live["metadata"]["deletionTimestamp"].is_null() {
        return Decision::Terminating;
    }
    let version = live["metadata"]["annotations"][keys::CRD_VERSION].as_str();
    if let Some(version) = version
        && newer != NewerCrds::Replace
        && Version::parse(version).is_none_or(|version| version > Version::ours())
    {
        return Decision::Newer(version.to_owned());
    }
    keep_stored_versions(&mut definition, live);
    Decision::Apply {
        strip_conversion: live["spec"]["conversion"]["strategy"] == "Webhook",
        lost_fields: lost_fields(live, &definition),
        definition,
    }
}

/// Keeps the versions in which objects may be stored: the API server rejects a definition without them. They have no conversion; an
/// object is stored in our version when it is next written.
fn keep_stored_versions(definition: &mut Value, live: &Value) {
    let stored = list(&live["status"]["storedVersions"]);
    let Some(versions) = definition["spec"]["versions"].as_array_mut() else {
        return;
    };
    for version in list(&live["spec"]["versions"]) {
        let is_ours = versions.iter().any(|ours| ours["name"] == version["name"]);
        if !is_ours && stored.contains(&version["name"]) {
            let mut kept = version.clone();
            kept["storage"] = false.into();
            versions.push(kept);
        }
    }
}

/// Fields of the live schemas that ours lack, by version.
fn lost_fields(live: &Value, ours: &Value) -> Vec<String> {
    let mut lost = Vec::new();
    for version in list(&ours["spec"]["versions"]) {
        let mut before = list(&live["spec"]["versions"]).iter();
        if let Some(before) = before.find(|before| before["name"] == version["name"]) {
            let schema = |version: &'_ Value| version["schema"]["openAPIV3Schema"].clone();
            compare_schemas(&schema(before), &schema(version), "", &mut lost);
        }
    }
    lost
}

fn compare_schemas(before: &Value, ours: &Value, path: &str, lost: &mut Vec<String>) {
    if ours["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    if let Some(fields) = before["properties"].as_object() {
        for (name, schema) in fields {
            let path = format!("{path}.{name}");
            // Metadata, apiVersion and kind are the API server's.
            let of_server = ["metadata", "apiVersion", "kind"].contains(&&path[1..]);
            match (&ours["properties"][name], &ours["additionalProperties"]) {
                _ if of_server => {}
                (Value::Null, Value::Null | Value::Bool(false)) => lost.push(path[1..].to_owned()),
                (Value::Null, every) => compare_schemas(schema, every, &path, lost),
                (own, _) => compare_schemas(schema, own, &path, lost),
            }
        }
    }
    for nested in ["items", "additionalProperties"] {
        if before[nested].is_object() && ours[nested].is_object() {
            compare_schemas(&before[nested], &ours[nested], path, lost);
        }
    }
}

/// Waits until the API server serves the definition.
async fn wait_until_established(client: &Client, name: &str) -> Result<(), Error> {
    let deadline = Instant::now() + ESTABLISHED_MAX;
    loop {
        let live = client.get_value(target(name)).await?.unwrap_or_default();
        let condition = |kind: &str| {
            let mut conditions = list(&live["status"]["conditions"]).iter();
            conditions.find(|condition| condition["type"] == kind)
        };
        if condition("Established").is_some_and(|established| established["status"] == "True") {
            return Ok(());
        }
        if Instant::now() > deadline {
            let refused = condition("NamesAccepted").filter(|accepted| accepted["status"] == "False");
            let why = refused.and_then(|accepted| accepted["message"].as_str());
            return Err(Error::NotEstablished {
                name: name.to_owned(),
                reason: why.unwrap_or("it has no condition Established=True").to_owned(),
            });
        }
        tokio::time::sleep(ESTABLISHED_POLL).await;
    }
}

fn target(name: &str) -> Target<'_> {
    Target {
        resource: &DEFINITION,
        namespace: "",
        name,
    }
}

fn name_of(definition: &Value) -> &str {
    definition["metadata"]["name"].as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The first fields, and how many there are more.
fn named(fields: &[String]) -> String {
    let shown = fields
        .iter()
        .take(FIELDS_NAMED_MAX)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    match fields.len().saturating_sub(FIELDS_NAMED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Value {
        json!({
            "metadata": { "name": "queues.scheduling.run.ai" },
            "spec": { "versions": [version("v2", true, json!({ "spec": { "type": "object", "properties": { "a": {} } } }))] },
        })
    }

    fn version(name: &str, storage: bool, properties: Value) -> Value {
        json!({ "name": name, "served": true, "storage": storage, "schema": { "openAPIV3Schema": { "properties": properties } } })
    }

    fn live(annotation: Option<&str>) -> Value {
        let mut live = wanted();
        if let Some(version) = annotation {
            live["metadata"]["annotations"] = json!({ keys::CRD_VERSION: version });
        }
        live
    }

    fn applied(decision: Decision) -> (Value, bool, Vec<String>) {
        match decision {
            Decision::Apply {
                definition,
                strip_conversion,
                lost_fields,
            } => (definition, strip_conversion, lost_fields),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_definition_is_applied_unless_a_newer_version_applied_it() {
        let check = |annotation: Option<&str>, newer: NewerCrds, expect: bool| {
            let decision = decide(&wanted(), Some(&live(annotation)), newer);
            assert_eq!(
                matches!(decision, Decision::Apply { .. }),
                expect,
                "{annotation:?} {newer:?}"
            );
        };
        check(None, NewerCrds::Keep, true);
        check(Some("0.0.0"), NewerCrds::Refuse, true);
        check(Some(Version::OURS), NewerCrds::Refuse, true);
        check(Some("99.0.0"), NewerCrds::Keep, false);
        check(Some("99.0.0"), NewerCrds::Refuse, false);
        check(Some("99.0.0"), NewerCrds::Replace, true);
        check(Some("what?"), NewerCrds::Keep, false);
        let (definition, strip, lost) = applied(decide(&wanted(), None, NewerCrds::Keep));
        assert_eq!(definition["metadata"]["annotations"][keys::CRD_VERSION], Version::OURS);
        assert!(!strip && lost.is_empty());
    }

    #[test]
    fn versions_with_stored_objects_stay() {
        let mut live = live(None);
        live["spec"]["versions"] = json!([version("v1", true, json!({})), version("v0", false, json!({}))]);
        live["status"]["storedVersions"] = json!(["v1"]);
        let (definition, _, _) = applied(decide(&wanted(), Some(&live), NewerCrds::Keep));
        let versions: Vec<(&Value, &Value)> = list(&definition["spec"]["versions"])
            .iter()
            .map(|version| (&version["name"], &version["storage"]))
            .collect();
        assert_eq!(versions, [(&json!("v2"), &json!(true)), (&json!("v1"), &json!(false))]);
    }

    #[test]
    fn kais_conversion_goes_and_fields_that_go_are_named() {
        let mut live = live(None);
        live["spec"]["conversion"] = json!({ "strategy": "Webhook", "webhook": {} });
        let fields = json!({ "a": { "properties": { "x": {} } }, "b": {}, "metadata": {} });
        let properties = json!({ "metadata": {}, "kind": {}, "spec": { "properties": fields } });
        live["spec"]["versions"] = json!([version("v2", true, properties)]);
        let (_, strip, lost) = applied(decide(&wanted(), Some(&live), NewerCrds::Keep));
        assert!(strip);
        assert_eq!(lost, ["spec.a.x", "spec.b", "spec.metadata"]);
        let many: Vec<String> = (0..7).map(|number| format!("f{number}")).collect();
        assert_eq!(named(&many), "f0, f1, f2, f3, f4 and 2 more");
    }

    #[test]
    fn unknown_fields_that_our_schema_keeps_are_not_lost() {
        let mut lost = Vec::new();
        let before =
            json!({ "properties": { "a": { "properties": { "b": {} } }, "c": { "properties": { "d": {} } } } });
        let ours = json!({ "properties": {
            "a": { "x-kubernetes-preserve-unknown-fields": true },
            "c": { "additionalProperties": { "type": "string" } },
        } });
        compare_schemas(&before, &ours, "", &mut lost);
        assert_eq!(lost, [""; 0]);
    }

    #[test]
    fn a_definition_that_is_being_deleted_is_waited_for() {
        let mut live = live(None);
        live["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(decide(&wanted(), Some(&live), NewerCrds::Keep), Decision::Terminating);
    }
}
