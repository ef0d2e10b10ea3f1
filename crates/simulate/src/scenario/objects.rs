//! Collects API objects, in any order, into the objects of a scenario.
//!
//! Each object is converted to the engine's type as soon as it is read, so that a large file is not in memory twice. References between
//! objects (priority classes, bind requests) are resolved at the end.

use std::fmt;
use std::marker::PhantomData;

use kai_api::{
    BindRequest, Metadata, Node, Pod, PodGroup, PodIdentity, PriorityClass, PriorityClasses, Problem, Queue,
    QueueCeiling, Text, Topology,
};
use kai_engine::model::{GangKey, Millis, PodKind, PodPhase, QueueSpec};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{Author, ObjectFiles, Objects, Warnings};

/// The kinds that the scheduler reads.
pub(super) const KINDS: &str = "Node, Queue, PodGroup, Pod, PriorityClass, BindRequest and Topology";
/// The lists of `objects` in a case.
const LISTS: [&str; 7] = [
    "nodes",
    "queues",
    "topologies",
    "podGroups",
    "pods",
    "priorityClasses",
    "bindRequests",
];

/// The kind of the objects in a list of `objects`.
pub(super) fn kind_of_list(list: &str) -> Option<&'static str> {
    Some(match list {
        "nodes" => "Node",
        "queues" => "Queue",
        "topologies" => "Topology",
        "podGroups" => "PodGroup",
        "pods" => "Pod",
        "priorityClasses" => "PriorityClass",
        "bindRequests" => "BindRequest",
        _ => return None,
    })
}

/// The creation time of objects without one, until the clock of the scenario is known.
const UNKNOWN_TIME: Millis = Millis(i64::MIN);

/// The source of the objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Origin {
    /// A case. Unusual objects are intended there and get no warning.
    #[default]
    Case,
    /// Manifests of a user.
    Manifests,
}

/// The objects of a scenario, with resolved references.
pub(super) struct Collected {
    pub(super) objects: Objects,
    /// The names of workloads by their pod groups.
    pub(super) workload_names: FxHashMap<GangKey, String>,
    /// Warnings, with their files.
    pub(super) warnings: Warnings,
}

/// Collects the objects of a scenario.
#[derive(Debug, Default)]
pub(super) struct ObjectCollector {
    pub(super) warnings: Warnings,
    classes: PriorityClasses,
    origin: Origin,
    identity: PodIdentity,
    objects: Objects,
    groups: Vec<PodGroup>,
    /// Pod groups that a controller created, by namespace and name.
    generated_groups: FxHashSet<(String, String)>,
    /// Priority ceilings, by queue.
    ceilings: FxHashMap<String, QueueCeiling>,
    bind_requests: Vec<BindRequest>,
}

impl ObjectCollector {
    /// A collector for manifests, with the priority classes of an installation.
    pub(super) fn of_manifests() -> ObjectCollector {
        ObjectCollector {
            classes: PriorityClasses::installed(),
            origin: Origin::Manifests,
            ..ObjectCollector::default()
        }
    }

    pub(super) fn node(&mut self, node: Node) {
        if !self.accepts("Node", &node.kind, &node.metadata, Scope::Cluster) {
            return;
        }
        if let Some(spec) = self.keep_readable(node.read().map(|read| (read.value, read.problems))) {
            self.objects.nodes.push(spec);
        }
    }

    pub(super) fn queue(&mut self, queue: Queue) {
        if !self.accepts("Queue", &queue.kind, &queue.metadata, Scope::Cluster) {
            return;
        }
        let name = queue.metadata.plain_name().to_owned();
        self.ceilings.insert(name, queue.priority_ceiling());
        if let Some(spec) = self.keep_readable(queue.read(UNKNOWN_TIME).map(|read| (read.value, read.problems))) {
            self.objects.queues.push(spec);
        }
    }

    pub(super) fn topology(&mut self, topology: Topology) {
        if !self.accepts("Topology", &topology.kind, &topology.metadata, Scope::Cluster) {
            return;
        }
        if let Some(spec) = self.keep_readable(topology.read().map(|read| (read.value, read.problems))) {
            self.objects.topologies.push(spec);
        }
    }

    pub(super) fn priority_class(&mut self, class: PriorityClass) {
        if self.accepts("PriorityClass", &class.kind, &class.metadata, Scope::Cluster) {
            self.classes.insert(&class);
        }
    }

