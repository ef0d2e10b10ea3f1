//! Generates the pods of the workloads in manifests, by the rules of the workload controllers.
//!
//! Existing pods in the manifests, as in a dump of a cluster, count; only missing pods are generated.

use rustc_hash::FxHashMap;
use serde_json::Value;

use super::{Document, Warnings};
use kai_embedded::workloads::expansion::{self, Workload};

/// The workload kinds, for messages.
pub(super) const KINDS: &str = "Deployment, ReplicaSet, StatefulSet, DaemonSet and Job";
/// The workload kinds; a Deployment comes before the ReplicaSet that it creates.
const ORDER: [&str; 5] = ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job"];
/// More pods of one workload than any cluster runs. Keeps a typo from filling the memory.
const PODS_MAX: i64 = 100_000;

/// Whether this is a workload kind.
pub(super) fn is_workload(kind: &str) -> bool {
    ORDER.contains(&kind)
}

/// Appends the missing pods of the workloads with their owner references, which grouping needs.
pub(super) fn expand(documents: &mut Vec<Document>, warnings: &mut Warnings) {
    for document in documents.iter_mut().filter(|document| is_workload(&document.kind)) {
        ensure_uid(document);
    }
    let nodes = documents.iter().filter(|document| document.kind == "Node");
    let nodes: Vec<Value> = nodes.map(|document| document.object.clone()).collect();
    for kind in ORDER {
        let mut made = Vec::new();
        let owned = by_owner(documents);
        for document in documents.iter().filter(|document| document.kind == kind) {
            // The types of all fields were checked when the file was read.
            let workload = match Workload::read(&document.object) {
                Ok(workload) => workload,
                Err(error) => {
                    warnings.push_about(
                        &document.file,
                        format_args!("{}: {error} (it is skipped)", document.name()),
                    );
                    continue;
                }
            };
            let wanted = expansion::wanted_pods(kind, &workload);
            if wanted > PODS_MAX {
                let object = document.name();
                let field = if kind == "Job" { "parallelism" } else { "replicas" };
                warnings.push_about(
                    &document.file,
                    format_args!(
                        "{object}: spec.{field}: {wanted} pods are more than any cluster runs; at most {PODS_MAX} are simulated \
                         (it is skipped)"
                    ),
                );
                continue;
            }
            let uid = document.object.pointer("/metadata/uid").and_then(Value::as_str);
            let owned = uid.and_then(|uid| owned.get(uid)).map_or(&[][..], Vec::as_slice);
            let (kind, objects) = expansion::missing_objects(kind, &workload, owned, &nodes);
            made.extend(objects.into_iter().map(|object| document.made(kind, object)));
        }
        documents.append(&mut made);
    }
}

/// Sets a uid, by which owner references find the workload. Objects that were never in a cluster have none.
fn ensure_uid(document: &mut Document) {
    let uid = super::synthetic_uid(&document.name());
    let Some(metadata) = document.object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    metadata.entry("uid").or_insert_with(|| uid.into());
}

/// Objects by the uid of their owner.
fn by_owner(documents: &[Document]) -> FxHashMap<&str, Vec<&Value>> {
    let mut owned: FxHashMap<&str, Vec<&Value>> = FxHashMap::default();
    for document in documents {
        let references = document
            .object
            .pointer("/metadata/ownerReferences")
            .and_then(Value::as_array);
        let uids = references
            .into_iter()
            .flatten()
            .filter_map(|reference| reference.get("uid"));
        for uid in uids.filter_map(Value::as_str) {
            owned.entry(uid).or_default().push(&document.object);
        }
    }
    owned
}
