//! The conditions of Config and SchedulingShard, with the types and reasons of KAI's operator.

use kai_api::{Object, Resource};
use kai_cluster::{Client, Error, Part, Patch, Target};
use serde_json::{Value, json};

/// Messages are cut at this length; the schema allows 32,768 characters.
const MESSAGE_CHARS_MAX: usize = 8_000;

/// How far the roles of a Config or of a shard are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Why objects could not be applied or settings are invalid.
    pub errors: Vec<String>,
    /// Roles that do not run as planned yet, with reasons.
    pub unavailable: Vec<String>,
    /// Settings without an effect.
    pub ignored: Vec<String>,
    /// Objects or settings that the roles need and that do not exist.
    pub missing: Vec<String>,
}

impl Readiness {
    fn is_ready(&self) -> bool {
        self.errors.is_empty() && self.unavailable.is_empty() && self.missing.is_empty()
    }

    /// The conditions: type, status, reason, message.
    fn conditions(&self) -> [(&'static str, bool, &'static str, String); 5] {
        let deployed = self.errors.is_empty();
        let available = deployed && self.unavailable.is_empty();
        let fulfilled = self.missing.is_empty();
        let choose = |holds: bool, yes, no| if holds { yes } else { no };
        let ignored = self.ignored.join("; ");
        let mut ready = match self.is_ready() {
            true => vec!["all roles run".to_owned()],
            false => [&self.errors[..], &self.missing[..], &self.unavailable[..]].concat(),
        };
        if !ignored.is_empty() {
            ready.push(format!("without effect: {ignored}"));
        }
        [
            (
                "Reconciling",
                !deployed,
                choose(deployed, "reconciled", "reconciling"),
                self.errors.join("; "),
            ),
            (
                "Deployed",
                deployed,
                choose(deployed, "deployed", "not_deployed"),
                self.errors.join("; "),
            ),
            (
                "Available",
                available,
                choose(available, "available", "not_available"),
                self.unavailable.join("; "),
            ),
            (
                "DependenciesFulfilled",
                fulfilled,
                choose(fulfilled, "dependencies_fulfilled", "dependencies_missing"),
                self.missing.join("; "),
            ),
            (
                "Ready",
                self.is_ready(),
                choose(self.is_ready(), "ready", "not_ready"),
                ready.join("; "),
            ),
        ]
    }
}

/// Writes the conditions of the Config.
pub(super) async fn write_config_status(
    client: &Client,
    name: &str,
    readiness: &Readiness,
    now: &str,
) -> Result<(), Error> {
    write(client, &kai_api::Config::RESOURCE, name, readiness, now).await
}

/// Writes the conditions of a shard.
pub(super) async fn write_shard_status(
    client: &Client,
    name: &str,
    readiness: &Readiness,
    now: &str,
) -> Result<(), Error> {
    write(client, &kai_api::SchedulingShard::RESOURCE, name, readiness, now).await
}

/// Writes the conditions unless the object has them already: a write wakes up every watch.
async fn write(
    client: &Client,
    resource: &Resource,
    name: &str,
    readiness: &Readiness,
    now: &str,
) -> Result<(), Error> {
    let target = Target {
        resource,
        namespace: "",
        name,
    };
    let Some(object) = client.get_value(target).await? else {
        return Ok(());
    };
    let conditions = merged(&object, readiness, now);
    if object["status"]["conditions"] == conditions {
        return Ok(());
    }
    let patch = Patch::Merge(json!({ "status": { "conditions": conditions } }));
    client.patch(target, Part::Status, patch).await.map(drop)
}

/// The object's conditions with ours in place. Conditions of other types stay.
fn merged(object: &Value, readiness: &Readiness, now: &str) -> Value {
    let present = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let ours = readiness.conditions().map(|(kind, holds, reason, message)| {
        let status = if holds { "True" } else { "False" };
        let before = present.iter().find(|condition| condition["type"] == kind);
        let since = before.filter(|before| before["status"] == status);
        let since = since.map_or_else(|| Value::from(now), |before| before["lastTransitionTime"].clone());
        json!({
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message.chars().take(MESSAGE_CHARS_MAX).collect::<String>(),
            "lastTransitionTime": since,
            "observedGeneration": object["metadata"]["generation"].as_i64().unwrap_or_default(),
        })
    });
    let is_ours = |condition: &&Value| ours.iter().any(|own| own["type"] == condition["type"]);
    let others = present.iter().filter(|condition| !is_ours(condition)).cloned();
    ours.iter().cloned().chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_keep_their_time_while_their_status_is_the_same() {
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        let waiting = Readiness {
            unavailable: vec!["binder: 0 of 1 pods".to_owned()],
            ..Readiness::default()
        };
        let other = json!({ "type": "Backup", "status": "True" });
        let first = json!({ "metadata": { "generation": 1 }, "status": { "conditions": [other] } });
        let first = merged(&first, &waiting, early);
        let second = json!({ "metadata": { "generation": 2 }, "status": { "conditions": first } });
        let second = merged(&second, &Readiness::default(), late);
        let summary = |conditions: &Value| -> Vec<String> {
            let line = |condition: &Value| {
                let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
                format!(
                    "{}={} {} {}",
                    text("type"),
                    text("status"),
                    text("reason"),
                    text("lastTransitionTime")
                )
            };
            conditions.as_array().unwrap().iter().map(line).collect()
        };
        insta::assert_snapshot!(summary(&second).join("\n"));
        assert_eq!(second[4]["observedGeneration"], 2);
        assert_eq!(first[4]["message"], "binder: 0 of 1 pods");
    }
}
