//! Collects API objects, in any order, into the objects of a scenario.
//!
//! Each object is turned into the engine's type as soon as it is read, so that a large file is never in memory twice.
//! What needs others (priority classes, bind requests) is settled at the end.

use std::fmt;
use std::marker::PhantomData;

use api::{
    BindRequest, Metadata, Node, Pod, PodGroup, PodIdentity, PriorityClass, PriorityClasses, Problem, Queue, Text,
    Topology,
};
use engine::model::{Millis, PodKind, PodPhase};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::grouping::BarePod;
use super::{Objects, Warnings};

/// The kinds that a scheduler reads.
pub(super) const KINDS: &str = "Node, Queue, PodGroup, Pod, PriorityClass, BindRequest and Topology";
/// Creation time of objects that have none, until the clock of the scenario is known.
const UNKNOWN_TIME: Millis = Millis(i64::MIN);

/// Whether pods without a pod group get one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BarePods {
    /// They wait: a case is a cluster whose pod grouper did its work.
    #[default]
    Wait,
    /// They do.
    GetAGang,
}

/// Objects on their way into a scenario.
#[derive(Debug, Default)]
pub(super) struct Collector {
    pub(super) warnings: Warnings,
    classes: PriorityClasses,
    bare_pods: BarePods,
    identity: PodIdentity,
    objects: Objects,
    groups: Vec<PodGroup>,
    bind_requests: Vec<BindRequest>,
    bare: Vec<BarePod>,
}

impl Collector {
    /// Manifests are written by hand: what an installation and its pod grouper would add is added.
    pub(super) fn of_manifests() -> Collector {
        Collector {
            classes: PriorityClasses::installed(),
            bare_pods: BarePods::GetAGang,
            ..Collector::default()
        }
    }

    pub(super) fn node(&mut self, node: Node) {
        if !self.takes("Node", &node.kind, &node.metadata, Scope::Cluster) {
            return;
        }
        if let Some(spec) = self.keep(node.read().map(|read| (read.value, read.problems))) {
            self.objects.nodes.push(spec);
        }
    }

    pub(super) fn queue(&mut self, queue: Queue) {
        if !self.takes("Queue", &queue.kind, &queue.metadata, Scope::Cluster) {
            return;
        }
        if let Some(spec) = self.keep(queue.read(UNKNOWN_TIME).map(|read| (read.value, read.problems))) {
            self.objects.queues.push(spec);
        }
    }

    pub(super) fn topology(&mut self, topology: Topology) {
        if !self.takes("Topology", &topology.kind, &topology.metadata, Scope::Cluster) {
            return;
        }
        if let Some(spec) = self.keep(topology.read().map(|read| (read.value, read.problems))) {
            self.objects.topologies.push(spec);
        }
    }

    pub(super) fn priority_class(&mut self, class: PriorityClass) {
        if self.takes("PriorityClass", &class.kind, &class.metadata, Scope::Cluster) {
            self.classes.insert(&class);
        }
    }

    pub(super) fn bind_request(&mut self, request: BindRequest) {
        if self.takes("BindRequest", &request.kind, &request.metadata, Scope::Namespace) {
            self.bind_requests.push(request);
        }
    }

    pub(super) fn pod_group(&mut self, group: PodGroup) {
        if self.takes("PodGroup", &group.kind, &group.metadata, Scope::Namespace) {
            self.groups.push(group);
        }
    }

    pub(super) fn pod(&mut self, pod: Pod) {
        if !self.takes("Pod", &pod.kind, &pod.metadata, Scope::Namespace) {
            return;
        }
        let read = pod
            .read(&self.identity, UNKNOWN_TIME)
            .map(|read| (read.value, read.problems));
        let Some(mut spec) = self.keep(read) else { return };
        let waits = spec.node.is_none() && spec.phase == PodPhase::Pending;
        if self.bare_pods == BarePods::GetAGang {
            if spec.kind == PodKind::Workload && spec.gang.is_none() {
                self.bare.push(BarePod::new(&pod, &mut spec));
            }
            if spec.kind == PodKind::Foreign && waits {
                let (name, scheduler) = (pod.metadata.qualified_name(), pod.scheduler_name());
                let remedy = format!("set it to {} to have the pod scheduled", self.identity.scheduler_name);
                self.warnings.push(format!(
                    "Pod {name}: spec.schedulerName: {scheduler:?} is another scheduler; {remedy}"
                ));
            }
        }
        self.objects.pods.push(spec);
    }