    pub(super) fn bind_request(&mut self, request: BindRequest) {
        if self.accepts("BindRequest", &request.kind, &request.metadata, Scope::Namespace) {
            self.bind_requests.push(request);
        }
    }

    pub(super) fn pod_group(&mut self, group: PodGroup, author: Author) {
        if self.accepts("PodGroup", &group.kind, &group.metadata, Scope::Namespace) {
            if author == Author::Controller {
                let metadata = &group.metadata;
                self.generated_groups
                    .insert((metadata.namespace().to_owned(), metadata.plain_name().to_owned()));
            }
            self.groups.push(group);
        }
    }

    pub(super) fn pod(&mut self, pod: Pod) {
        if !self.accepts("Pod", &pod.kind, &pod.metadata, Scope::Namespace) {
            return;
        }
        let read = pod
            .read(&self.identity, UNKNOWN_TIME)
            .map(|read| (read.value, read.problems));
        let Some(spec) = self.keep_readable(read) else { return };
        let waits = spec.node.is_none() && spec.phase == PodPhase::Pending;
        if self.origin == Origin::Manifests && spec.kind == PodKind::Foreign && waits {
            let (name, scheduler) = (pod.metadata.qualified_name(), pod.scheduler_name());
            let remedy = format!("set it to {} to have the pod scheduled", self.identity.scheduler_name);
            self.warnings.push(format!(
                "Pod {name}: spec.schedulerName: {scheduler:?} is another scheduler; {remedy}"
            ));
        }
        self.objects.pods.push(spec);
    }

    /// Whether the object has the expected kind and no node pool label.
    fn accepts(&mut self, kind: &str, stated: &Option<Text>, metadata: &Metadata, scope: Scope) -> bool {
        let name = || match scope {
            Scope::Cluster => metadata.plain_name().to_owned(),
            Scope::Namespace => metadata.qualified_name(),
        };
        if let Some(stated) = stated.as_deref().filter(|stated| *stated != kind) {
            self.warnings.push(format!(
                "{kind} {}: kind: {stated:?} is not {kind} (the object is skipped)",
                name()
            ));
            return false;
        }
        let Some(pool) = metadata.node_pool() else { return true };
        if matches!(kind, "Node" | "Queue" | "PodGroup") {
            let label = kai_api::keys::NODE_POOL;
            let message = format!(
                "{kind} {}: metadata.labels.{label}: it is in node pool {pool:?}",
                name()
            );
            self.warnings.push(format!(
                "{message}; only objects without this label are run here (it is skipped)"
            ));
            return false;
        }
        true
    }

    fn keep_readable<T>(&mut self, read: Result<(T, Vec<Problem>), Problem>) -> Option<T> {
        match read {
            Ok((value, problems)) => {
                problems.iter().for_each(|problem| self.warnings.push(problem));
                Some(value)
            }
            Err(problem) => {
                self.warnings.push(problem);
                None
            }
        }
    }

    /// The latest creation time of any object: the best guess at the clock of a cluster that was dumped to files.
    pub(super) fn latest_creation(&self) -> Option<Millis> {
        let groups = self
            .groups
            .iter()
            .filter_map(|group| group.metadata.creation_timestamp.as_deref());
        let groups = groups.filter_map(|text| kai_api::parse_time(text).ok());
        let pods = self.objects.pods.iter().map(|pod| pod.created);
        let queues = self.objects.queues.iter().map(|queue| queue.created);
        groups
            .chain(pods)
            .chain(queues)
            .filter(|time| *time != UNKNOWN_TIME)
            .max()
    }

