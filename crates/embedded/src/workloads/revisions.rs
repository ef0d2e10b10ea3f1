//! ControllerRevisions: the earlier templates of a StatefulSet or DaemonSet, for `kubectl rollout history` and `undo`. Pure.

use kai_api::Resource;
use serde_json::{Value, json};

use super::objects::{Workload, template_hash};

/// Label of revisions and pods.
pub(super) const HASH: &str = "controller-revision-hash";

/// The revisions of a workload, and the writes that they need.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Revisions {
    /// The hash of the present template.
    pub(super) update: String,
    /// The hash of the previous template during a rollout.
    pub(super) current: String,
    /// The template with the hash `current`, if it is known.
    pub(super) current_template: Option<Value>,
    pub(super) create: Option<Value>,
    /// An old revision that becomes the latest again, with its new number.
    pub(super) renumber: Option<(String, i64)>,
    pub(super) delete: Vec<String>,
}

/// Finds the revision of the present template among the `known` ones. `in_use` has the template hashes of existing pods.
pub(super) fn plan(workload: &Workload, resource: &Resource, known: &[Value], in_use: &[&str]) -> Revisions {
    let template = &workload.spec["template"];
    let update = template_hash(template);
    let hash = |revision: &Value| {
        let text = revision["metadata"]["labels"][HASH].as_str();
        text.unwrap_or_default().to_owned()
    };
    let number = |revision: &Value| revision["revision"].as_i64().unwrap_or(0);
    let name = |revision: &Value| revision["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let latest = known.iter().map(number).max().unwrap_or(0);
    let mut plan = Revisions::default();
    match known.iter().find(|revision| hash(revision) == update) {
        None => {
            let mut metadata = workload.owner(resource);
            metadata["name"] = format!("{}-{update}", workload.name()).into();
            metadata["labels"] = match &workload.spec["selector"]["matchLabels"] {
                Value::Null => json!({}),
                labels => labels.clone(),
            };
            metadata["labels"][HASH] = update.as_str().into();
            let mut data = template.clone();
            data["$patch"] = "replace".into();
            let body =
                json!({ "metadata": metadata, "revision": latest + 1, "data": { "spec": { "template": data } } });
            plan.create = Some(body);
        }
        Some(revision) if number(revision) < latest => plan.renumber = Some((name(revision), latest + 1)),
        Some(_) => {}
    }
    let before = workload.status["currentRevision"].as_str().unwrap_or_default();
    let before = before.strip_prefix(&format!("{}-", workload.name())).unwrap_or(&update);
    let current = known.iter().find(|revision| hash(revision) == before);
    plan.current_template = current.map(|revision| {
        let mut template = revision["data"]["spec"]["template"].clone();
        template.as_object_mut().map(|fields| fields.remove("$patch"));
        template
    });
    plan.current = before.to_owned();
    let kept = |hash: &str| hash == update || hash == before || in_use.contains(&hash);
    let mut old: Vec<&Value> = known.iter().filter(|revision| !kept(&hash(revision))).collect();
    old.sort_by_key(|revision| number(revision));
    let surplus = old.len().saturating_sub(workload.history_limit());
    plan.delete = old.iter().take(surplus).map(|revision| name(revision)).collect();
    plan.update = update;
    plan
}

impl Revisions {
    /// The name of a revision in the status.
    pub(super) fn name(workload: &Workload, hash: &str) -> String {
        format!("{}-{hash}", workload.name())
    }
}

#[cfg(test)]
mod tests {
    use kai_api::Object;

    use super::super::objects::StatefulSet;
    use super::*;

    fn set(image: &str, limit: u32) -> Workload {
        Workload::of(json!({
            "metadata": { "name": "db", "uid": "u" },
            "spec": { "revisionHistoryLimit": limit, "selector": { "matchLabels": { "app": "db" } }, "template": { "spec": image } },
        }))
        .unwrap()
    }

    fn stored(plan: &Revisions) -> Value {
        plan.create.clone().unwrap()
    }

    #[test]
    fn a_template_that_comes_back_gets_the_highest_number() {
        let resource = StatefulSet::RESOURCE;
        let first = stored(&plan(&set("a", 10), &resource, &[], &[]));
        assert_eq!(first["revision"], 1);
        let second = stored(&plan(&set("b", 10), &resource, std::slice::from_ref(&first), &[]));
        assert_eq!(second["revision"], 2);
        let back = plan(&set("a", 10), &resource, &[first.clone(), second.clone()], &[]);
        assert_eq!(back.create, None);
        let name = first["metadata"]["name"].as_str().unwrap().to_owned();
        assert_eq!(back.renumber, Some((name, 3)));
        let trimmed = plan(&set("c", 0), &resource, &[first, second.clone()], &[]);
        assert_eq!(trimmed.delete.len(), 2);
        let used = second["metadata"]["labels"][HASH].as_str().unwrap().to_owned();
        let kept = plan(&set("c", 0), &resource, &[second], &[&used]);
        assert_eq!(kept.delete.len(), 0, "there are pods of it");
    }
}
