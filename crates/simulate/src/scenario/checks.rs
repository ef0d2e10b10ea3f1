//! Warnings about references between objects and about duplicates. A cluster would show most of them only as the reason of a pending pod.

use std::borrow::Cow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use kai_api::{Object, ObjectKey, Pod, PodIdentity};
use kai_engine::model::{Millis, PodKind, Quota};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{ObjectFiles, Objects, Warnings};

const TWICE: &str = "it is there twice (the later one counts)";

/// Checks the objects. Of pods with the same uid only the last stays.
pub(super) fn check_references(
    objects: &mut Objects,
    identity: &PodIdentity,
    files: &ObjectFiles,
    warnings: &mut Warnings,
) {
    let mut report = Reporter { files, warnings };
    check_queues(objects, &mut report);
    check_quotas(objects, &mut report);
    check_bind_requests(objects, &mut report);
    check_pod_groups(objects, identity, &mut report);
    check_nodes(objects, &mut report);
    check_duplicates(objects, &mut report);
    check_duplicate_pods(&mut objects.pods, &mut report);
}

/// Adds warnings about objects, with their files.
struct Reporter<'r> {
    files: &'r ObjectFiles,
    warnings: &'r mut Warnings,
}

impl Reporter<'_> {
    fn warn(&mut self, object: &str, field: &str, problem: impl fmt::Display) {
        self.files
            .warn(self.warnings, object, format_args!("{field}: {problem}"));
    }
}

fn object_of(pod: &Pod) -> String {
    format!("Pod {}", pod.metadata.qualified_name())
}

fn check_queues(objects: &Objects, report: &mut Reporter<'_>) {
    let queues: FxHashSet<&str> = objects.queues.iter().map(|queue| queue.metadata.plain_name()).collect();
    let remedy = "create it or correct the name";
    for group in objects
        .pod_groups
        .iter()
        .filter(|group| !queues.contains(group.queue()))
    {
        // Grouping warns about the queue of the user's workload.
        if objects.generated_groups.contains(&ObjectKey::of(&**group)) {
            continue;
        }
        let object = format!("PodGroup {}", group.metadata.qualified_name());
        let problem = format_args!("queue {:?} does not exist; {remedy} (its pods wait)", group.queue());
        report.warn(&object, "spec.queue", problem);
    }
}

/// Warns of queues with a larger quota than their parent.
fn check_quotas(objects: &Objects, report: &mut Reporter<'_>) {
    // The mirror reports queues that can't be read.
    let readable = objects.queues.iter().filter_map(|queue| queue.read(Millis(0)).ok());
    let queues: Vec<_> = readable.map(|read| read.value).collect();
    let quotas: FxHashMap<&str, &Quota> = queues.iter().map(|queue| (queue.name.as_str(), &queue.quota)).collect();
    for queue in &queues {
        let Some(parent) = queue.parent.as_deref() else {
            continue;
        };
        let Some(quota) = quotas.get(parent) else { continue };
        for resource in kai_api::quotas_above_parent(&queue.quota, quota) {
            let problem = format_args!(
                "the {resource} quota exceeds that of parent queue {parent} (more than the parent's is not kept for it)"
            );
            report.warn(&format!("Queue {}", queue.name), "spec.resources", problem);
        }
    }
}

fn check_bind_requests(objects: &Objects, report: &mut Reporter<'_>) {
    if objects.bind_requests.is_empty() {
        return;
    }
    let pods: FxHashSet<ObjectKey> = objects.pods.iter().map(|pod| ObjectKey::of(&**pod)).collect();
    let nodes: FxHashSet<&str> = objects.nodes.iter().map(|node| node.metadata.plain_name()).collect();
    for request in &objects.bind_requests {
        let object = || format!("BindRequest {}", request.metadata.qualified_name());
        let pod = ObjectKey::new(request.metadata.namespace(), request.pod_name());
        if !pods.contains(&pod) {
            let problem = format_args!("there is no pod {pod} (the bind request is skipped)");
            report.warn(&object(), "spec.podName", problem);
        } else if !nodes.contains(request.selected_node()) {
            let node = request.selected_node();
            let problem = format_args!("there is no node {node:?} (the scheduler deletes the bind request)");
            report.warn(&object(), "spec.selectedNode", problem);
        }
    }
}