    /// Resolves references between objects and returns the objects. `now` is the clock of the scenario.
    pub(super) fn finish(mut self, now: Millis, files: &ObjectFiles) -> Collected {
        let mut warnings = Warnings::default();
        // Warnings about single objects of a case, which is one file.
        warnings.extend_about(files.file(""), std::mem::take(&mut self.warnings));
        let mut workload_names = FxHashMap::default();
        for group in std::mem::take(&mut self.groups) {
            let name = (
                group.metadata.namespace().to_owned(),
                group.metadata.plain_name().to_owned(),
            );
            // Warnings about a generated group are given for its workload.
            let is_generated = self.generated_groups.contains(&name);
            let read = group.read(&self.classes, now).map(|read| match is_generated {
                true => (read.value, Vec::new()),
                false => (read.value, read.problems),
            });
            let (gang, problems) = match read {
                Ok((gang, problems)) => (Some(gang), problems),
                Err(problem) => (None, vec![problem]),
            };
            for problem in problems {
                warnings.push_about(files.file(&problem.object), &problem);
            }
            if let Some(mut gang) = gang {
                group.bound_priority(&mut gang, &self.classes, |queue| self.ceilings.get(queue).cloned());
                workload_names.insert(gang.key.clone(), group.workload());
                self.objects.gangs.push(gang);
            }
        }
        let mut report = Reporter {
            files,
            warnings: &mut warnings,
        };
        self.check_queues(&mut report);
        self.check_quotas(&mut report);
        let Objects {
            queues, gangs, pods, ..
        } = &mut self.objects;
        let times = queues.iter_mut().map(|queue| &mut queue.created);
        let times = times.chain(gangs.iter_mut().map(|gang| &mut gang.created));
        for time in times.chain(pods.iter_mut().map(|pod| &mut pod.created)) {
            if *time == UNKNOWN_TIME {
                *time = now;
            }
        }
        self.attach_bind_requests(&mut report);
        self.check_references(&mut report);
        self.check_nodes(&mut report);
        self.check_duplicates(&mut report);
        Collected {
            objects: self.objects,
            workload_names,
            warnings,
        }
    }

    fn attach_bind_requests(&mut self, report: &mut Reporter<'_>) {
        if self.bind_requests.is_empty() {
            return;
        }
        let names = self.objects.pods.iter().enumerate();
        let by_name: FxHashMap<(String, String), usize> = names
            .map(|(at, pod)| ((pod.namespace.clone(), pod.name.clone()), at))
            .collect();
        for request in &self.bind_requests {
            let key = (request.metadata.namespace().to_owned(), request.pod_name().to_owned());
            match by_name.get(&key) {
                Some(at) => request.attach(&mut self.objects.pods[*at]),
                None => {
                    let object = format!("BindRequest {}", request.metadata.qualified_name());
                    let problem = format_args!("there is no pod {}/{} (the bind request is skipped)", key.0, key.1);
                    report.warn(&object, "spec.podName", problem);
                }
            }
        }
    }

    /// Warns of missing pod groups, which a real scheduler would only show as the reason of a pending pod.
    fn check_references(&self, report: &mut Reporter<'_>) {
        let gangs: FxHashSet<(&str, &str)> = self
            .objects
            .gangs
            .iter()
            .map(|gang| (gang.key.namespace.as_str(), gang.key.name.as_str()))
            .collect();
        for pod in self.objects.pods.iter().filter(|pod| pod.kind == PodKind::Workload) {
            if matches!(pod.phase, PodPhase::Succeeded | PodPhase::Failed) {
                continue;
            }
            let object = || format!("Pod {}/{}", pod.namespace, pod.name);
            let field = "metadata.annotations.pod-group-name";
            match &pod.gang {
                Some(gang) if gangs.contains(&(gang.namespace.as_str(), gang.name.as_str())) => {}
                Some(gang) => {
                    let remedy = "create it or correct the name (the pod waits)";
                    report.warn(
                        &object(),
                        field,
                        format_args!("pod group {gang} does not exist; {remedy}"),
                    );
                }
                None => report.warn(&object(), field, "it is missing; name a pod group (the pod waits)"),
            }
        }
    }

    fn check_queues(&self, report: &mut Reporter<'_>) {
        let queues: FxHashSet<&str> = self.objects.queues.iter().map(|queue| queue.name.as_str()).collect();
        let remedy = "create it or correct the name";
        for gang in self
            .objects
            .gangs
            .iter()
            .filter(|gang| !queues.contains(gang.queue.as_str()))
        {
            // Grouping warns about the queue of the user's workload.
            if self
                .generated_groups
                .contains(&(gang.key.namespace.clone(), gang.key.name.clone()))
            {
                continue;
            }
            let object = format!("PodGroup {}", gang.key);
            let problem = format_args!("queue {:?} does not exist; {remedy} (its pods wait)", gang.queue);
            report.warn(&object, "spec.queue", problem);
        }
    }

