//! The labels, conditions and events that roles write to Node objects. Labels and conditions are written by server-side apply under a
//! field manager's name, so each manager's entries appear and disappear without touching those of other managers.

use std::borrow::Cow;
use std::collections::BTreeMap;

use futures_core::Stream;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{GetParams, Patch, PatchParams, PostParams};
use kube::core::{PartialObjectMeta, Request};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Client, Error, Target, path, whole_seconds};

/// Result of [`Client::apply_node_labels`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelsApplied {
    /// Labels that another field manager owns, with that manager's name. Their values did not change.
    pub left_alone: BTreeMap<String, String>,
}

/// A node condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Type of the condition, in camel case.
    pub kind: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Reason: one word in camel case.
    pub reason: String,
    /// Message for people.
    pub message: String,
    /// When the status last changed.
    pub since: jiff::Timestamp,
}

/// Whether a condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
}

/// Who writes a condition that was applied without force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The field manager that applied it.
    Ours,
    /// Another one; the condition did not change.
    Foreign,
}

/// An event to be recorded about a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeEvent {
    /// Type of the event.
    pub severity: Severity,
    /// Reason: one word in camel case.
    pub reason: String,
    /// Message for people.
    pub message: String,
}

/// The type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Information.
    Normal,
    /// A problem that needs attention.
    Warning,
}

/// The metadata of a Node, as far as this file reads it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ObjectMeta {
    uid: String,
    labels: BTreeMap<String, String>,
    #[serde(rename = "managedFields")]
    managed_fields: Vec<ManagedFields>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ManagedFields {
    manager: String,
    #[serde(rename = "fieldsV1")]
    fields: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Object {
    metadata: ObjectMeta,
}

impl Client {
    /// Makes `labels` the whole set of labels that `manager` owns on the node. Labels of other field managers keep their values.
    pub async fn apply_node_labels(
        &self,
        node: &str,
        manager: &str,
        labels: &BTreeMap<String, String>,
    ) -> Result<LabelsApplied, Error> {
        let found = self.node(node).await?;
        let foreign = foreign_labels(&found.metadata.managed_fields, manager);
        let (kept, left_alone): (BTreeMap<_, _>, BTreeMap<_, _>) =
            labels.iter().partition(|(key, _)| !foreign.contains_key(key.as_str()));
        let body = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node, "labels": kept } });
        let parameters = PatchParams::apply(manager).force();
        let request =
            of_node(node).and_then(|(requests, name)| requests.patch(&name, &parameters, &Patch::Apply(body)));
        self.write_only(format!("labelling node {node}"), request).await?;
        let left_alone = left_alone
            .into_keys()
            .filter_map(|key| Some((key.clone(), foreign.get(key)?.clone())));
        Ok(LabelsApplied {
            left_alone: left_alone.collect(),
        })
    }

    /// The labels a node has.
    pub async fn node_labels(&self, node: &str) -> Result<BTreeMap<String, String>, Error> {
        Ok(self.node(node).await?.metadata.labels)
    }

    /// Watches the labels of one node, for ever: the labels at the start and after each change of the node. Failures are retried with
    /// backoff.
    pub fn watch_node_labels(&self, node: &str) -> impl Stream<Item = BTreeMap<String, String>> + Send + use<> {
        let api: Api<PartialObjectMeta<Node>> = Api::all(self.kube.clone());
        let config = watcher::Config::default().fields(&format!("metadata.name={node}"));
        let changes = watch(api, config).default_backoff().filter_map(|event| {
            std::future::ready(match event {
                Ok(Event::InitApply(node) | Event::Apply(node)) => Some(node.metadata.labels.unwrap_or_default()),
                // A deleted node comes back when its kubelet registers it again.
                Ok(Event::Init | Event::InitDone | Event::Delete(_)) => None,
                Err(error) => {
                    tracing::warn!(%error, "watching the node's labels failed; trying again");
                    None
                }
            })
        });
        changes.boxed()
    }

    /// The handler of a RuntimeClass; `None` if the class does not exist.
    pub async fn runtime_class_handler(&self, name: &str) -> Result<Option<String>, Error> {
        #[derive(Deserialize)]
        struct RuntimeClass {
            handler: String,
        }
        let request = path::segment(name)
            .and_then(|name| Request::new("/apis/node.k8s.io/v1/runtimeclasses").get(&name, &GetParams::default()));
        match self
            .call::<RuntimeClass>(&format!("reading runtime class {name}"), request)
            .await
        {
            Ok(class) => Ok(Some(class.handler)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes `conditions` all conditions that `manager` owns on the node. Conditions of other field managers stay.
    pub async fn apply_node_conditions(
        &self,
        node: &str,
        manager: &str,
        conditions: &[Condition],
    ) -> Result<(), Error> {
        self.apply_conditions(node, PatchParams::apply(manager).force(), conditions)
            .await
    }

    async fn apply_conditions(
        &self,
        node: &str,
        parameters: PatchParams,
        conditions: &[Condition],
    ) -> Result<(), Error> {
        let now = whole_seconds(jiff::Timestamp::now());
        let entry = |condition: &Condition| {
            let status = match condition.status {
                ConditionStatus::True => "True",
                ConditionStatus::False => "False",
            };
            json!({
                "type": condition.kind,
                "status": status,
                "reason": condition.reason,
                "message": condition.message,
                "lastTransitionTime": whole_seconds(condition.since),
                "lastHeartbeatTime": now,
            })
        };
        let body = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": { "name": node },
            "status": { "conditions": conditions.iter().map(entry).collect::<Vec<_>>() },
        });
        let request = of_node(node)
            .and_then(|(requests, name)| requests.patch_subresource("status", &name, &parameters, &Patch::Apply(body)));
        let kinds: Vec<&str> = conditions.iter().map(|condition| condition.kind.as_str()).collect();
        self.write_only(
            format!("setting condition {} of node {node}", kinds.join(", ")),
            request,
        )
        .await
    }

    /// Like [`Client::apply_node_conditions`], but never by force: conditions that another field manager owns stay its own. With an empty
    /// list the manager gives up its conditions.
    pub async fn apply_unclaimed_node_conditions(
        &self,
        node: &str,
        manager: &str,
        conditions: &[Condition],
    ) -> Result<Claim, Error> {
        let applied = self
            .apply_conditions(node, PatchParams::apply(manager), conditions)
            .await;
        match applied {
            Ok(()) => Ok(Claim::Ours),
            Err(error) if error.is_conflict() => Ok(Claim::Foreign),
            Err(error) => Err(error),
        }
    }

    /// Records an event about the node, where `kubectl describe node` finds it.
    pub async fn record_node_event(&self, node: &str, component: &str, event: &NodeEvent) -> Result<(), Error> {
        let uid = self.node(node).await?.metadata.uid;
        let now = whole_seconds(jiff::Timestamp::now());
        let severity = match event.severity {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        };
        let body = json!({
            "apiVersion": "v1",
            "kind": "Event",
            // Events of cluster-scoped objects live in the default namespace.
            "metadata": { "generateName": format!("{node}."), "namespace": "default" },
            "involvedObject": { "apiVersion": "v1", "kind": "Node", "name": node, "uid": uid },
            "type": severity,
            "reason": event.reason,
            "message": event.message,
            "source": { "component": component, "host": node },
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        });
        let bytes = body.to_string().into_bytes();
        let request = Request::new("/api/v1/namespaces/default/events").create(&PostParams::default(), bytes);
        self.write_only(format!("recording an event of node {node}"), request)
            .await
    }

    async fn node(&self, node: &str) -> Result<Object, Error> {
        let request = of_node(node).and_then(|(requests, name)| requests.get_metadata(&name, &GetParams::default()));
        self.call(&format!("reading node {node}"), request).await
    }
}

