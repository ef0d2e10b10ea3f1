//! Applies changes to the objects of a cluster. An object that does not exist is an error with the nearest name.

use std::path::Path;
use std::sync::Arc;

use kai_api::{Object as _, PodIdentity, keys};
use kai_engine::model::PodKind;
use rustc_hash::FxHashSet;
use serde_json::{Map, Value, json};

use super::super::Warnings;
use super::super::installation::Document;
use super::super::manifest;
use super::{Change, ObjectName, QueueField};
use crate::Error;
use kai_yaml::suggestion;

/// The label with the name of a node.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The taint of a cordoned node.
const CORDONED: &str = "node.kubernetes.io/unschedulable";

/// Applies the changes in order.
pub(in super::super) fn apply(
    changes: &[Change],
    documents: &mut Vec<Document>,
    warnings: &mut Warnings,
    identity: &PodIdentity,
) -> Result<(), Error> {
    for change in changes {
        let applied = match change {
            Change::AddNodes { count, like } => add_nodes(documents, *count, like),
            Change::RemoveNode { node } => remove_node(documents, node, identity),
            Change::CordonNode { node } => edit(documents, "Node", node, |object| {
                set(object, &["spec", "unschedulable"], true.into())
            }),
            // As `kubectl uncordon`: the taint that the node controller adds to a cordoned node goes, too.
            Change::UncordonNode { node } => edit(documents, "Node", node, |object| {
                remove(object, "/spec", "unschedulable");
                if let Some(taints) = object.pointer_mut("/spec/taints").and_then(Value::as_array_mut) {
                    taints.retain(|taint| text(taint, "/key") != CORDONED);
                }
            }),
            Change::SetQueue { queue, field, value } => set_queue(documents, queue, *field, *value),
            Change::DeletePod(name) => delete_pod(documents, name),
            Change::DeletePodGroup(name) => delete_pod_group(documents, name),
            Change::Submit(file) => {
                submit(documents, warnings, file)?;
                Ok(())
            }
        };
        applied.map_err(|problem| Error::Change {
            change: change.to_string(),
            problem,
        })?;
    }
    Ok(())
}

fn text<'d>(object: &'d Value, pointer: &str) -> &'d str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn name(document: &Document) -> &str {
    text(&document.object, "/metadata/name")
}

fn is(document: &Document, kind: &str, of: &ObjectName) -> bool {
    document.kind == kind && document.namespace() == of.namespace && name(document) == of.name
}

/// Sets a field; objects on the way are created.
fn set(object: &mut Value, path: &[&str], value: Value) {
    let mut at = object;
    for field in path {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = &mut at[*field];
    }
    *at = value;
}

fn remove(object: &mut Value, parent: &str, field: &str) {
    if let Some(fields) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
        fields.remove(field);
    }
}

/// The problem of a cluster-scoped object that does not exist.
fn missing(documents: &[Document], kind: &str, wanted: &str) -> String {
    let names = documents.iter().filter(|document| document.kind == kind).map(name);
    let near = suggestion(wanted, names);
    format!("there is no {} {wanted:?}{near}", kind.to_lowercase())
}

fn edit(documents: &mut [Document], kind: &str, wanted: &str, change: impl Fn(&mut Value)) -> Result<(), String> {
    let found = documents
        .iter_mut()
        .filter(|document| document.kind == kind && name(document) == wanted);
    if found.map(|document| change(&mut document.object)).count() == 0 {
        return Err(missing(documents, kind, wanted));
    }
    Ok(())
}

fn add_nodes(documents: &mut Vec<Document>, count: u32, like: &str) -> Result<(), String> {
    let nodes = || documents.iter().filter(|document| document.kind == "Node");
    // A later object of the same name counts.
    let Some(template) = nodes().rfind(|document| name(document) == like) else {
        return Err(missing(documents, "Node", like));
    };
    let taken: FxHashSet<&str> = nodes().map(name).collect();
    let names = (1u64..).map(|number| format!("{like}-new-{number}"));
    let names = names.filter(|name| !taken.contains(name.as_str())).take(count as usize);
    let made: Vec<Document> = names.map(|name| new_node(template, &name)).collect();
    documents.extend(made);
    Ok(())
}