    /// Warns of pods on missing nodes: their resources count nowhere.
    fn check_nodes(&self, report: &mut Reporter<'_>) {
        let nodes: FxHashSet<&str> = self.objects.nodes.iter().map(|node| node.name.as_str()).collect();
        for pod in &self.objects.pods {
            let ended = matches!(pod.phase, PodPhase::Succeeded | PodPhase::Failed);
            let Some(node) = pod.node.as_deref().filter(|node| !ended && !nodes.contains(node)) else {
                continue;
            };
            let object = format!("Pod {}/{}", pod.namespace, pod.name);
            let remedy = "add it or correct the name (what the pod uses counts nowhere)";
            report.warn(
                &object,
                "spec.nodeName",
                format_args!("there is no node {node:?}; {remedy}"),
            );
        }
    }

    /// Warns of queues with a larger quota than their parent.
    fn check_quotas(&self, report: &mut Reporter<'_>) {
        let queues = &self.objects.queues;
        let by_name: FxHashMap<&str, &QueueSpec> = queues.iter().map(|queue| (queue.name.as_str(), queue)).collect();
        for queue in queues {
            let parent = queue.parent.as_deref().and_then(|parent| by_name.get(parent));
            let Some(parent) = parent else { continue };
            for resource in kai_api::quotas_above_parent(&queue.quota, &parent.quota) {
                let problem = format_args!(
                    "the {resource} quota exceeds that of parent queue {} (more than the parent's is not kept for it)",
                    parent.name
                );
                report.warn(&format!("Queue {}", queue.name), "spec.resources", problem);
            }
        }
    }

    /// Warns of duplicate objects. The later one counts, as if it had been applied after the earlier one.
    fn check_duplicates(&self, report: &mut Reporter<'_>) {
        let Objects {
            nodes,
            queues,
            gangs,
            pods,
            ..
        } = &self.objects;
        let mut seen = FxHashSet::default();
        for pod in pods.iter().filter(|pod| !seen.insert(pod.uid.as_str())) {
            let object = format!("Pod {}/{}", pod.namespace, pod.name);
            let problem = format_args!("{:?} is there twice (the later one counts)", pod.uid);
            report.warn(&object, "metadata.uid", problem);
        }
        let mut seen = FxHashSet::default();
        for gang in gangs.iter().filter(|gang| !seen.insert(&gang.key)) {
            report.warn(&format!("PodGroup {}", gang.key), "metadata.name", TWICE);
        }
        let named = nodes.iter().map(|node| ("Node", &node.name));
        let mut seen = FxHashSet::default();
        for (kind, name) in named.chain(queues.iter().map(|queue| ("Queue", &queue.name))) {
            if !seen.insert((kind, name)) {
                report.warn(&format!("{kind} {name}"), "metadata.name", TWICE);
            }
        }
    }
}

const TWICE: &str = "it is there twice (the later one counts)";

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

#[derive(Clone, Copy)]
enum Scope {
    Cluster,
    Namespace,
}

/// The lists of `objects` in a case.
impl<'de> Deserialize<'de> for ObjectCollector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectCollectorVisitor)
    }
}

struct ObjectCollectorVisitor;

impl<'de> Visitor<'de> for ObjectCollectorVisitor {
    type Value = ObjectCollector;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("lists of objects by kind")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ObjectCollector, A::Error> {
        let mut all = ObjectCollector::default();
        while let Some(list) = map.next_key::<Text>()? {
            match &*list {
                "nodes" => map.next_value_seed(Each::new(|node| all.node(node)))?,
                "queues" => map.next_value_seed(Each::new(|queue| all.queue(queue)))?,
                "topologies" => map.next_value_seed(Each::new(|topology| all.topology(topology)))?,
                "podGroups" => map.next_value_seed(Each::new(|group| all.pod_group(group, Author::User)))?,
                "pods" => map.next_value_seed(Each::new(|pod| all.pod(pod)))?,
                "priorityClasses" => map.next_value_seed(Each::new(|class| all.priority_class(class)))?,
                "bindRequests" => map.next_value_seed(Each::new(|request| all.bind_request(request)))?,
                other => return Err(serde::de::Error::unknown_field(other, &LISTS)),
            }
        }
        Ok(all)
    }
}

/// Passes each element of a list to a function as soon as it is read.
struct Each<T, F>(F, PhantomData<T>);

impl<T, F: FnMut(T)> Each<T, F> {
    fn new(take: F) -> Each<T, F> {
        Each(take, PhantomData)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T)> DeserializeSeed<'de> for Each<T, F> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T)> Visitor<'de> for Each<T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        while let Some(element) = seq.next_element()? {
            (self.0)(element);
        }
        Ok(())
    }
}
