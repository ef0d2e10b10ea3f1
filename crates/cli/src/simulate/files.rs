//! The objects of manifests by name: the pod grouper's view of a cluster.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kai_api::{Metadata, Pod, PodGroup, PriorityClass, PriorityClasses, keys};
use kai_controllers::grouper::{ClusterReader, ObjectRef, Owner};
use kai_simulate::scenario::{Document, document_kind};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Owners that are followed; a longer chain is a circle.
const OWNERS_MAX: usize = 16;

/// All objects of one cluster.
pub(crate) struct Files<'d> {
    /// By kind, namespace and name.
    objects: HashMap<(&'d str, &'d str, &'d str), &'d Value>,
    groups: BTreeMap<(String, String), Arc<PodGroup>>,
    pods: Vec<Arc<Pod>>,
    classes: PriorityClasses,
    queues: BTreeSet<&'d str>,
}

impl<'d> Files<'d> {
    pub(crate) fn new(documents: &'d [Document]) -> Files<'d> {
        let mut classes = PriorityClasses::installed();
        all_of::<PriorityClass>(documents, "PriorityClass").for_each(|class| classes.insert(&class));
        let groups = all_of::<PodGroup>(documents, "PodGroup").map(|group| {
            let (namespace, name) = (group.metadata.namespace(), group.metadata.plain_name());
            ((namespace.to_owned(), name.to_owned()), Arc::new(group))
        });
        let queues = documents.iter().filter(|document| document.kind == "Queue");
        Files {
            objects: documents
                .iter()
                .map(|document| {
                    (
                        (document.kind.as_str(), document.namespace(), name_of(document)),
                        &document.object,
                    )
                })
                .collect(),
            groups: groups.collect(),
            pods: all_of(documents, "Pod").map(Arc::new).collect(),
            classes,
            queues: queues.map(name_of).collect(),
        }
    }

    /// Whether the queue exists.
    pub(crate) fn has_queue(&self, name: &str) -> bool {
        self.queues.contains(name)
    }

    /// An object of a namespace.
    pub(crate) fn object(&self, namespace: &str, reference: &ObjectRef) -> Option<&'d Value> {
        let kind = document_kind(&reference.api_version, &reference.kind);
        self.objects
            .get(&(kind.as_str(), namespace, reference.name.as_str()))
            .copied()
    }

    /// The owners of a pod, the nearest first. An owner that is not in the files has the fields of its reference only.
    pub(crate) fn owners_of(&self, pod: &Pod) -> Vec<Owner> {
        let mut owners = Vec::new();
        let mut next = pod.metadata.owner_references.first().cloned();
        while let Some(reference) = next.filter(|_| owners.len() < OWNERS_MAX) {
            let kind = document_kind(&reference.api_version, &reference.kind);
            let key = (kind.as_str(), pod.metadata.namespace(), &*reference.name);
            let metadata = self.objects.get(&key).and_then(|object| read(object.get("metadata")?));
            let metadata = metadata.unwrap_or_else(|| Metadata {
                name: Some(reference.name.clone()),
                uid: Some(reference.uid.clone()),
                ..Metadata::default()
            });
            owners.push(Owner::new(&reference.api_version, &reference.kind, &metadata));
            next = metadata.owner_references.first().cloned();
        }
        owners
    }

    /// A warning about a missing queue. `owners` are those of the pod.
    pub(crate) fn missing_queue(&self, queue: &str, pod: &Pod, owners: &[Owner]) -> Option<String> {
        if self.has_queue(queue) {
            return None;
        }
        let of_pod = Owner::of_pod(pod);
        let Owner { kind, name, .. } = owners.last().unwrap_or(&of_pod);
        let (namespace, label) = (pod.metadata.namespace(), keys::QUEUE);
        Some(format!(
            "{kind} {namespace}/{name}: metadata.labels.{label}: queue {queue:?} does not exist; create it or correct the name \
             (its pods wait)"
        ))
    }
}

impl ClusterReader for Files<'_> {
    fn has_priority_class(&self, name: &str) -> bool {
        self.classes.contains(name)
    }

    fn pod_group(&self, namespace: &str, name: &str) -> Option<Arc<PodGroup>> {
        self.groups.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    fn has_pod_group(&self, namespace: &str, matches: &dyn Fn(&PodGroup) -> bool) -> bool {
        let mut of_namespace = self.groups.iter().filter(|((other, _), _)| other == namespace);
        of_namespace.any(|(_, group)| matches(group))
    }

    fn pods_labelled(&self, namespace: &str, label: &str, value: &str) -> Vec<Arc<Pod>> {
        let is_one =
            |pod: &&Arc<Pod>| pod.metadata.namespace() == namespace && pod.metadata.labels.text(label) == Some(value);
        self.pods.iter().filter(is_one).cloned().collect()
    }
}

/// The object as a slim type; `None` if it can't be read, which the loader reports.
pub(crate) fn read<T: DeserializeOwned>(object: &Value) -> Option<T> {
    T::deserialize(object).ok()
}

/// All objects of a kind.
pub(crate) fn all_of<T: DeserializeOwned>(documents: &[Document], kind: &str) -> impl Iterator<Item = T> {
    let of_kind = documents.iter().filter(move |document| document.kind == kind);
    of_kind.filter_map(|document| read(&document.object))
}

fn name_of(document: &Document) -> &str {
    document
        .object
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or_default()
}