/// A node that just joined: with the labels, taints and resources of the other, without its identity.
fn new_node(like: &Document, name: &str) -> Document {
    let mut node = like.clone();
    let object = &mut node.object;
    for field in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "selfLink",
        "managedFields",
    ] {
        remove(object, "/metadata", field);
    }
    remove(object, "/spec", "unschedulable");
    remove(object, "/spec", "providerID");
    set(object, &["metadata", "name"], name.into());
    if object
        .pointer("/metadata/labels")
        .and_then(|labels| labels.get(HOSTNAME))
        .is_some()
    {
        set(object, &["metadata", "labels", HOSTNAME], name.into());
    }
    node
}

/// Removes a node as the node controller does: pods of the scheduler are pending again, other pods and bind requests go with the node.
fn remove_node(documents: &mut Vec<Document>, node: &str, identity: &PodIdentity) -> Result<(), String> {
    let before = documents.len();
    documents.retain(|document| document.kind != "Node" || name(document) != node);
    if documents.len() == before {
        return Err(missing(documents, "Node", node));
    }
    documents.retain_mut(|document| match document.kind.as_str() {
        "BindRequest" => text(&document.object, "/spec/selectedNode") != node,
        "Pod" if text(&document.object, "/spec/nodeName") == node => {
            let kind = super::super::parse::typed::<kai_api::Pod>(&document.object)
                .map(|pod| (pod.kind(identity), pod.is_terminal()));
            match kind {
                Ok((PodKind::Workload, false)) => {
                    recreate(&mut document.object);
                    true
                }
                // A pod that has ended holds nothing; a pod that can't be read is reported later.
                Ok((_, true)) | Err(_) => true,
                Ok((_, false)) => false,
            }
        }
        _ => true,
    });
    Ok(())
}

/// The fields of [`kai_api::Pod::recreated`].
fn recreate(pod: &mut Value) {
    remove(pod, "/spec", "nodeName");
    remove(pod, "/metadata", "deletionTimestamp");
    set(pod, &["status"], json!({ "phase": "Pending" }));
    if let Some(labels) = pod.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.retain(|key, _| !keys::is_gpu_group_label(key));
    }
    if let Some(annotations) = pod.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| !keys::SCHEDULER_POD_ANNOTATIONS.contains(key.as_str()));
    }
}

fn set_queue(documents: &mut [Document], queue: &str, field: QueueField, value: f64) -> Result<(), String> {
    // Whole numbers stay whole: the priority is an integer.
    let value = match value.fract() == 0.0 {
        true => Value::from(value as i64),
        false => Value::from(value),
    };
    edit(documents, "Queue", queue, |object| match field {
        QueueField::Priority => set(object, &["spec", "priority"], value.clone()),
        QueueField::Share(resource, field) => {
            set(object, &["spec", "resources", resource, field.name()], value.clone());
        }
    })
}

/// The problem of a namespaced object that does not exist.
fn missing_in_namespace(documents: &[Document], kind: &str, wanted: &ObjectName, remedy: &str) -> String {
    let of_kind = documents.iter().filter(|document| document.kind == kind);
    let names: Vec<String> = of_kind
        .map(|document| format!("{}/{}", document.namespace(), name(document)))
        .collect();
    let elsewhere = names
        .iter()
        .find(|name| name.split_once('/').is_some_and(|(_, name)| name == wanted.name));
    let near = match elsewhere {
        Some(name) => format!("; did you mean {name}?"),
        None => suggestion(&wanted.to_string(), names.iter().map(String::as_str)),
    };
    format!("there is no {} {wanted}{near}{remedy}", kind.to_lowercase())
}