/// Warns of missing pod groups.
fn check_pod_groups(objects: &Objects, identity: &PodIdentity, report: &mut Reporter<'_>) {
    let groups = objects.pod_groups.iter().map(|group| &group.metadata);
    let groups: FxHashSet<(&str, &str)> = groups.map(|group| (group.namespace(), group.plain_name())).collect();
    for pod in objects.pods.iter().filter(|pod| !pod.is_terminal()) {
        if pod.kind(identity) != PodKind::Workload {
            continue;
        }
        let field = "metadata.annotations.pod-group-name";
        let namespace = pod.metadata.namespace();
        match pod.pod_group() {
            Some(group) if groups.contains(&(namespace, group)) => {}
            Some(group) => {
                let remedy = "create it or correct the name (the pod waits)";
                let problem = format_args!("pod group {namespace}/{group} does not exist; {remedy}");
                report.warn(&object_of(pod), field, problem);
            }
            None => report.warn(
                &object_of(pod),
                field,
                "it is missing; name a pod group (the pod waits)",
            ),
        }
    }
}

/// Warns of pods on missing nodes: their resources count nowhere.
fn check_nodes(objects: &Objects, report: &mut Reporter<'_>) {
    let nodes: FxHashSet<&str> = objects.nodes.iter().map(|node| node.metadata.plain_name()).collect();
    for pod in objects.pods.iter().filter(|pod| !pod.is_terminal()) {
        let Some(node) = pod.node_name().filter(|node| !nodes.contains(node)) else {
            continue;
        };
        let remedy = "add it or correct the name (what the pod uses counts nowhere)";
        let problem = format_args!("there is no node {node:?}; {remedy}");
        report.warn(&object_of(pod), "spec.nodeName", problem);
    }
}

/// Warns of duplicate objects. The later one counts, as if it had been applied after the earlier one.
fn check_duplicates(objects: &Objects, report: &mut Reporter<'_>) {
    let groups = objects.pod_groups.iter().map(|group| &group.metadata);
    for group in repeated(groups, |group| (group.namespace(), group.plain_name())) {
        report.warn(&format!("PodGroup {}", group.qualified_name()), "metadata.name", TWICE);
    }
    let nodes = objects.nodes.iter().map(|node| ("Node", node.metadata.plain_name()));
    let queues = objects
        .queues
        .iter()
        .map(|queue| ("Queue", queue.metadata.plain_name()));
    for (kind, name) in repeated(nodes.chain(queues), |named| *named) {
        report.warn(&format!("{kind} {name}"), "metadata.name", TWICE);
    }
}

/// The elements whose key an earlier element has.
fn repeated<T, K: Hash + Eq>(elements: impl Iterator<Item = T>, key: impl Fn(&T) -> K) -> impl Iterator<Item = T> {
    let mut seen = FxHashSet::default();
    elements.filter(move |element| !seen.insert(key(element)))
}

/// Warns of pods with the uid or the name of another pod, and keeps only the last pod of a uid. Of a name the mirror keeps the last.
fn check_duplicate_pods(pods: &mut Vec<Arc<Pod>>, report: &mut Reporter<'_>) {
    let mut by_uid: FxHashMap<Cow<'_, str>, usize> = FxHashMap::default();
    let mut names = FxHashSet::default();
    let mut replaced = FxHashSet::default();
    for (at, pod) in pods.iter().enumerate() {
        let metadata = &pod.metadata;
        let is_new_name = names.insert((metadata.namespace(), metadata.plain_name()));
        let uid = match metadata.uid.as_deref() {
            Some(uid) if !uid.is_empty() => Cow::Borrowed(uid),
            // As in `Pod::read`.
            Some(_) | None => Cow::Owned(metadata.qualified_name()),
        };
        if let Some(earlier) = by_uid.insert(uid.clone(), at) {
            replaced.insert(earlier);
            let problem = format_args!("{uid:?} is there twice (the later one counts)");
            report.warn(&object_of(pod), "metadata.uid", problem);
        } else if !is_new_name {
            report.warn(&object_of(pod), "metadata.name", TWICE);
        }
    }
    if !replaced.is_empty() {
        let mut at = 0;
        pods.retain(|_| {
            at += 1;
            !replaced.contains(&(at - 1))
        });
    }
}