fn of_node(name: &str) -> Result<(Request, Cow<'_, str>), kube::core::request::Error> {
    path::object(Target::of::<kai_api::Node>("", name))
}

/// Label keys that managers other than `ours` own, with the owner's name.
fn foreign_labels(managed: &[ManagedFields], ours: &str) -> BTreeMap<String, String> {
    let mut foreign = BTreeMap::new();
    for entry in managed.iter().filter(|entry| entry.manager != ours) {
        let labels = entry.fields.pointer("/f:metadata/f:labels").and_then(Value::as_object);
        for key in labels.into_iter().flat_map(|labels| labels.keys()) {
            if let Some(key) = key.strip_prefix("f:") {
                foreign.insert(key.to_owned(), entry.manager.clone());
            }
        }
    }
    foreign
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_others_are_seen_with_their_owner() {
        let managed: Vec<ManagedFields> = serde_json::from_value(json!([
            { "manager": "kai-node-agent", "fieldsV1": { "f:metadata": { "f:labels": { "f:nvidia.com/gpu.count": {} } } } },
            { "manager": "nfd-master", "fieldsV1": { "f:metadata": { "f:labels": { ".": {}, "f:nvidia.com/gpu.memory": {} } } } },
            { "manager": "kubelet", "fieldsV1": { "f:status": {} } },
        ]))
        .unwrap();
        let foreign = foreign_labels(&managed, "kai-node-agent");
        assert_eq!(
            foreign,
            BTreeMap::from([("nvidia.com/gpu.memory".to_owned(), "nfd-master".to_owned())])
        );
    }
}