fn delete_pod(documents: &mut Vec<Document>, pod: &ObjectName) -> Result<(), String> {
    if !documents.iter().any(|document| is(document, "Pod", pod)) {
        let remedy = "; the pods of workloads are created later: submit a changed workload";
        return Err(missing_in_namespace(documents, "Pod", pod, remedy));
    }
    remove_pods(documents, |document| is(document, "Pod", pod));
    Ok(())
}

fn delete_pod_group(documents: &mut Vec<Document>, group: &ObjectName) -> Result<(), String> {
    if !documents.iter().any(|document| is(document, "PodGroup", group)) {
        let remedy = "; the pod groups of workloads are created later: submit a changed workload";
        return Err(missing_in_namespace(documents, "PodGroup", group, remedy));
    }
    documents.retain(|document| !is(document, "PodGroup", group));
    remove_pods(documents, |document| {
        let named = document
            .object
            .pointer("/metadata/annotations")
            .and_then(|all| all.get(keys::POD_GROUP_NAME));
        document.kind == "Pod"
            && document.namespace() == group.namespace
            && named.and_then(Value::as_str) == Some(&group.name)
    });
    Ok(())
}

/// Removes pods with their bind requests.
fn remove_pods(documents: &mut Vec<Document>, goes: impl Fn(&Document) -> bool) {
    let removed = documents.iter().filter(|document| goes(document));
    let removed: FxHashSet<(String, String)> = removed
        .map(|document| (document.namespace().to_owned(), name(document).to_owned()))
        .collect();
    documents.retain(|document| match document.kind.as_str() {
        "BindRequest" => {
            let pod = text(&document.object, "/spec/podName");
            let pod = if pod.is_empty() { name(document) } else { pod };
            !removed.contains(&(document.namespace().to_owned(), pod.to_owned()))
        }
        _ => !goes(document),
    });
}