    /// Whether the object is what its place says, and in the partition that is run here.
    fn takes(&mut self, kind: &str, stated: &Option<Text>, metadata: &Metadata, scope: Scope) -> bool {
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
            let label = api::keys::NODE_POOL;
            let told = format!(
                "{kind} {}: metadata.labels.{label}: it is in node pool {pool:?}",
                name()
            );
            self.warnings.push(format!(
                "{told}; only objects without this label are run here (it is skipped)"
            ));
            return false;
        }
        true
    }

    fn keep<T>(&mut self, read: Result<(T, Vec<Problem>), Problem>) -> Option<T> {
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

    /// Whether nothing was collected.
    pub(super) fn is_empty(&self) -> bool {
        let Objects {
            nodes,
            queues,
            pods,
            topologies,
            ..
        } = &self.objects;
        nodes.is_empty() && queues.is_empty() && pods.is_empty() && topologies.is_empty() && self.groups.is_empty()
    }

    /// The youngest creation time of anything: the best guess at the clock of a cluster that was written to files.
    pub(super) fn youngest(&self) -> Option<Millis> {
        let groups = self
            .groups
            .iter()
            .filter_map(|group| group.metadata.creation_timestamp.as_deref());
        let groups = groups.filter_map(|text| api::parse_time(text).ok());
        let pods = self.objects.pods.iter().map(|pod| pod.created);
        let queues = self.objects.queues.iter().map(|queue| queue.created);
        groups
            .chain(pods)
            .chain(queues)
            .filter(|time| *time != UNKNOWN_TIME)
            .max()
    }

    /// Settles what needed other objects. `now` is the clock of the scenario.
    pub(super) fn finish(mut self, now: Millis) -> (Objects, Warnings) {
        for group in std::mem::take(&mut self.groups) {
            if let Some(gang) = self.keep(group.read(&self.classes, now).map(|read| (read.value, read.problems))) {
                self.objects.gangs.push(gang);
            }
        }
        // Queues are checked before: the user never wrote the gangs of bare pods.
        self.check_queues();
        for bare in std::mem::take(&mut self.bare) {
            self.objects.gangs.push(bare.gang(&self.classes));
        }
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
        self.attach_bind_requests();
        self.check_references();
        self.check_duplicates();
        (self.objects, self.warnings)
    }

    fn attach_bind_requests(&mut self) {
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
                    let name = request.metadata.qualified_name();
                    let told = format!("BindRequest {name}: spec.podName: there is no pod {}/{}", key.0, key.1);
                    self.warnings.push(format!("{told} (the bind request is skipped)"));
                }
            }
        }
    }

    /// What a live scheduler would only show as a reason of a waiting pod is worth a word before the run.
    fn check_references(&mut self) {
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
            let object = format_args!(
                "Pod {}/{}: metadata.annotations.pod-group-name",
                pod.namespace, pod.name
            );
            match &pod.gang {
                Some(gang) if gangs.contains(&(gang.namespace.as_str(), gang.name.as_str())) => {}
                Some(gang) => {
                    let remedy = "create it or correct the name (the pod waits)";
                    self.warnings
                        .push(format!("{object}: pod group {gang} does not exist; {remedy}"));
                }
                None => self
                    .warnings
                    .push(format!("{object}: it is missing; name a pod group (the pod waits)")),
            }
        }
    }

    fn check_queues(&mut self) {
        let queues: FxHashSet<&str> = self.objects.queues.iter().map(|queue| queue.name.as_str()).collect();
        let remedy = "create it or correct the name";
        for gang in self
            .objects
            .gangs
            .iter()
            .filter(|gang| !queues.contains(gang.queue.as_str()))
        {
            let field = format!("PodGroup {}: spec.queue", gang.key);
            self.warnings.push(format_args!(
                "{field}: queue {:?} does not exist; {remedy} (its pods wait)",
                gang.queue
            ));
        }
        for bare in self.bare.iter().filter(|bare| !queues.contains(bare.queue.as_str())) {
            let field = format!(
                "Pod {}/{}: metadata.labels.{}",
                bare.namespace(),
                bare.name,
                api::keys::QUEUE
            );
            self.warnings.push(format_args!(
                "{field}: queue {:?} does not exist; {remedy} (the pod waits)",
                bare.queue
            ));
        }
    }

    /// Of two objects of one name the later counts, as if it had been applied over the earlier.
    fn check_duplicates(&mut self) {
        let Objects {
            nodes,
            queues,
            gangs,
            pods,
            ..
        } = &self.objects;
        let mut seen = FxHashSet::default();
        for pod in pods.iter().filter(|pod| !seen.insert(pod.uid.as_str())) {
            let name = format_args!("Pod {}/{}", pod.namespace, pod.name);
            self.warnings.push(format!(
                "{name}: metadata.uid: {:?} is there twice (the later one counts)",
                pod.uid
            ));
        }
        let mut seen = FxHashSet::default();
        for gang in gangs.iter().filter(|gang| !seen.insert(&gang.key)) {
            self.warnings.push(format!(
                "PodGroup {}: metadata.name: it is there twice (the later one counts)",
                gang.key
            ));
        }
        let named = nodes.iter().map(|node| ("Node", &node.name));
        let mut seen = FxHashSet::default();
        for (kind, name) in named.chain(queues.iter().map(|queue| ("Queue", &queue.name))) {
            if !seen.insert((kind, name)) {
                self.warnings.push(format!(
                    "{kind} {name}: metadata.name: it is there twice (the later one counts)"
                ));
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Scope {
    Cluster,
    Namespace,
}

/// The lists of `objects` in a case.
impl<'de> Deserialize<'de> for Collector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(CollectorVisitor)
    }
}

struct CollectorVisitor;

impl<'de> Visitor<'de> for CollectorVisitor {
    type Value = Collector;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("lists of objects by kind")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Collector, A::Error> {
        let mut all = Collector::default();
        while let Some(list) = map.next_key::<Text>()? {
            match &*list {
                "nodes" => map.next_value_seed(Each::new(|node| all.node(node)))?,
                "queues" => map.next_value_seed(Each::new(|queue| all.queue(queue)))?,
                "topologies" => map.next_value_seed(Each::new(|topology| all.topology(topology)))?,
                "podGroups" => map.next_value_seed(Each::new(|group| all.pod_group(group)))?,
                "pods" => map.next_value_seed(Each::new(|pod| all.pod(pod)))?,
                "priorityClasses" => map.next_value_seed(Each::new(|class| all.priority_class(class)))?,
                "bindRequests" => map.next_value_seed(Each::new(|request| all.bind_request(request)))?,
                other => {
                    all.warnings.push(format!(
                        "case: objects.{other}: is not a kind of object (it is skipped); known are nodes, queues, podGroups, \
                         pods, priorityClasses, bindRequests and topologies"
                    ));
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(all)
    }
}

/// Hands each element of a list over as soon as it is read.
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