/// Adds the objects of a file. Each replaces the object of its name, as `kubectl apply` does.
fn submit(documents: &mut Vec<Document>, warnings: &mut Warnings, file: &Path) -> Result<(), Error> {
    let unreadable = |source| Error::Unreadable {
        path: file.to_owned(),
        source,
    };
    let bytes = std::fs::read(file).map_err(unreadable)?;
    let content = String::from_utf8(bytes).map_err(|_| Error::NotText {
        path: file.to_owned(),
        expected: crate::scenario::sources::OBJECTS_FORMAT,
    })?;
    let submitted = manifest::read_documents(&Arc::from(file), &content, warnings)?;
    let key = |document: &Document| {
        (
            document.kind.clone(),
            document.namespace().to_owned(),
            name(document).to_owned(),
        )
    };
    let named = submitted.iter().filter(|document| !name(document).is_empty());
    let names: FxHashSet<_> = named.map(key).collect();
    documents.retain(|document| !names.contains(&key(document)));
    let first = documents.len();
    documents.extend(submitted);
    manifest::generate_names(documents);
    documents[first..].iter().try_for_each(manifest::check_types)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::super::Author;
    use super::*;

    fn cluster() -> Vec<Document> {
        let group = json!({ keys::POD_GROUP_NAME: "g", keys::RECEIVED_RESOURCE_TYPE: "Regular" });
        let running = |name: &str, scheduler: &str| {
            json!({
                "metadata": { "name": name, "namespace": "ns", "annotations": group, "labels": { "runai-gpu-group": "x", "app": "a" } },
                "spec": { "schedulerName": scheduler, "nodeName": "n", "containers": [] }, "status": { "phase": "Running" },
            })
        };
        let objects = [
            (
                "Node",
                json!({ "metadata": { "name": "n", "uid": "u", "labels": { HOSTNAME: "n", "rack": "r" } },
                             "spec": { "unschedulable": true, "taints": [] } }),
            ),
            ("Queue", json!({ "metadata": { "name": "q" } })),
            ("PodGroup", json!({ "metadata": { "name": "g", "namespace": "ns" } })),
            ("Pod", running("p", "kai-scheduler")),
            ("Pod", running("d", "default-scheduler")),
            (
                "BindRequest",
                json!({ "metadata": { "name": "p", "namespace": "ns" }, "spec": { "selectedNode": "n" } }),
            ),
        ];
        let document = |(kind, object): (&str, Value)| Document {
            file: Arc::from(Path::new("f")),
            kind: kind.to_owned(),
            object,
            author: Author::User,
        };
        objects.map(document).into()
    }

    fn changed(words: &str) -> Result<Vec<Document>, String> {
        let mut documents = cluster();
        let change = words.parse().unwrap();
        let applied = apply(
            &[change],
            &mut documents,
            &mut Warnings::default(),
            &PodIdentity::default(),
        );
        applied.map(|()| documents).map_err(|error| error.to_string())
    }

    fn names(documents: &[Document]) -> Vec<String> {
        documents
            .iter()
            .map(|document| format!("{} {}", document.kind, name(document)))
            .collect()
    }

    #[test]
    fn new_nodes_are_empty_and_open() {
        let documents = changed("add 2 nodes like n").unwrap();
        let node = &documents[documents.len() - 1].object;
        let expect = json!({ "metadata": { "name": "n-new-2", "labels": { HOSTNAME: "n-new-2", "rack": "r" } }, "spec": { "taints": [] } });
        assert_eq!(*node, expect);
        assert_eq!(documents.len(), cluster().len() + 2);
    }

    #[test]
    fn pods_of_a_removed_node_are_pending_again() {
        let documents = changed("remove node n").unwrap();
        assert_eq!(names(&documents), ["Queue q", "PodGroup g", "Pod p"]);
        let expect = json!({
            "metadata": { "name": "p", "namespace": "ns", "annotations": { keys::POD_GROUP_NAME: "g" }, "labels": { "app": "a" } },
            "spec": { "schedulerName": "kai-scheduler", "containers": [] }, "status": { "phase": "Pending" },
        });
        assert_eq!(documents[2].object, expect);
    }

    #[test]
    fn fields_are_set_and_objects_deleted() {
        assert_eq!(
            changed("cordon node n").unwrap()[0].object["spec"]["unschedulable"],
            true
        );
        let tainted = json!({ "unschedulable": true, "taints": [{ "key": CORDONED }, { "key": "mine" }] });
        let uncordoned = |spec: &Value| {
            let mut documents = cluster();
            documents[0].object["spec"] = spec.clone();
            let change = "uncordon node n".parse().unwrap();
            apply(
                &[change],
                &mut documents,
                &mut Warnings::default(),
                &PodIdentity::default(),
            )
            .unwrap();
            documents[0].object["spec"].clone()
        };
        assert_eq!(uncordoned(&tainted), json!({ "taints": [{ "key": "mine" }] }));
        assert_eq!(uncordoned(&json!({})), json!({}));
        let spec = |words: &str| changed(words).unwrap()[1].object["spec"].clone();
        assert_eq!(
            spec("queue q gpu.quota=2.5"),
            json!({ "resources": { "gpu": { "quota": 2.5 } } })
        );
        assert_eq!(spec("queue q priority=7"), json!({ "priority": 7 }));
        assert_eq!(
            names(&changed("delete pod ns/p").unwrap()),
            ["Node n", "Queue q", "PodGroup g", "Pod d"]
        );
        assert_eq!(names(&changed("delete podgroup ns/g").unwrap()), ["Node n", "Queue q"]);
    }

    #[test]
    fn a_missing_object_is_an_error_with_the_nearest_name() {
        let told = |words: &str| changed(words).unwrap_err();
        assert_eq!(
            told("remove node m"),
            "--what-if \"remove node m\": there is no node \"m\""
        );
        assert_eq!(
            told("delete podgroup g"),
            "--what-if \"delete podgroup default/g\": there is no podgroup default/g; did you mean ns/g?; the pod groups of workloads are \
             created later: submit a changed workload"
        );
    }
}
